"""What happened before docs/debugging.md begins: a worker whose engine pins nothing, and nobody noticed."""

from __future__ import annotations

import grpc

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2

# Request, rank of the router, prompt tokens.
_TURNS = (("chat-1", 2, 400), ("chat-2", 0, 900), ("chat-3", 1, 1_500))


def tell(target: str) -> None:
    """Plays it at the sidecar: three turns of a conversation, each on the rank that the router chose."""
    engine = types_pb2.EngineProfile(
        instance_id="1",
        dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
        adp_router=types_pb2.ADP_ROUTER_DEFAULT,
        dp_size=4,
    )
    hello = service_pb2.StreamHello(worker_id="prefill-0")
    messages = [service_pb2.EnrichStreamRequest(hello=hello, engines=[engine])]
    for seq, (request_id, rank, tokens) in enumerate(_TURNS, 1):
        request = service_pb2.EnrichRequest(
            request_id=request_id,
            phase=types_pb2.PHASE_PREFILL,
            identity=types_pb2.Identity(headers={"x-session-id": "conv-7f3a"}),
            hints=types_pb2.RoutingHints(dp_rank=rank),
            prompt_tokens=tokens,
            engine_instance="1",
        )
        item = service_pb2.EnrichItem(seq=seq, request=request)
        finish = service_pb2.Finish(
            request_id=request_id,
            phase=types_pb2.PHASE_PREFILL,
            seq=seq,
            outcome=service_pb2.FINISH_OUTCOME_COMPLETED,
            applied_directive=types_pb2.RANK_DIRECTIVE_FORWARD,
            observed_dp_rank=rank,
            cached_tokens=0,
        )
        messages.append(service_pb2.EnrichStreamRequest(items=[item]))
        messages.append(service_pb2.EnrichStreamRequest(finishes=[finish]))
    with grpc.insecure_channel(target) as channel:
        stub = service_pb2_grpc.RoutingHintsServiceStub(channel)
        # The sidecar ends the stream once it has taken everything.
        for _ in stub.EnrichStream(iter(messages)):
            pass
