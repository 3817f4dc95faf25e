"""Dynamo 1.2.1 on the engine that it pins, which can be told a rank and no conversation."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.deployments import start_dynamo_handlers
from tests.e2e.stack import Stack
from tests.e2e.traffic import ask

PINNED_RELEASE = "rank_only-1.3.0rc14"


def test_conversation_is_resolved_and_the_router_rank_goes_out(make_stack: Callable[[], Stack]) -> None:
    """The sidecar finds the session, the engine gets the router's rank, and the answer says why."""
    stack = make_stack()
    start_dynamo_handlers(stack, "--publish-events-and-metrics", release=PINNED_RELEASE, adp_config={})
    legs = ask(stack, nvext={"session_control": {"session_id": "conversation-session-control"}})
    for leg in legs.values():
        assert leg.conversation_id is None
        assert leg.forced_rank == leg.rank
        answer = leg.decision.answer
        assert answer.source_detail == "session_control.session_id"
        assert "dialect-cannot-carry-id" in answer.notices
