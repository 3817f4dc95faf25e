"""Dynamo 1.2.1 on the engine that it pins, which takes a rank and no conversation id."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.deployments import start_dynamo_handlers
from tests.e2e.stack import Stack
from tests.e2e.traffic import send

PINNED_RELEASE = "rank_only-1.3.0rc14"


def test_conversation_is_resolved_and_the_router_rank_goes_out(make_stack: Callable[[], Stack]) -> None:
    """And the decision says why."""
    stack = make_stack()
    start_dynamo_handlers(stack, "--publish-events-and-metrics", release=PINNED_RELEASE, adp_config={})
    requests = send(stack, nvext={"session_control": {"session_id": "conversation-session-control"}})
    for request in requests.values():
        assert request.conversation_id is None
        assert request.forced_rank == request.rank
        decision = request.record.decision
        assert decision.source_detail == "session_control.session_id"
        assert "dialect-cannot-carry-id" in decision.notices
