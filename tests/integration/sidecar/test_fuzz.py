"""Whatever a peer puts on the wire, the sidecar answers or refuses, and nothing breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from itertools import count

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2
from tests.support.corpus import list_questions, spoiled
from tests.support.sidecar import SidecarServer

SERVICE = f"/{service_pb2.DESCRIPTOR.services_by_name['RoutingHintsService'].full_name}"
# One sidecar for all examples: what an earlier one left behind is part of the test.
one_sidecar = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
async def channel(sidecar: SidecarServer) -> AsyncIterator[grpc.aio.Channel]:
    """The peer's channel; in the end the sidecar must know of no defect."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        yield channel
        admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        stats = await admin.GetStats(admin_pb2.GetStatsRequest())
        assert "defects" not in {counter.name for counter in stats.counters}


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A message as a client sends it, of captured requests and of ends of some."""
    numbers = count(1)
    message = service_pb2.EnrichStreamRequest()
    if draw(st.booleans()):
        message.hello.worker_id = "worker"
    for question in draw(st.lists(st.sampled_from(list_questions()), max_size=4)):
        message.items.add(seq=next(numbers), request=question)
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
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return None


@one_sidecar
@given(messages=st.lists(spoiled(batches()), min_size=1, max_size=4))
async def test_spoiled_messages_are_answered_or_refused(
    channel: grpc.aio.Channel, messages: list[bytes]
) -> None:
    """Each item is answered once and in order, until what is no message ends the stream."""
    stream: grpc.aio.StreamStreamCall = channel.stream_stream(f"{SERVICE}/EnrichStream")()
    for number, data in enumerate(messages):
        message = parse(data)
        await stream.write(data)
        if message is None:
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            return
        if message.items or number == 0:
            reply = await receive(stream.read())
            if reply is None:
                return
            answer = service_pb2.EnrichStreamResponse.FromString(reply)
            assert [result.seq for result in answer.results] == [item.seq for item in message.items]
            assert all(result.WhichOneof("outcome") for result in answer.results)
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


@one_sidecar
@given(question=spoiled(st.sampled_from(list_questions()).map(service_pb2.EnrichRequest.SerializeToString)))
@pytest.mark.parametrize(
    ("method", "response"),
    [("Enrich", service_pb2.EnrichResponse), ("Explain", service_pb2.ExplainResponse)],
)
async def test_spoiled_question_gets_an_answer_or_a_status(
    channel: grpc.aio.Channel, method: str, response: type[Message], question: bytes
) -> None:
    """A unary call ends with a response or with INVALID_ARGUMENT."""
    reply = await receive(channel.unary_unary(f"{SERVICE}/{method}")(question))
    assert reply is None or response.FromString(reply).IsInitialized()


def test_corpus_holds_every_capture() -> None:
    """The fuzzing begins with real requests, identities and ranks among them."""
    questions = list_questions()
    assert len(questions) > 100
    assert sum(1 for question in questions if question.identity.HasField("agent_context")) > 50
    assert sum(1 for question in questions if question.hints.HasField("dp_rank")) > 20
