"""Dynamo 1.2.1 and its own handlers with this client, on engines that pin by `disaggregated_params`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routing_hints.v1 import types_pb2
from tests.e2e.deployments import PHASES, start_dynamo_handlers
from tests.e2e.stack import Stack
from tests.e2e.traffic import send

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
    """Both phases, on engines that pin by the id in `disaggregated_params`."""
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
def test_a_session_of_the_body_pins_both_phases(
    feature_branch: Stack, nvext: dict[str, object], conversation_id: str, carrier: str
) -> None:
    """The conversation is the session of `session_control` or the trajectory of `agent_context`."""
    turns = [send(feature_branch, nvext=nvext) for _ in range(3)]
    for phase in PHASES:
        assert [turn[phase].conversation_id for turn in turns] == [conversation_id] * 3
        assert [turn[phase].forced_rank for turn in turns] == [None] * 3
        assert len({turn[phase].rank for turn in turns}) == 1
        record = turns[-1][phase].record
        assert record.decision.source_detail == carrier
        assert record.finish.observed_dp_rank == turns[-1]["prefill"].rank
    assert len({turns[-1][phase].record.decision.conversation_hash for phase in PHASES}) == 1


def test_request_without_identity_keeps_the_router_rank(feature_branch: Stack) -> None:
    """Without an id the router's rank is forced, as Dynamo's handlers of this release always do."""
    for request in send(feature_branch).values():
        assert request.conversation_id is None
        assert request.forced_rank == request.rank
        assert request.record.finish.applied_directive == types_pb2.RANK_DIRECTIVE_FORWARD


def test_each_worker_logs_once_that_affinity_is_active_and_once_that_it_is_confirmed(
    feature_branch: Stack,
) -> None:
    for _ in range(2):
        send(feature_branch, nvext=SESSION_CONTROL)
    for phase in PHASES:
        (active,) = feature_branch.workers[phase].lines_of("conversation_affinity_active")
        assert "dialect=disaggregated_params" in active
        assert "attention_dp_rank_forced=False" in active
        assert len(feature_branch.workers[phase].lines_of("conversation_affinity_confirmed")) == 1
