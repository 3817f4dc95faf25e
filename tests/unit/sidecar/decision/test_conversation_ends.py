"""When a conversation ends, and that ending it again does no harm."""

from __future__ import annotations

import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.v1 import service_pb2, types_pb2
from sidecar.telemetry import metrics
from tests.support.decisions import DecisionHarness
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    CONVERSATION_HASH,
    PINNING_ENGINE,
    make_request,
)

_FINAL_HEADER = types_pb2.Identity(headers={"x-session-id": CONVERSATION, "x-dynamo-session-final": "true"})


def _request(action: str, engine: types_pb2.EngineProfile = BALANCING_ENGINE) -> service_pb2.EnrichRequest:
    control = types_pb2.SessionControl(session_id=CONVERSATION, action=action)
    return make_request(identity=types_pb2.Identity(session_control=control), engine=engine)


def _is_remembered(harness: DecisionHarness) -> bool:
    return harness.service.placement.find(ConversationHash(CONVERSATION_HASH)) != []


def test_conversation_ends_when_its_last_request_has_finished() -> None:
    """Not with the decision, since the request has yet to run."""
    harness = DecisionHarness()
    last = harness.decide_on_stream(_request("close"))
    assert "session-final" in last.decision.notices
    assert _is_remembered(harness)
    assert harness.read_counts(metrics.FINAL_REQUESTS) == {"": 1}
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {}
    harness.finish(last)
    assert not _is_remembered(harness)
    assert harness.read_counts(metrics.FINAL_REQUESTS) == {"": 1}
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {"true": 1}


def test_last_request_frees_its_load_before_its_conversation_is_forgotten() -> None:
    harness = DecisionHarness()
    last = harness.decide_on_stream(_request("close"))
    harness.finish(last, cached_tokens=0)
    assert harness.read_outstanding() == 0
    assert harness.read_counts(metrics.LEASES_CLOSED) == {"finished": 1}
    assert harness.read_counts(metrics.CONVERSATIONS_FORGOTTEN) == {"ended": 1}
    assert harness.read_counts(metrics.PLACED_RANKS) == {"prefill/as_placed": 1}


def test_repeated_finish_report_finds_nothing_to_end_and_says_so() -> None:
    """The other phase's report comes after the first one's, too."""
    harness = DecisionHarness()
    last = harness.decide_on_stream(_request("close"))
    for _ in range(2):
        harness.finish(last)
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {"true": 1, "false": 1}


def test_unary_last_request_ends_its_conversation_at_once() -> None:
    """No finish report will follow."""
    harness = DecisionHarness()
    harness.decide(_request("close"))
    assert not _is_remembered(harness)
    assert harness.read_counts(metrics.FINAL_REQUESTS) == {"": 1}
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {"true": 1}


@pytest.mark.parametrize(("is_on_stream", "ended"), [(False, {"false": 1}), (True, {})])
def test_last_request_of_an_engine_that_pins_ends_a_conversation_that_is_not_remembered(
    is_on_stream: bool, ended: dict[str, int]
) -> None:
    """The engine has the conversation, and the sidecar has nothing to forget."""
    harness = DecisionHarness()
    request = make_request(identity=_FINAL_HEADER, engine=PINNING_ENGINE)
    decided = harness.decide_on_stream(request) if is_on_stream else harness.decide(request)
    assert decided.decision.conversation_id == CONVERSATION
    assert "session-final" in decided.decision.notices
    assert harness.read_counts(metrics.FINAL_REQUESTS) == {"": 1}
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == ended
    if is_on_stream:
        harness.finish(decided)
        assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {"false": 1}


@pytest.mark.parametrize("action", ["open", "bind", "", "CLOSE", "drop"])
@pytest.mark.parametrize("is_on_stream", [False, True])
def test_every_other_action_ends_nothing(action: str, is_on_stream: bool) -> None:
    harness = DecisionHarness()
    decided = (harness.decide_on_stream if is_on_stream else harness.decide)(_request(action))
    harness.finish(decided)
    assert _is_remembered(harness)
    assert harness.read_counts(metrics.FINAL_REQUESTS) == {}
    assert harness.read_counts(metrics.ENDED_CONVERSATIONS) == {}


def test_open_and_bind_decide_as_no_action_does() -> None:
    decisions = [DecisionHarness().decide(_request(action)).decision for action in ("open", "bind", "")]
    assert decisions[0] == decisions[1] == decisions[2]
