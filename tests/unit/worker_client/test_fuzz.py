"""Whatever a sidecar puts on the wire, the client takes it or leaves it, and the engine call is good."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from examples.fake_engine import CONVERSATION_PARAMS, DISAGGREGATED_PARAMS, RANK_ONLY
from routing_hints.v1 import service_pb2
from tests.support.builders import build_profile, build_request, build_types
from tests.support.corpus import spoiled
from worker_client import Answer, ClientConfig, EngineDialect, Phase, RankDirective, codec
from worker_client._call import Question
from worker_client._once_logger import Announcer
from worker_client._request import read_request
from worker_client._stats import Stats
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
        "decision": draw(numbers),
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
    """A message of a sidecar to a client that asked questions 1 to 3."""
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


@given(st.lists(spoiled(stream_messages()), min_size=1, max_size=3))
async def test_what_a_sidecar_says_is_taken_or_left(messages: list[bytes]) -> None:
    """No message breaks the reader, and a question is answered by results of its own number alone."""
    transport = Transport(ClientConfig(), stats=Stats(), announcer=Announcer(), on_answer=lambda *_: None)
    loop = asyncio.get_running_loop()
    facts = read_request(build_request(), None, phase=Phase.PREFILL)
    questions = [
        Question(facts, build_profile(), transport.policy, loop.create_future(), loop.time())
        for _ in range(3)
    ]
    for question in questions:
        transport.ask(question)
    asked = {item.seq for item in transport._mailbox.next_batch(transport.policy).items}
    waiting = {question.seq: question for question in questions}
    assert asked == set(waiting) == {1, 2, 3}
    named = set()
    for data in messages:
        try:
            message = service_pb2.EnrichStreamResponse.FromString(data)
        except (DecodeError, ValueError):
            continue
        named |= {result.seq for result in message.results}
        transport._take(message)
    assert {seq for seq, question in waiting.items() if question.reply.done()} == named & asked


@given(responses(), st.sampled_from(sorted(RELEASES)), st.sampled_from([Phase.PREFILL, Phase.AGGREGATED]))
async def test_engine_call_is_good_whatever_was_answered(
    response: service_pb2.EnrichResponse, dialect: EngineDialect, phase: Phase
) -> None:
    """No answer makes a parameter raise, and no rank that the engine lacks is ever sent."""
    release = RELEASES[dialect]
    engine = build_profile(release, types=build_types(release), dp_size=4)

    def answer(*_: object) -> Answer:
        return codec.decode_answer(response)

    client = FakeClient(answer)
    async with client.plan(build_request(rank=1), phase=phase, engine=engine) as plan:
        kwargs = plan.engine_kwargs(disaggregated_params=None)
    assert set(kwargs) <= {"disaggregated_params", "scheduling_params", "conversation_params"}
    assert "defects" not in client.stats()
    schedule = kwargs["scheduling_params"]
    rank = schedule.attention_dp_rank if schedule is not None else None
    assert rank is None or 0 <= rank < 4
    assert schedule is None or isinstance(schedule.attention_dp_relax, bool)
    if plan.answer.directive is RankDirective.FORWARD:
        assert rank == 1
