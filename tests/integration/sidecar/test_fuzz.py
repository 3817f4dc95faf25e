"""Whatever a peer puts on the wire, the sidecar responds or refuses, and nothing breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from itertools import count

import grpc.aio
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2
from tests.support.corpus import list_requests, spoiled
from tests.support.messages import BALANCING_ENGINE, PINNING_ENGINE, AdminStub
from tests.support.sidecar import sum_metric

SERVICE = f"/{service_pb2.DESCRIPTOR.services_by_name['RoutingHintsService'].full_name}"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
ENGINES = (PINNING_ENGINE, BALANCING_ENGINE)
# One sidecar for all examples: what an earlier one left behind is part of the test.
one_sidecar = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
async def internal_errors_stay_zero(admin: AdminStub) -> AsyncIterator[None]:
    yield
    assert await sum_metric(admin, "internal_errors") == 0


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A message as a client sends it, of captured requests, of engines and of some finish reports."""
    numbers = count(1)
    message = service_pb2.EnrichStreamRequest()
    if draw(st.booleans()):
        message.hello.worker_id = "worker"
        message.engines.extend(draw(st.lists(st.sampled_from(ENGINES), max_size=3)))
    for request in draw(st.lists(st.sampled_from(list_requests()), max_size=4)):
        item = message.items.add(seq=next(numbers), request=request)
        if draw(st.booleans()):
            item.request.ClearField("engine")
            item.request.engine_instance = draw(st.sampled_from(ENGINES)).instance_id
    for seq in draw(st.lists(st.integers(0, 9), max_size=3)):
        message.finishes.add(seq=seq, request_id="r", phase=1, outcome=1, observed_dp_rank=2)
    return message.SerializeToString()


def parse(data: bytes) -> service_pb2.EnrichStreamRequest | None:
    """The message that the bytes hold, if they hold one."""
    try:
        return service_pb2.EnrichStreamRequest.FromString(data)
    except (DecodeError, ValueError):
        return None


async def receive(reply: Awaitable[bytes]) -> bytes | None:
    """The reply, or None where the sidecar refused; fails on any other status."""
    try:
        return await reply
    except grpc.aio.AioRpcError as error:
        if error.code() is not INVALID:
            raise
        return None


@one_sidecar
@given(messages=st.lists(spoiled(batches()), min_size=1, max_size=4))
async def test_every_item_of_spoiled_messages_gets_one_result_until_the_stream_is_refused(
    channel: grpc.aio.Channel, messages: list[bytes]
) -> None:
    stream: grpc.aio.StreamStreamCall = channel.stream_stream(f"{SERVICE}/EnrichStream")()
    for number, data in enumerate(messages):
        message = parse(data)
        try:
            await stream.write(data)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            assert await stream.code() is INVALID  # for the message before, to which nothing responds
            return
        if message is None:
            assert await stream.code() is INVALID
            return
        if message.items or number == 0:
            reply = await receive(stream.read())
            if reply is None or reply is grpc.aio.EOF:
                assert await stream.code() is INVALID
                return
            response = service_pb2.EnrichStreamResponse.FromString(reply)
            assert [result.seq for result in response.results] == [item.seq for item in message.items]
            assert all(result.WhichOneof("outcome") for result in response.results)
    await stream.done_writing()
    has_unanswered_engines = message is not None and message.engines and not message.items
    assert await stream.code() in {grpc.StatusCode.OK, INVALID if has_unanswered_engines else None}


@one_sidecar
@given(request_=spoiled(st.sampled_from(list_requests()).map(service_pb2.EnrichRequest.SerializeToString)))
@pytest.mark.parametrize(
    ("method", "response"),
    [("Enrich", service_pb2.EnrichResponse), ("Explain", service_pb2.ExplainResponse)],
)
async def test_a_spoiled_request_gets_a_response_or_invalid_argument(
    channel: grpc.aio.Channel, method: str, response: type[Message], request_: bytes
) -> None:
    reply = await receive(channel.unary_unary(f"{SERVICE}/{method}")(request_))
    assert reply is None or response.FromString(reply).IsInitialized()


def test_the_corpus_has_every_capture_identities_and_ranks_among_them() -> None:
    requests = list_requests()
    assert len(requests) > 100
    assert sum(1 for request in requests if request.identity.HasField("agent_context")) > 50
    assert sum(1 for request in requests if request.hints.HasField("dp_rank")) > 20
