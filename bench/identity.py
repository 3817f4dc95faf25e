"""What resolving an identity costs, with 5 and with 40 headers, beside a bare gRPC echo of the same request.

The peer is what any call of another process costs: a unary echo of grpc.aio, served by a
process of its own on a Unix socket. Run it with `make bench-identity`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from bench.decoding import decode_whole_request
from routing_hints.v1 import service_pb2, types_pb2
from sidecar.decision.decide import decide
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy

ROUNDS = 7
CALLS_PER_ROUND = 300
BATCHES_PER_ROUND = 60
DECISIONS_PER_BATCH = 50
MUST = 1 / 20
_METHOD = "/bench.Echo/Echo"
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)
_CARRIERS = {
    "none": {},
    "first header": {"x-dynamo-session-id": "conv-7f3a-0000-1111"},
    "sub-agent": {
        "x-claude-code-session-id": "5b0f6d1e-7c1a-4a52-9d2e-0b7a4a1c9f10",
        "x-claude-code-agent-id": "agent-a",
    },
    "thread and JSON": {
        "thread-id": "thread-3",
        "x-codex-turn-metadata": '{"thread_id":"thread-3","parent_thread_id":"thread-2","turn_id":"7"}',
    },
    "last member": {"baggage": "tenant=t, session.id=conv-7f3a-0000-1111"},
}


def make_request(carrier: Mapping[str, str], headers: int) -> service_pb2.EnrichRequest:
    """A prefill request with `headers` headers in all."""
    filler = {
        f"X-Other-Header-{number}": "a value of some length" for number in range(headers - len(carrier))
    }
    identity = types_pb2.Identity(headers={**filler, **carrier})
    return service_pb2.EnrichRequest(
        request_id="r-1", phase=types_pb2.PHASE_PREFILL, identity=identity, engine=_ENGINE
    )


def time_decisions(message: service_pb2.EnrichRequest) -> float:
    """Seconds of one decision, of a round's median batch; both medians forgive interruptions."""
    policy = compile_policy(Policy())
    request = decode_whole_request(message)
    seconds = []
    for _ in range(BATCHES_PER_ROUND):
        began_s = time.perf_counter()
        for _ in range(DECISIONS_PER_BATCH):
            decide(request, policy)
        seconds.append((time.perf_counter() - began_s) / DECISIONS_PER_BATCH)
    return statistics.median(seconds)


async def time_echo(path: Path, message: service_pb2.EnrichRequest) -> float:
    """Seconds of one echo, one in flight, of a round's median."""
    data = message.SerializeToString()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        echo = channel.unary_unary(_METHOD)
        for _ in range(20):
            await echo(data)
        seconds = []
        for _ in range(CALLS_PER_ROUND):
            began_s = time.perf_counter()
            await echo(data)
            seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds)


def serve_echo(path: Path, ready: Event) -> None:
    """Echoes each request, until terminated."""

    async def serve() -> None:
        async def echo(data: bytes, _context: object) -> bytes:
            return data

        server = grpc.aio.server()
        handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        ready.set()
        await server.wait_for_termination()

    uvloop.run(serve())


def measure(path: Path) -> Iterator[tuple[str, int, float, float]]:
    """Gives carrier, number of headers, and the medians of decision and echo, taken in turns."""
    for headers in (5, 40):
        for name, carrier in _CARRIERS.items():
            message = make_request(carrier, headers)
            pairs = [(time_decisions(message), uvloop.run(time_echo(path, message))) for _ in range(ROUNDS)]
            decisions, echoes = zip(*pairs, strict=True)
            yield name, headers, statistics.median(decisions), statistics.median(echoes)


def main() -> None:
    """Prints one line for each carrier and number of headers."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        path, ready = Path(folder) / "echo.sock", context.Event()
        peer = context.Process(target=serve_echo, args=(path, ready), daemon=True)
        peer.start()
        ready.wait()
        print(f"{'carrier':<18}{'headers':>8}{'decision':>12}{'echo p50':>12}{'ratio':>8}")
        worst = 0.0
        for name, headers, decision_s, echo_s in measure(path):
            worst = max(worst, decision_s / echo_s)
            print(
                f"{name:<18}{headers:>8}{decision_s * 1e6:>10.1f}us{echo_s * 1e6:>10.0f}us"
                f"{f'1/{echo_s / decision_s:.0f}':>8}"
            )
        peer.terminate()
        peer.join()
    print(f"worst 1/{1 / worst:.0f}, must be at most 1/20: {'holds' if worst <= MUST else 'DOES NOT HOLD'}")


if __name__ == "__main__":
    main()
