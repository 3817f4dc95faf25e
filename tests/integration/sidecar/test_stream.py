"""EnrichStream: batches, errors inside of a stream, back-pressure, and the drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarServer, block_in_write, count_decisions

_PREFILL = types_pb2.PHASE_PREFILL
_HELLO = service_pb2.StreamHello(
    worker_id="w",
    engine=types_pb2.EngineProfile(
        dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
        adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
        dp_size=4,
    ),
)


def _item(seq: int, session_id: str = "conv-7f3a", **fields: object) -> service_pb2.EnrichItem:
    identity = types_pb2.Identity(conversation_id=session_id)
    request = service_pb2.EnrichRequest(phase=_PREFILL, identity=identity, **fields)  # type: ignore[arg-type]
    return service_pb2.EnrichItem(seq=seq, request=request)


def _batch(*items: service_pb2.EnrichItem) -> service_pb2.EnrichStreamRequest:
    return service_pb2.EnrichStreamRequest(items=items)


@pytest.fixture
async def channel(sidecar: SidecarServer) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a sidecar with the embedded policy."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> service_pb2_grpc.RoutingHintsServiceStub:
    """The request path."""
    return service_pb2_grpc.RoutingHintsServiceStub(channel)


async def test_the_policy_comes_at_once(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """The first response answers the hello alone, and only it holds the policy."""
    stream = stub.EnrichStream()
    await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO))
    first = await stream.read()
    assert list(first.results) == []
    assert first.policy.local_sources == [1, 2, 3]
    assert first.policy.scope == service_pb2.ID_SCOPE_WEAK
    assert "x-session-id" in first.policy.identity_headers
    assert not first.policy.log_plain_ids
    await stream.write(_batch(_item(1)))
    assert not (await stream.read()).HasField("policy")
    stream.cancel()


async def test_a_batch_is_answered_in_one_response(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """Every item has its result, decided as Enrich does, with the hello's engine."""
    stream = stub.EnrichStream()
    items = [_item(seq, f"conversation-{seq}") for seq in range(300)]
    await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO, items=items))
    response = await stream.read()
    got = {result.seq: result.response.hints.conversation_id for result in response.results}
    assert got == {seq: f"conversation-{seq}" for seq in range(300)}
    assert {result.response.rank_directive for result in response.results} == {2}
    stream.cancel()


async def test_a_bad_item_has_its_own_error(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """The field is named, the other items are answered, and the stream goes on."""
    stream = stub.EnrichStream()
    bad_rank = _item(2, hints=types_pb2.RoutingHints(dp_rank=4))
    items = [_item(1), bad_rank, service_pb2.EnrichItem(seq=3), _item(4, "x" * 16_385), _item(5)]
    await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO, items=items))
    results = {result.seq: result for result in (await stream.read()).results}
    assert {seq for seq, result in results.items() if result.HasField("response")} == {1, 5}
    errors = {seq: (results[seq].error.code, results[seq].error.field) for seq in (2, 3, 4)}
    assert errors == {2: (3, "hints.dp_rank"), 3: (3, "phase"), 4: (3, "identity.conversation_id")}
    assert results[3].error.message == "phase: must be set"
    await stream.write(_batch(_item(6)))
    assert [result.seq for result in (await stream.read()).results] == [6]
    stream.cancel()


async def test_a_stream_without_a_hello_is_served(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """Worker and engine are then unknown, and the policy is sent all the same."""
    stream = stub.EnrichStream()
    await stream.write(_batch(_item(1)))
    response = await stream.read()
    assert response.HasField("policy")
    assert list(response.results[0].response.notices) == ["adp-router-unknown"]
    stream.cancel()


async def test_a_later_hello_is_ignored(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """The engine of the first message stays."""
    stream = stub.EnrichStream()
    await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO))
    await stream.read()
    later = service_pb2.StreamHello(worker_id="x" * 300)
    await stream.write(service_pb2.EnrichStreamRequest(hello=later, items=[_item(1)]))
    assert (await stream.read()).results[0].response.rank_directive == types_pb2.RANK_DIRECTIVE_WITHHOLD
    stream.cancel()


