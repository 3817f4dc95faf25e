"""How much one caller may send: up to each limit it is answered; what exceeds it waits or is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarServer

_ENRICH = "/routing_hints.v1.RoutingHintsService/Enrich"
_MAX_CALLS = 1_024
_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_GOOD = service_pb2.EnrichRequest(
    phase=types_pb2.PHASE_PREFILL, identity=types_pb2.Identity(conversation_id="conv-7f3a")
)


@pytest.fixture
async def stub(sidecar: SidecarServer) -> AsyncIterator[Any]:
    """On a connection of its own."""
    async with grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 1)]) as channel:
        yield service_pb2_grpc.RoutingHintsServiceStub(channel)


async def _open_stream(stub: Any) -> Any:
    stream = stub.EnrichStream()
    await stream.write(service_pb2.EnrichStreamRequest(items=[service_pb2.EnrichItem(seq=1, request=_GOOD)]))
    response = await stream.read()
    assert len(response.results) == 1
    return stream


async def test_a_call_over_the_limit_waits_for_another_to_end(sidecar: SidecarServer, stub: Any) -> None:
    """The 1,025th call of a connection is not refused: it starts once one ends; other connections go on."""
    streams = [await _open_stream(stub) for _ in range(_MAX_CALLS)]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Enrich(_GOOD, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = asyncio.ensure_future(stub.Enrich(_GOOD))
    async with grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 2)]) as other:
        answer = await service_pb2_grpc.RoutingHintsServiceStub(other).Enrich(_GOOD)
        assert answer.source == types_pb2.IDENTITY_SOURCE_CONVERSATION_ID
    assert not waiting.done()
    streams.pop().cancel()
    assert (await waiting).source == types_pb2.IDENTITY_SOURCE_CONVERSATION_ID
    for stream in streams:
        stream.cancel()


@pytest.mark.parametrize(
    ("surplus", "code"),
    [(0, grpc.StatusCode.INVALID_ARGUMENT), (1, grpc.StatusCode.RESOURCE_EXHAUSTED)],
)
async def test_a_message_may_have_4_mib(sidecar: SidecarServer, surplus: int, code: grpc.StatusCode) -> None:
    """The last that fits reaches the sidecar, which finds its field over-long; a byte more does not."""
    request = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL)
    # The tag takes one byte and the length four.
    request.model = "x" * (_MAX_MESSAGE_BYTES - request.ByteSize() - 5 + surplus)
    data = request.SerializeToString()
    assert len(data) == _MAX_MESSAGE_BYTES + surplus
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        call: Any = channel.unary_unary(_ENRICH)
        assert await call(data).code() is code


@pytest.mark.parametrize(("size", "is_answered"), [(15 * 1024, True), (33 * 1024, False)])
async def test_metadata_may_have_16_kib(stub: Any, size: int, is_answered: bool) -> None:
    """Up to there a call is always answered, and over 32 KiB never; in between gRPC refuses at random."""
    call = stub.Enrich(_GOOD, metadata=(("x-header", "v" * size),))
    expected = grpc.StatusCode.OK if is_answered else grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await call.code() is expected


@pytest.mark.parametrize(("count", "is_answered"), [(256, True), (257, False)])
async def test_a_request_may_have_256_headers(stub: Any, count: int, is_answered: bool) -> None:
    """One more is an error that names the field."""
    headers = {f"x-header-{number}": "value" for number in range(count)}
    call = stub.Enrich(
        service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL, identity=types_pb2.Identity(headers=headers))
    )
    if is_answered:
        assert await call.code() is grpc.StatusCode.OK
    else:
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(await call.details()).startswith("identity.headers: ")
