"""A server on a real socket that speaks the stream of the contract as badly as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import ENGINE, build_request
from worker_client import ClientConfig, EngineSource, Phase, Plan, RoutingHintClient

T = TypeVar("T")

PATIENT_S = 30.0
"""A deadline of a client that no test waits out."""
LIMIT_S = 20.0
"""How long a test waits for anything before it fails and names what is missing."""
_PAUSE_S = 0.01

LOCAL_SOURCES = (
    types_pb2.IDENTITY_SOURCE_CONVERSATION_ID,
    types_pb2.IDENTITY_SOURCE_AGENT_CONTEXT,
    types_pb2.IDENTITY_SOURCE_SESSION_CONTROL,
)


def build_policy(revision: str = "r1", **fields: Any) -> service_pb2.ClientPolicy:
    """The policy of a sidecar whose three structured carriers may be resolved alone."""
    return service_pb2.ClientPolicy(revision=revision, local_sources=LOCAL_SOURCES, **fields)


def build_result(
    item: service_pb2.EnrichItem, revision: str = "r1", **fields: Any
) -> service_pb2.EnrichResult:
    """A decision that attaches `sidecar:` and the session id, as nobody else decides."""
    session_id = item.request.identity.agent_context.session_id
    response = service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id=f"sidecar:{session_id}"),
        rank_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        source=types_pb2.IDENTITY_SOURCE_AGENT_CONTEXT,
        decision_id=f"d-{item.seq}",
        conversation_hash="0123456789abcdef",
        policy_revision=revision,
        **fields,
    )
    return service_pb2.EnrichResult(seq=item.seq, response=response)


def build_refusal(
    item: service_pb2.EnrichItem,
    refused_field: str,
    code: service_pb2.ErrorCode = service_pb2.ERROR_CODE_INVALID_ARGUMENT,
) -> service_pb2.EnrichResult:
    """The result of an item whose field breaks its range."""
    error = service_pb2.EnrichError(code=code, field=refused_field, message=f"{refused_field}: is bad")
    return service_pb2.EnrichResult(seq=item.seq, error=error)


@dataclass(eq=False)
class Stream:
    """One stream, from the sidecar's side.

    Attributes:
        messages: every message that arrived on it.
    """

    sidecar: ScriptedSidecar
    context: Any
    messages: list[service_pb2.EnrichStreamRequest] = field(default_factory=list)

    async def read(self) -> service_pb2.EnrichStreamRequest | None:
        """The next message, recorded; None at the end."""
        read = await self.context.read()
        if read is grpc.aio.EOF:
            return None
        message: service_pb2.EnrichStreamRequest = read
        await self.sidecar.record(self, message)
        return message

    async def read_items(self) -> list[service_pb2.EnrichItem]:
        """The items of the next message that has some; none at the end."""
        while message := await self.read():
            if message.items:
                return list(message.items)
        return []

    async def write(
        self, *results: service_pb2.EnrichResult, policy: service_pb2.ClientPolicy | None = None
    ) -> None:
        """Sends one message."""
        await self.context.write(service_pb2.EnrichStreamResponse(policy=policy, results=results))

    async def greet(self, policy: service_pb2.ClientPolicy | None = None) -> None:
        """Reads hello and sends the policy."""
        await self.read()
        await self.write(policy=policy or build_policy())

    async def respond_to_all(self) -> None:
        """Decides about every item until the client ends the stream."""
        while items := await self.read_items():
            await self.write(*map(build_result, items))


Converse = Callable[[Stream], Awaitable[None]]


async def behave(stream: Stream) -> None:
    """What a good sidecar does."""
    await stream.greet()
    await stream.respond_to_all()


@dataclass
class ScriptedSidecar:
    """The server.

    Attributes:
        converse: handles each stream; may be changed between streams.
        streams: every stream that was opened.
        messages: every message that arrived.
    """

    target: str
    converse: Converse
    streams: list[Stream] = field(default_factory=list)
    messages: list[service_pb2.EnrichStreamRequest] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def items(self) -> list[service_pb2.EnrichItem]:
        """Every item that arrived."""
        return [item for message in self.messages for item in message.items]

    @property
    def session_ids(self) -> list[str]:
        """The session of every item that arrived."""
        return [item.request.identity.agent_context.session_id for item in self.items]

    @property
    def finishes(self) -> list[service_pb2.Finish]:
        """Every finish report that arrived."""
        return [finish for message in self.messages for finish in message.finishes]

    @property
    def batch_sizes(self) -> list[int]:
        """The number of items of each message that had some."""
        return [len(message.items) for message in self.messages if message.items]

    async def record(self, stream: Stream, message: service_pb2.EnrichStreamRequest) -> None:
        """Takes note of a message."""
        async with self._changed:
            stream.messages.append(message)
            self.messages.append(message)
            self._changed.notify_all()

    async def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        """Returns once messages have arrived that make `holds` true."""
        async with self._changed:
            await limit(what, self._changed.wait_for(holds))

    async def EnrichStream(self, _iterator: object, context: Any) -> None:  # noqa: N802  the contract's name
        """Serves one stream."""
        stream = Stream(self, context)
        self.streams.append(stream)
        await self.converse(stream)


@asynccontextmanager
async def run_sidecar(path: Path, converse: Converse = behave) -> AsyncIterator[ScriptedSidecar]:
    """Serves on a socket at `path` until the block is left; open streams are cut."""
    sidecar = ScriptedSidecar(f"unix://{path}", converse)
    handler = grpc.stream_stream_rpc_method_handler(
        sidecar.EnrichStream,
        request_deserializer=service_pb2.EnrichStreamRequest.FromString,
        response_serializer=service_pb2.EnrichStreamResponse.SerializeToString,
    )
    async with run_server(path, {"EnrichStream": handler}):
        yield sidecar


@asynccontextmanager
async def run_server(path: Path, handlers: dict[str, Any]) -> AsyncIterator[None]:
    """Serves these methods of the contract's service, and no others, until the block is left."""
    name = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"].full_name
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)


