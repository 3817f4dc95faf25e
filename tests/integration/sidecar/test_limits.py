"""How much one caller may send: up to each limit it is served; what exceeds it waits or is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.server.admin import MAX_SHOWN_STREAMS
from tests.support.messages import AdminStub, HintsStub, OpenChannel, WorkerStream, make_request
from tests.support.sidecar import SidecarServer, get_stats, sum_metric

_ENRICH = "/routing_hints.v1.RoutingHintsService/Enrich"
_MAX_CALLS = 1_024
_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_MAX_CARRIER_BYTES = 64 * 1024
_GOOD = make_request()


async def test_a_call_over_the_limit_of_a_connection_waits_for_another_to_end(
    sidecar: SidecarServer, hints: HintsStub, open_channel: OpenChannel
) -> None:
    """It is not refused, and other connections are served meanwhile."""
    streams = []
    for _ in range(_MAX_CALLS):
        streams.append(WorkerStream(hints))
        await streams[-1].enrich(_GOOD)
    waiting = asyncio.ensure_future(hints.Enrich(_GOOD))
    other = await open_channel(sidecar.target)
    for _ in range(100):
        await HintsStub(other).Enrich(_GOOD)
    assert not waiting.done()
    stats = await get_stats(AdminStub(other))
    assert len(stats.streams) == MAX_SHOWN_STREAMS
    assert await sum_metric(AdminStub(other), "open_streams") == _MAX_CALLS
    streams.pop().close()
    assert (await waiting).source_detail == "header:x-session-id"
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(
    ("surplus", "code"),
    [(0, grpc.StatusCode.INVALID_ARGUMENT), (1, grpc.StatusCode.RESOURCE_EXHAUSTED)],
)
async def test_a_message_may_have_4_mib(
    channel: grpc.aio.Channel, surplus: int, code: grpc.StatusCode
) -> None:
    """The last that fits reaches the sidecar, which finds its field over-long; a byte more does not."""
    request = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL)
    # The tag takes one byte and the length four.
    request.model = "x" * (_MAX_MESSAGE_BYTES - request.ByteSize() - 5 + surplus)
    data = request.SerializeToString()
    assert len(data) == _MAX_MESSAGE_BYTES + surplus
    call: Any = channel.unary_unary(_ENRICH)
    assert await call(data).code() is code


@pytest.mark.parametrize(("size", "is_served"), [(15 * 1024, True), (33 * 1024, False)])
async def test_metadata_of_a_call_may_have_16_kib(hints: HintsStub, size: int, is_served: bool) -> None:
    """Up to there a call is always served, and over 32 KiB never; in between gRPC refuses at random."""
    call = hints.Enrich(_GOOD, metadata=(("x-header", "v" * size),))
    expected = grpc.StatusCode.OK if is_served else grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await call.code() is expected


@pytest.mark.parametrize(("count", "is_served"), [(256, True), (257, False)])
async def test_a_request_may_have_256_headers(hints: HintsStub, count: int, is_served: bool) -> None:
    headers = {f"x-header-{number}": "value" for number in range(count)}
    call = hints.Enrich(make_request(identity=types_pb2.Identity(headers=headers)))
    await _check(call, "" if is_served else "identity.headers")


@pytest.mark.parametrize(("surplus", "is_served"), [(0, True), (1, False)])
async def test_the_carriers_of_a_request_may_have_64_kib_in_all(
    hints: HintsStub, surplus: int, is_served: bool
) -> None:
    """However they are spread over its fields."""
    identity = types_pb2.Identity(
        headers={"x-session-id": "conv-7f3a", "x-header": "x" * 16_000},
        body={"metadata.user_id": "x" * 16_000},
        annotations=["x" * 16_000],
        metadata={"conversation-id": "x" * 16_000},
    )
    identity.conversation_id = "x" * 1_000
    missing = _MAX_CARRIER_BYTES + surplus - identity.ByteSize()
    identity.conversation_id += "x" * missing
    assert identity.ByteSize() == _MAX_CARRIER_BYTES + surplus
    await _check(hints.Enrich(make_request(identity=identity)), "" if is_served else "identity")


async def _check(call: Any, refused_field: str) -> None:
    """Expects a response, or an error that names a field."""
    if refused_field:
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(await call.details()).startswith(f"{refused_field}: ")
    else:
        assert await call.code() is grpc.StatusCode.OK
