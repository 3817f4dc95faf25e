"""What a worker's own tests need: a client without a sidecar, and a sidecar of a few lines on a real socket.

Neither decides as the real sidecar does. `FakeClient` tests what a worker does with its plans;
`InProcessSidecar` tests it with gRPC in between.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from worker_client._client import RoutingHintClient
from worker_client._config import ClientConfig
from worker_client._engine import EngineProfile
from worker_client._local_rule import resolve_locally
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._pending_request import PendingRequest
from worker_client._request import RequestFacts
from worker_client._transport import Transport

_REVISION = "in-process-sidecar"
DecideFunction = Callable[[RequestFacts, EngineProfile], "Decision | None"]


def decide_by_structured_carriers(facts: RequestFacts, engine: EngineProfile) -> Decision:
    """Returns what the client's local rule says, as if a sidecar had said it."""
    return replace(resolve_locally(facts, engine, ClientPolicy()), origin=Origin.SIDECAR)


class FakeClient(RoutingHintClient):
    """A client that decides in process, at once.

    Attributes:
        requests: every request that would be submitted to a sidecar, in order.
        finishes: the finish report of each of them, as it would be sent.
    """

    def __init__(
        self, decide: DecideFunction = decide_by_structured_carriers, *, config: ClientConfig | None = None
    ) -> None:
        """Prepares a client that decides with `decide`; None is a sidecar that is away."""
        self.requests: list[PendingRequest] = []
        self.finishes: list[service_pb2.Finish] = []
        self._decide_alone = decide
        super().__init__(config or ClientConfig())

    def _make_transport(self) -> Transport:
        return _FakeTransport(self)

    def take_request(self, pending: PendingRequest) -> Decision | None:
        """Records a request and returns its decision."""
        self.requests.append(pending)
        return self._decide_alone(pending.facts, pending.engine)


class _FakeTransport(Transport):
    def __init__(self, client: FakeClient) -> None:
        self._client = client

    @property
    def stream_number(self) -> int:
        """Has no stream, so that every request is decided."""
        return 0

    def start(self) -> None:
        """Has nothing to connect to."""

    async def close(self) -> None:
        """Has nothing to disconnect."""

    def submit(self, pending: PendingRequest) -> str:
        decision = self._client.take_request(pending)
        pending.stream_number = 1
        if decision is None:
            return "fake-unavailable"
        pending.settle(decision)
        return ""

    def finish(self, pending: PendingRequest, finish: service_pb2.Finish) -> None:
        self._client.finishes.append(finish)


def attach_agent_session(request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
    """Returns a response that attaches `agent_context.session_id` and withholds the rank."""
    session_id = request.identity.agent_context.session_id
    if not session_id:
        return service_pb2.EnrichResponse(
            rank_directive=types_pb2.RANK_DIRECTIVE_FORWARD, source=types_pb2.IDENTITY_SOURCE_NONE
        )
    return service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id=session_id, affinity_key=session_id),
        rank_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        source=types_pb2.IDENTITY_SOURCE_AGENT_CONTEXT,
        source_detail="agent_context.session_id",
        placement=types_pb2.PLACEMENT_STATE_NONE,
        conversation_hash="in-process-sidecar",
        policy_revision=_REVISION,
    )


class InProcessSidecar:
    """A gRPC server in the test's own loop that speaks the stream of the contract.

    Attributes:
        requests: every request that arrived.
        finishes: every finish report that arrived.
    """

    def __init__(
        self,
        respond: Callable[[service_pb2.EnrichRequest], service_pb2.EnrichResponse] = attach_agent_session,
    ) -> None:
        """Prepares a server that responds to each request with `respond`."""
        self.requests: list[service_pb2.EnrichRequest] = []
        self.finishes: list[service_pb2.Finish] = []
        self._respond = respond
        self._folder = tempfile.TemporaryDirectory(prefix="routing-hints-")
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        """Where it listens, as `ClientConfig.target` takes it."""
        return f"unix://{Path(self._folder.name) / 'sidecar.sock'}"

    async def __aenter__(self) -> InProcessSidecar:
        server = grpc.aio.server()
        servicer: Any = _StreamServicer(self)
        service_pb2_grpc.add_RoutingHintsServiceServicer_to_server(servicer, server)
        server.add_insecure_port(self.target.replace("unix://", "unix:"))
        await server.start()
        self._server = server
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
        self._folder.cleanup()

    def reply(self, message: service_pb2.EnrichStreamRequest) -> service_pb2.EnrichStreamResponse:
        """Returns the responses to one message, and records it."""
        response = service_pb2.EnrichStreamResponse()
        if message.HasField("hello"):
            response.policy.revision = _REVISION
            response.policy.local_sources.extend(ClientPolicy().local_sources)  # type: ignore[arg-type]
        self.finishes.extend(message.finishes)
        for item in message.items:
            self.requests.append(item.request)
            response.results.add(seq=item.seq, response=self._respond(item.request))
        return response


class _StreamServicer(service_pb2_grpc.RoutingHintsServiceServicer):  # type: ignore[misc]
    def __init__(self, sidecar: InProcessSidecar) -> None:
        self._sidecar = sidecar

    async def EnrichStream(  # noqa: N802  the contract's name
        self, request_iterator: AsyncIterator[service_pb2.EnrichStreamRequest], context: object
    ) -> AsyncIterator[service_pb2.EnrichStreamResponse]:
        async for message in request_iterator:
            response = self._sidecar.reply(message)
            if response.HasField("policy") or response.results:
                yield response
