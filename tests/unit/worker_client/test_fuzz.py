"""Whatever a sidecar puts on the wire, the client takes it or leaves it, and the engine call is good."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from examples.fake_engine import CONVERSATION_PARAMS, DISAGGREGATED_PARAMS, RANK_ONLY
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from tests.support.builders import build_pending, build_profile, build_request
from tests.support.corpus import spoiled
from tests.support.scripted_sidecar import limit
from worker_client import ClientConfig, Decision, EngineDialect, Phase, RankDirective, _codec, _metrics, _stub
from worker_client._model import ClientPolicy
from worker_client._once_logger import OnceLogger
from worker_client._transport import Transport
from worker_client.testing import FakeClient

RELEASES = {
    EngineDialect.RANK_ONLY: RANK_ONLY,
    EngineDialect.DISAGGREGATED_PARAMS: DISAGGREGATED_PARAMS,
    EngineDialect.CONVERSATION_PARAMS: CONVERSATION_PARAMS,
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 2**31 - 1)


@st.composite
def responses(draw: st.DrawFn) -> service_pb2.EnrichResponse:
    """Any response that the contract's types allow."""
    fields: dict[str, Any] = {
        "rank_directive": draw(st.one_of(st.integers(0, 4), numbers)),
        "source": draw(numbers),
        "source_detail": draw(texts),
        "placement": draw(numbers),
        "decision_id": draw(texts),
        "conversation_hash": draw(texts),
        "policy_revision": draw(texts),
        "notices": draw(st.lists(texts, max_size=3)),
    }
    response = service_pb2.EnrichResponse(**fields)
    if draw(st.booleans()):
        response.hints.conversation_id = draw(texts)
    if draw(st.booleans()):
        response.hints.affinity_key = draw(texts)
    if draw(st.booleans()):
        response.hints.dp_rank = draw(st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)))
    return response


@st.composite
def stream_messages(draw: st.DrawFn) -> bytes:
    """A message of a sidecar to a client that sent items 1 to 3."""
    message = service_pb2.EnrichStreamResponse()
    if draw(st.booleans()):
        message.policy.revision = draw(texts)
        message.policy.scope = draw(numbers)  # type: ignore[assignment]
        message.policy.local_sources.extend(draw(st.lists(numbers, max_size=4)))  # type: ignore[arg-type]
        message.policy.identity_headers.extend(draw(st.lists(texts, max_size=4)))
    for response in draw(st.lists(responses(), max_size=3)):
        result = message.results.add(seq=draw(st.integers(0, 4)))
        if draw(st.booleans()):
            result.response.CopyFrom(response)
        else:
            result.error.field = draw(texts)
    return message.SerializeToString()


class FakeCall:
    """A stream on which a test sends what it puts into `incoming`."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.items: list[service_pb2.EnrichItem] = []
        self.is_sent = asyncio.Event()
        self.is_read = asyncio.Event()
        """Set once everything that was put was taken."""

    async def write(self, request: service_pb2.EnrichStreamRequest) -> None:
        self.items.extend(request.items)
        if self.items:
            self.is_sent.set()

    async def read(self) -> Any:
        if self.incoming.empty():
            self.is_read.set()
        return await self.incoming.get()

    async def send(self, *messages: service_pb2.EnrichStreamResponse) -> None:
        for message in messages:
            self.is_read.clear()
            self.incoming.put_nowait(message)
        await limit("the client to read what was sent", self.is_read.wait())

    async def done_writing(self) -> None:
        self.incoming.put_nowait(grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    def cancel(self) -> bool:
        return True


@given(st.lists(spoiled(stream_messages()), min_size=1, max_size=3))
async def test_no_message_breaks_the_reader_and_a_request_gets_the_result_of_its_own_number_alone(
    messages: list[bytes],
) -> None:
    call = FakeCall()
    store = MetricStore(_metrics.TABLE)
    transport = Transport(
        ClientConfig(),
        store,
        OnceLogger(),
        get_policy=ClientPolicy,
        on_policy=lambda policy: None,
        on_decision=lambda pending, decision, generation: None,
        on_ended=lambda conversation_hash: None,
    )
    requests = [build_pending() for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stub, "open_stream", lambda channel: call)
        transport.start()
        assert [transport.submit(pending) for pending in requests] == [""] * 3
        await call.send(service_pb2.EnrichStreamResponse(policy=service_pb2.ClientPolicy()))
        await limit("the requests", call.is_sent.wait())
        readable = [message for data in messages if (message := parse(data)) is not None]
        await call.send(*readable)
        replied = {pending.seq for pending in requests if pending.is_over}
        await transport.close()
    assert [item.seq for item in call.items] == [1, 2, 3]
    assert replied == {result.seq for message in readable for result in message.results} & {1, 2, 3}
    assert "internal_errors" not in _metrics.read_stats(store)


def parse(data: bytes) -> service_pb2.EnrichStreamResponse | None:
    """The message, or None where gRPC would end the stream over it."""
    try:
        return service_pb2.EnrichStreamResponse.FromString(data)
    except (DecodeError, ValueError):
        return None


@given(responses(), st.sampled_from(sorted(RELEASES)), st.sampled_from([Phase.PREFILL, Phase.AGGREGATED]))
async def test_the_engine_call_is_good_whatever_was_decided(
    response: service_pb2.EnrichResponse, dialect: EngineDialect, phase: Phase
) -> None:
    release = RELEASES[dialect]
    engine = build_profile(release, dp_size=4)

    def decide(*_: object) -> Decision:
        return _codec.decode_decision(response)

    client = FakeClient(decide)
    async with client.plan(build_request(rank=1), phase=phase, engine=engine) as plan:
        kwargs = plan.engine_kwargs(disaggregated_params=None)
    assert set(kwargs) <= {"disaggregated_params", "scheduling_params", "conversation_params"}
    assert "internal_errors" not in client.stats()
    schedule = kwargs["scheduling_params"]
    rank = schedule.attention_dp_rank if schedule is not None else None
    assert rank is None or 0 <= rank < 4
    assert schedule is None or isinstance(schedule.attention_dp_relax, bool)
    if plan.decision.directive is RankDirective.FORWARD:
        assert rank == 1