@asynccontextmanager
async def connect(
    path: Path, converse: Converse = behave, **config: Any
) -> AsyncIterator[tuple[ScriptedSidecar, RoutingHintClient]]:
    """Serves as `run_sidecar` does, with a client of that configuration, patient unless it says otherwise."""
    config = {"known_timeout_s": PATIENT_S, "unknown_timeout_s": PATIENT_S, **config}
    async with (
        run_sidecar(path, converse) as sidecar,
        RoutingHintClient(ClientConfig(sidecar.target, **config)) as client,
    ):
        yield sidecar, client


async def request_plan(
    client: RoutingHintClient,
    session_id: str | None = "conversation-0001",
    *,
    engine: EngineSource = ENGINE,
    **options: Any,
) -> Plan:
    """The plan of one prefill request with a router's rank, ended at once."""
    request = build_request(session_id, rank=2)
    async with client.plan(request, phase=Phase.PREFILL, engine=engine, **options) as plan:
        plan.engine_kwargs()
        return plan


async def plan_until(client: RoutingHintClient, reason: str) -> Plan:
    """Requests plans until one has that reason; returns it."""
    return await poll(
        f"a plan with reason {reason!r}",
        lambda: request_plan(client),
        lambda plan: plan.reason == reason,
        lambda plan: plan.reason,
    )


async def poll(
    what: str,
    make: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool],
    describe: Callable[[T], object] = lambda made: made,
) -> T:
    """Makes something again and again until it is as wanted; the pause only spares the processor."""
    last = "none"

    async def make_until() -> T:
        nonlocal last
        while not holds(made := await make()):
            last = repr(describe(made))
            await asyncio.sleep(_PAUSE_S)
        return made

    return await limit(lambda: f"{what}; the last one: {last}", make_until())


async def limit(what: str | Callable[[], str], awaited: Awaitable[T]) -> T:
    """Awaits something; a failure names what did not come."""
    try:
        return await asyncio.wait_for(awaited, LIMIT_S)
    except asyncio.TimeoutError:
        missing = what if isinstance(what, str) else what()
        raise AssertionError(f"waited {LIMIT_S:g} s in vain for {missing}") from None
