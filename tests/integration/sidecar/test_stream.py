"""EnrichStream: batches, errors inside of a stream, back-pressure, and the drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.messages import (
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_batch,
    make_request,
)
from tests.support.sidecar import SidecarServer, block_in_write, get_stats, sum_metric

WITHHOLD = types_pb2.RANK_DIRECTIVE_WITHHOLD
_make_pinned = partial(make_request, engine_instance=PINNING_ENGINE.instance_id)


async def test_the_first_response_is_the_policy_and_later_ones_do_not_repeat_it(
    stream: WorkerStream,
) -> None:
    policy = await stream.open()
    assert policy.local_sources == [1, 2, 3]
    assert policy.scope == service_pb2.ID_SCOPE_WEAK
    assert "x-session-id" in policy.identity_headers
    assert not policy.log_plain_ids
    await stream.call.write(make_batch(make_request()))
    assert not (await stream.call.read()).HasField("policy")


async def test_a_batch_gets_one_response_with_a_result_for_every_item(stream: WorkerStream) -> None:
    batch = make_batch(*[_make_pinned(f"conversation-{number}") for number in range(300)])
    batch.engines.append(PINNING_ENGINE)
    await stream.call.write(batch)
    results = (await stream.call.read()).results
    got = {result.seq: result.response.hints.conversation_id for result in results}
    assert got == {number + 1: f"conversation-{number}" for number in range(300)}
    assert {result.response.rank_directive for result in results} == {WITHHOLD}


async def test_a_bad_item_gets_its_own_error_and_the_stream_goes_on(stream: WorkerStream) -> None:
    await stream.open(PINNING_ENGINE)
    results = await stream.exchange(
        _make_pinned(),
        _make_pinned(hints=types_pb2.RoutingHints(dp_rank=4)),
        service_pb2.EnrichRequest(),
        _make_pinned(identity=types_pb2.Identity(conversation_id="x" * 16_385)),
        _make_pinned(),
    )
    assert [result.WhichOneof("outcome") for result in results] == [
        "response",
        "error",
        "error",
        "error",
        "response",
    ]
    errors = [result.error for result in results[1:4]]
    assert {error.code for error in errors} == {service_pb2.ERROR_CODE_INVALID_ARGUMENT}
    assert [error.field for error in errors] == ["hints.dp_rank", "phase", "identity.conversation_id"]
    assert [error.message for error in errors[:2]] == [
        "hints.dp_rank: must be less than engine.dp_size",
        "phase: must be set",
    ]
    assert len(await stream.enrich(_make_pinned())) == 1


async def test_a_stream_without_a_hello_is_served_as_of_an_unknown_worker(stream: WorkerStream) -> None:
    (decision,) = await stream.enrich(make_request())
    assert stream.policy is not None
    assert list(decision.notices) == ["adp-router-unknown"]


async def test_a_later_hello_is_ignored(stream: WorkerStream, admin: AdminStub) -> None:
    """Even one that would be refused as the first."""
    await stream.open()
    batch = make_batch(make_request())
    batch.hello.worker_id = "x" * 300
    await stream.call.write(batch)
    assert (await stream.call.read()).results[0].HasField("response")
    assert [shown.worker_id for shown in (await get_stats(admin)).streams] == ["w"]


async def test_a_stream_may_end_without_a_message(stream: WorkerStream) -> None:
    await stream.call.done_writing()
    assert await stream.call.read() == grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="x" * 257)),
            "hello.worker_id",
        ),
        (
            service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(client_version="x" * 257)),
            "hello.client_version",
        ),
        (
            service_pb2.EnrichStreamRequest(engines=[types_pb2.EngineProfile(version="x" * 257)]),
            "engines.version",
        ),
        (service_pb2.EnrichStreamRequest(engines=[types_pb2.EngineProfile()] * 65), "engines"),
        (service_pb2.EnrichStreamRequest(items=[service_pb2.EnrichItem()] * 4_097), "items"),
        (service_pb2.EnrichStreamRequest(finishes=[service_pb2.Finish()] * 4_097), "finishes"),
        (service_pb2.EnrichStreamRequest(dropped=[service_pb2.DroppedRequests()] * 257), "dropped"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_message_ends_its_stream_alone(
    hints: HintsStub, stream: WorkerStream, message: service_pb2.EnrichStreamRequest, field: str
) -> None:
    """Hello, engines and the size of a batch are of no item, so there is no item to refuse instead."""
    other = WorkerStream(hints)
    await other.open(PINNING_ENGINE)
    await stream.call.write(message)
    assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(await stream.call.details()).startswith(f"{field}: ")
    (decision,) = await other.enrich(_make_pinned())
    assert decision.rank_directive == WITHHOLD
    other.close()


async def _fill(stream: grpc.aio.StreamStreamCall, batches: int) -> None:
    """Writes batches without ever reading; waits for ever once the peer stops reading."""
    batch = make_batch(*[make_request("x" * 200)] * 1_000)
    for _ in range(batches):
        await stream.write(batch)


async def _wait_until_stalled(admin: AdminStub) -> float:
    """Returns the number of decisions once a hundred further calls see no new one.

    The loop that serves these calls is the one that would read on if it could.
    """
    decided, unchanged = -1.0, 0
    while unchanged < 100:
        now = await sum_metric(admin, "decisions")
        decided, unchanged = now, unchanged + 1 if now == decided else 0
    return decided


async def test_the_sidecar_stops_reading_from_a_client_that_never_reads(
    sidecar: SidecarServer, open_channel: OpenChannel
) -> None:
    """Others are served meanwhile."""
    batches = 200
    deaf, other = await open_channel(sidecar.target), await open_channel(sidecar.target)
    stream = HintsStub(deaf).EnrichStream()
    filling = asyncio.ensure_future(_fill(stream, batches))
    decided = await _wait_until_stalled(AdminStub(other))
    assert 0 < decided < batches * 1_000 / 2
    assert not filling.done()
    decision = await HintsStub(other).Enrich(make_request())
    assert decision.source_detail == "header:x-session-id"
    filling.cancel()
    stream.cancel()


async def test_a_drain_lets_the_batch_at_hand_be_read_and_refuses_new_streams(
    start_sidecar: Callable[[], Awaitable[SidecarServer]], open_channel: OpenChannel
) -> None:
    """Health changes first; single calls are served until the end."""
    server = await start_sidecar()
    slow, other = await open_channel(server.target), await open_channel(server.target)
    hints, admin = HintsStub(other), AdminStub(other)
    stream = HintsStub(slow).EnrichStream()
    await block_in_write(stream, admin)

    stopping = asyncio.ensure_future(server.app.stop(drain_timeout_s=30))
    await asyncio.sleep(0)
    reply = await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
    unread = await sum_metric(admin, "decisions")
    assert (await hints.Enrich(make_request())).decision_id
    assert await hints.EnrichStream().code() is grpc.StatusCode.UNAVAILABLE
    assert not stopping.done()

    read = 0
    while read < unread:
        read += len((await stream.read()).results)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stream.read()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    await stopping


async def test_a_drain_ends_an_idle_stream_and_a_watch_of_health(
    start_sidecar: Callable[[], Awaitable[SidecarServer]], open_channel: OpenChannel
) -> None:
    """Neither delays the stop; the watcher sees NOT_SERVING before its call ends."""
    server = await start_sidecar()
    channel = await open_channel(server.target)
    stream = WorkerStream(HintsStub(channel))
    await stream.open()
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    statuses = [(await watch.read()).status]
    # Far longer than the test may take: the drain must not be waited for to its deadline.
    await server.app.stop(drain_timeout_s=3_600)
    statuses.append((await watch.read()).status)
    assert statuses == [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    ]
    assert await watch.code() is grpc.StatusCode.UNAVAILABLE
    assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