async def test_a_stream_may_just_end(stub: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """Ending without a word is no error."""
    stream = stub.EnrichStream()
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="x" * 257)),
            "hello.worker_id",
        ),
        (service_pb2.EnrichStreamRequest(items=[service_pb2.EnrichItem()] * 4_097), "items"),
        (service_pb2.EnrichStreamRequest(finishes=[service_pb2.Finish()] * 4_097), "finishes"),
    ],
)
async def test_a_bad_message_ends_its_stream(
    stub: service_pb2_grpc.RoutingHintsServiceStub, message: service_pb2.EnrichStreamRequest, field: str
) -> None:
    """A bad hello and an oversized batch end the stream with the field named."""
    stream = stub.EnrichStream()
    await stream.write(message)
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(await stream.details()).startswith(f"{field}: ")


async def _fill(stream: grpc.aio.StreamStreamCall, batches: int, sent: list[int]) -> None:
    """Writes batches without ever reading; blocks when the peer stops to read."""
    items = [_item(seq, "x" * 200) for seq in range(1_000)]
    for number in range(batches):
        await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO, items=items))
        sent.append(number)


async def _wait_until_stalled(channel: grpc.aio.Channel) -> int:
    """Returns the number of decisions once a hundred further calls see no new one."""
    count, unchanged = -1, 0
    while unchanged < 100:
        now = await count_decisions(channel)
        count, unchanged = now, unchanged + 1 if now == count else 0
    return count


async def test_a_client_that_never_reads_is_not_read_from(sidecar: SidecarServer) -> None:
    """The sidecar stops to decide for it, while another caller is served."""
    batches = 200
    sent: list[int] = []
    async with (
        grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 1)]) as deaf,
        grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 2)]) as other,
    ):
        stream = service_pb2_grpc.RoutingHintsServiceStub(deaf).EnrichStream()
        filling = asyncio.ensure_future(_fill(stream, batches, sent))
        decided = await _wait_until_stalled(other)
        assert 0 < decided < batches * 1_000 / 2
        assert not filling.done()
        answer = await service_pb2_grpc.RoutingHintsServiceStub(other).Enrich(_item(1).request)
        assert answer.source == types_pb2.IDENTITY_SOURCE_CONVERSATION_ID
        filling.cancel()
        stream.cancel()


async def test_a_drain_answers_the_batch_at_hand(
    start_sidecar: Callable[[], Awaitable[SidecarServer]],
) -> None:
    """Health flips first; the blocked stream gets all its answers, then UNAVAILABLE; new ones are refused."""
    server = await start_sidecar()
    async with (
        grpc.aio.insecure_channel(server.target, options=[("grpc.channel_id", 1)]) as slow,
        grpc.aio.insecure_channel(server.target, options=[("grpc.channel_id", 2)]) as other,
    ):
        stream = service_pb2_grpc.RoutingHintsServiceStub(slow).EnrichStream()
        decided = await block_in_write(stream, other)

        stopping = asyncio.ensure_future(server.app.stop(drain_timeout_s=30))
        await asyncio.sleep(0)
        health = health_pb2_grpc.HealthStub(other)
        reply = await health.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        stub = service_pb2_grpc.RoutingHintsServiceStub(other)
        assert (await stub.Enrich(_item(1).request)).decision_id
        refused = stub.EnrichStream()
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()

        answered = 0
        while answered < decided:
            answered += len((await stream.read()).results)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_a_drain_ends_an_idle_stream_and_a_watch(
    start_sidecar: Callable[[], Awaitable[SidecarServer]],
) -> None:
    """Neither delays the stop; the watcher sees NOT_SERVING before its call ends."""
    server = await start_sidecar()
    async with grpc.aio.insecure_channel(server.target) as channel:
        stream = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()
        await stream.write(service_pb2.EnrichStreamRequest(hello=_HELLO))
        await stream.read()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        statuses = [(await watch.read()).status]
        await asyncio.wait_for(server.app.stop(drain_timeout_s=30), timeout=5)
        statuses.append((await watch.read()).status)
        assert statuses == [
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        ]
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
