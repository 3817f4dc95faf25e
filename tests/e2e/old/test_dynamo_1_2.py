"""Dynamo 1.2.1 and its own handlers with this client, on engines that pin by `disaggregated_params`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routing_hints.v1 import types_pb2
from tests.e2e.deployments import LEGS, start_dynamo_handlers
from tests.e2e.stack import Stack
from tests.e2e.traffic import ask

FEATURE_BRANCH = "disaggregated_params-0.0.0+feature.branch"
SESSION_CONTROL = {"session_control": {"session_id": "conversation-session-control"}}
AGENT_CONTEXT = {
    "agent_context": {
        "session_type_id": "coding-agent",
        "session_id": "run-of-an-agent-tree",
        "trajectory_id": "trajectory-of-one-agent",
    }
}


@pytest.fixture(scope="module")
def feature_branch(make_stack: Callable[[], Stack]) -> Stack:
    """Both legs, on engines that pin by the id in `disaggregated_params`."""
    stack = make_stack()
    start_dynamo_handlers(stack, "--publish-events-and-metrics", release=FEATURE_BRANCH)
    return stack


@pytest.mark.parametrize(
    ("nvext", "conversation_id", "carrier"),
    [
        (SESSION_CONTROL, "conversation-session-control", "session_control.session_id"),
        (AGENT_CONTEXT, "trajectory-of-one-agent", "agent_context.trajectory_id"),
        ({**SESSION_CONTROL, **AGENT_CONTEXT}, "trajectory-of-one-agent", "agent_context.trajectory_id"),
    ],
    ids=["session-control", "agent-context", "both"],
)
def test_session_of_the_body_pins_both_legs(
    feature_branch: Stack, nvext: dict[str, object], conversation_id: str, carrier: str
) -> None:
    """The conversation is the session of `session_control` or the trajectory of `agent_context`."""
    turns = [ask(feature_branch, nvext=nvext) for _ in range(3)]
    for leg in LEGS:
        assert [turn[leg].conversation_id for turn in turns] == [conversation_id] * 3
        assert [turn[leg].forced_rank for turn in turns] == [None] * 3
        assert len({turn[leg].rank for turn in turns}) == 1
        decision = turns[-1][leg].decision
        assert decision.answer.source_detail == carrier
        assert decision.finish.observed_dp_rank == turns[-1]["prefill"].rank
    assert len({turns[-1][leg].decision.answer.conversation_hash for leg in LEGS}) == 1


def test_request_without_identity_keeps_the_router_rank(feature_branch: Stack) -> None:
    """Without an id the router's rank is forced, as Dynamo's handlers of this release always do."""
    for leg in ask(feature_branch).values():
        assert leg.conversation_id is None
        assert leg.forced_rank == leg.rank
        assert leg.decision.finish.applied_directive == types_pb2.RANK_DIRECTIVE_FORWARD


def test_log_says_once_that_affinity_is_active(feature_branch: Stack) -> None:
    """Each worker states the invariants once and confirms them once."""
    for _ in range(2):
        ask(feature_branch, nvext=SESSION_CONTROL)
    for leg in LEGS:
        (active,) = feature_branch.workers[leg].lines_of("conversation_affinity_active")
        assert "dialect=disaggregated_params" in active
        assert "attention_dp_rank_forced=False" in active
        assert len(feature_branch.workers[leg].lines_of("conversation_affinity_confirmed")) == 1
