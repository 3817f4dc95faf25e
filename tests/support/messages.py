"""The contract's messages as a worker sends them, and a stream to send them by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc.aio

from routing_hints.v1 import admin_pb2_grpc, service_pb2, service_pb2_grpc, types_pb2

HintsStub: TypeAlias = service_pb2_grpc.RoutingHintsServiceStub
AdminStub: TypeAlias = admin_pb2_grpc.RoutingHintsAdminServiceStub
OpenChannel: TypeAlias = Callable[[str], Awaitable[grpc.aio.Channel]]

CONVERSATION = "conv-7f3a"
CONVERSATION_HASH = "7c5832ae00b4609f"
"""The hash of that conversation, as docs/contract.md has it."""

PINNING_ENGINE = types_pb2.EngineProfile(
    instance_id="pinning",
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)
"""Its own router pins conversation ids."""
BALANCING_ENGINE = types_pb2.EngineProfile(
    instance_id="balancing",
    dialect=types_pb2.ENGINE_DIALECT_RANK_ONLY,
    adp_router=types_pb2.ADP_ROUTER_DEFAULT,
    rank_source=types_pb2.RANK_SOURCE_SIDECAR,
    dp_size=4,
)
"""It takes no ids; the sidecar places its conversations."""
RECORDING_ENGINE = types_pb2.EngineProfile(
    instance_id="recording",
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    rank_source=types_pb2.RANK_SOURCE_SIDECAR,
    records_first_rank=True,
    dp_size=4,
)
"""The sidecar places a conversation's first turn, and its router keeps the others there."""


def make_request(session_id: str = CONVERSATION, **fields: Any) -> service_pb2.EnrichRequest:
    """A prefill request of a conversation that header `x-session-id` names, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "request_id": "request-1",
        "phase": types_pb2.PHASE_PREFILL,
        "identity": types_pb2.Identity(headers={"x-session-id": session_id}),
    }
    return service_pb2.EnrichRequest(**{**defaults, **fields})


def make_batch(*requests: service_pb2.EnrichRequest, first_seq: int = 1) -> service_pb2.EnrichStreamRequest:
    """A stream message of these requests, numbered from `first_seq`."""
    items = [service_pb2.EnrichItem(seq=seq, request=one) for seq, one in enumerate(requests, first_seq)]
    return service_pb2.EnrichStreamRequest(items=items)


def make_applied(decision: service_pb2.EnrichResponse, **fields: Any) -> service_pb2.AppliedDecision:
    """What a client states that has applied a remembered decision, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {"directive": decision.rank_directive, "decision_id": decision.decision_id}
    if decision.hints.HasField("dp_rank"):
        defaults["dp_rank"] = decision.hints.dp_rank
    return service_pb2.AppliedDecision(**{**defaults, **fields})


def make_finish(decision: service_pb2.EnrichResponse, **fields: Any) -> service_pb2.Finish:
    """The report that a prefill request ended as it was decided, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "phase": types_pb2.PHASE_PREFILL,
        "decision_id": decision.decision_id,
        "outcome": service_pb2.FINISH_OUTCOME_COMPLETED,
        "applied_directive": decision.rank_directive,
        "id_attached": decision.hints.HasField("conversation_id"),
    }
    if decision.hints.HasField("dp_rank"):
        defaults["observed_dp_rank"] = decision.hints.dp_rank
    return service_pb2.Finish(**{**defaults, **fields})


class WorkerStream:
    """One stream of a worker, which sends its messages one by one.

    Attributes:
        call: the stream itself.
        policy: the newest policy that came, None before the first one.
    """

    def __init__(self, hints: HintsStub) -> None:
        """Opens a stream; the hello is sent by `open` or not at all."""
        self.call: grpc.aio.StreamStreamCall = hints.EnrichStream()
        self.policy: service_pb2.ClientPolicy | None = None
        self._last_seq = 0

    async def open(
        self,
        *engines: types_pb2.EngineProfile,
        worker_id: str = "w",
        client_version: str = "1.2.3",
    ) -> service_pb2.ClientPolicy:
        """Sends the hello, with the engines; returns the policy that comes back."""
        hello = service_pb2.StreamHello(worker_id=worker_id, client_version=client_version)
        await self.call.write(service_pb2.EnrichStreamRequest(hello=hello, engines=engines))
        return await self.read_policy()

    async def read_policy(self) -> service_pb2.ClientPolicy:
        """Returns the policy of the next message, which holds nothing else."""
        message = await self.call.read()
        assert not message.results
        assert message.HasField("policy")
        self.policy = message.policy
        return self.policy

    async def exchange(
        self,
        *requests: service_pb2.EnrichRequest,
        finishes: Iterable[service_pb2.Finish] = (),
        engines: Iterable[types_pb2.EngineProfile] = (),
        applied: service_pb2.AppliedDecision | None = None,
    ) -> list[service_pb2.EnrichResult]:
        """Sends one message of at least one request; returns the results in the order of the requests.

        Where something is applied, it is to each of the requests.
        """
        message = make_batch(*requests, first_seq=self._last_seq + 1)
        for item in message.items:
            if applied is not None:
                item.applied.CopyFrom(applied)
        self._last_seq += len(requests)
        message.finishes.extend(finishes)
        message.engines.extend(engines)
        await self.call.write(message)
        response = await self.call.read()
        self._note_policy(response)
        while not response.results:  # what was pushed in between
            response = await self.call.read()
            self._note_policy(response)
        results = sorted(response.results, key=lambda result: result.seq)
        assert [result.seq for result in results] == [item.seq for item in message.items]
        return results

    async def enrich(
        self,
        *requests: service_pb2.EnrichRequest,
        finishes: Iterable[service_pb2.Finish] = (),
        engines: Iterable[types_pb2.EngineProfile] = (),
    ) -> list[service_pb2.EnrichResponse]:
        """Does as `exchange`; returns the decisions, and fails where there is an error instead."""
        results = await self.exchange(*requests, finishes=finishes, engines=engines)
        assert [result.error for result in results if result.HasField("error")] == []
        return [result.response for result in results]

    def _note_policy(self, response: service_pb2.EnrichStreamResponse) -> None:
        if response.HasField("policy"):
            self.policy = response.policy

    async def finish(self, *finishes: service_pb2.Finish) -> None:
        """Sends finish reports alone; nothing responds to them."""
        await self.call.write(service_pb2.EnrichStreamRequest(finishes=finishes))

    @property
    def last_seq(self) -> int:
        """The `seq` of the request that was sent last."""
        return self._last_seq

    def close(self) -> None:
        """Ends the stream."""
        self.call.cancel()
