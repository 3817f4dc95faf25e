"""A server on a real socket that speaks the stream of the contract as badly as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import build_profile, build_request
from worker_client import ClientConfig, Phase, Plan, RoutingHintClient

ENGINE = build_profile()

LOCAL_SOURCES = (
    types_pb2.IDENTITY_SOURCE_CONVERSATION_ID,
    types_pb2.IDENTITY_SOURCE_AGENT_CONTEXT,
    types_pb2.IDENTITY_SOURCE_SESSION_CONTROL,
)


def build_policy(revision: str = "r1", **fields: Any) -> service_pb2.ClientPolicy:
    """The policy of a sidecar whose three structured carriers may be resolved alone."""
    return service_pb2.ClientPolicy(revision=revision, local_sources=LOCAL_SOURCES, **fields)


def build_answer(
    item: service_pb2.EnrichItem, revision: str = "r1", **fields: Any
) -> service_pb2.EnrichResult:
    """Attaches `sidecar:` and the session id, so that nobody else can have said it."""
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


@dataclass
class Stream:
    """One stream, from the sidecar's side."""

    sidecar: ScriptedSidecar
    context: Any

    async def read(self) -> service_pb2.EnrichStreamRequest | None:
        """The next message, recorded; None at the end."""
        message = await self.context.read()
        if message is grpc.aio.EOF:
            return None
        await self.sidecar.record(message)
        return message

    async def write(
        self, *results: service_pb2.EnrichResult, policy: service_pb2.ClientPolicy | None = None
    ) -> None:
        """Sends one message."""
        await self.context.write(service_pb2.EnrichStreamResponse(policy=policy, results=results))

    async def greet(self) -> None:
        """Reads hello and sends the policy."""
        await self.read()
        await self.write(policy=build_policy())

    async def answer_all(self) -> None:
        """Answers every item until the client ends the stream."""
        while message := await self.read():
            if message.items:
                await self.write(*map(build_answer, message.items))


Converse = Callable[[Stream], Awaitable[None]]


async def behave(stream: Stream) -> None:
    """What a good sidecar does."""
    await stream.greet()
    await stream.answer_all()


@dataclass
class ScriptedSidecar:
    """The server.

    Attributes:
        converse: handles each stream; may be changed between streams.
        messages: every message that arrived.
        n_streams: streams opened so far.
    """

    target: str
    converse: Converse
    messages: list[service_pb2.EnrichStreamRequest] = field(default_factory=list)
    n_streams: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def items(self) -> list[service_pb2.EnrichItem]:
        """Every item that arrived."""
        return [item for message in self.messages for item in message.items]

    @property
    def finishes(self) -> list[service_pb2.Finish]:
        """Every end of a request that arrived."""
        return [finish for message in self.messages for finish in message.finishes]

    @property
    def batch_sizes(self) -> list[int]:
        """The number of items of each message that had some."""
        return [len(message.items) for message in self.messages if message.items]

    async def record(self, message: service_pb2.EnrichStreamRequest) -> None:
        """Takes note of a message."""
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Returns once messages have arrived that make `holds` true."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def EnrichStream(self, _iterator: object, context: Any) -> None:  # noqa: N802  the contract's name
        """Serves one stream."""
        self.n_streams += 1
        await self.converse(Stream(self, context))


@asynccontextmanager
async def run_sidecar(path: Path, converse: Converse = behave) -> AsyncIterator[ScriptedSidecar]:
    """Serves on a socket at `path` until the block is left; open streams are cut."""
    sidecar = ScriptedSidecar(f"unix://{path}", converse)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        sidecar.EnrichStream,
        request_deserializer=service_pb2.EnrichStreamRequest.FromString,
        response_serializer=service_pb2.EnrichStreamResponse.SerializeToString,
    )
    name = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"EnrichStream": handler}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield sidecar
    finally:
        await server.stop(grace=None)


@asynccontextmanager
async def connect(
    path: Path, converse: Converse = behave, **config: Any
) -> AsyncIterator[tuple[ScriptedSidecar, RoutingHintClient]]:
    """Serves as `run_sidecar` does, with a client of that configuration, patient unless it says otherwise."""
    config = {"known_timeout_s": 30.0, "unknown_timeout_s": 30.0, **config}
    async with (
        run_sidecar(path, converse) as sidecar,
        RoutingHintClient(ClientConfig(sidecar.target, **config)) as client,
    ):
        yield sidecar, client


async def ask(
    client: RoutingHintClient, session_id: str | None = "conversation-0001", **options: Any
) -> Plan:
    """One prefill request with a router's rank, ended at once."""
    request = build_request(session_id, rank=2)
    async with client.plan(request, phase=Phase.PREFILL, engine=ENGINE, **options) as plan:
        plan.engine_kwargs()
        return plan


async def ask_until(client: RoutingHintClient, reason: str) -> Plan:
    """Asks again and again until the client gives that reason; the pause only spares the processor."""
    while True:
        plan = await ask(client)
        if plan.reason == reason:
            return plan
        await asyncio.sleep(0.01)
