"""What a soak reports: each count is met by a plan that deserves it, and by no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bench", reason="the benchmarks are part of a checkout")

from bench.soak.ledger import Ledger
from tests.support.builders import build_decision
from worker_client import Decision, Origin, Phase, RankDirective

SESSION = "conversation-0001"
PLACED = build_decision(RankDirective.PLACE, dp_rank=2)
NAMED = build_decision(RankDirective.WITHHOLD, SESSION)
NAMELESS = build_decision(RankDirective.FORWARD)


def from_client(decision: Decision, origin: Origin = Origin.MEMORY, **fields: Any) -> Decision:
    return replace(decision, origin=origin, **fields)


def note(ledger: Ledger, *decisions: Decision, is_structured: bool = False) -> Ledger:
    for decision in decisions:
        is_placing = decision.directive is RankDirective.PLACE
        ledger.note(
            Phase.PREFILL,
            decision,
            SESSION,
            is_structured=is_structured,
            is_placing=is_placing,
            took_s=0.001,
        )
    return ledger


def test_id_that_a_structured_carrier_names_is_missed() -> None:
    """The client can resolve it alone, so there is no excuse."""
    assert (note(Ledger(), NAMELESS, is_structured=True)).missing_ids == 1
    assert (note(Ledger(), NAMED, is_structured=True)).missing_ids == 0


def test_id_that_the_sidecar_decided_is_missed_under_the_same_policy_only() -> None:
    """Another policy may read other carriers."""
    assert (note(Ledger(), NAMED, from_client(NAMELESS))).missing_ids == 1
    assert (note(Ledger(), NAMED, from_client(NAMELESS, policy_revision="r2"))).missing_ids == 0
    assert (note(Ledger(), from_client(NAMELESS))).missing_ids == 0


def test_id_of_another_conversation_is_wrong() -> None:
    """Nothing is worse for a request's cache, and for its tenant."""
    assert (note(Ledger(), replace(NAMED, conversation_id="conversation-0002"))).wrong_ids == 1


@pytest.mark.parametrize("origin", [Origin.MEMORY, Origin.REUSED])
def test_rank_from_memory_that_was_not_decided_has_moved(origin: Origin) -> None:
    """The sidecar may move a conversation, the client may not."""
    assert (note(Ledger(), PLACED, from_client(PLACED, origin, dp_rank=3))).moved_ranks == 1
    assert (note(Ledger(), PLACED, from_client(PLACED, origin))).moved_ranks == 0
    assert (note(Ledger(), PLACED, replace(PLACED, dp_rank=3))).moved_ranks == 0


def test_rank_of_another_policy_is_not_held_against_memory() -> None:
    """Where a policy kept the router's rank in between, nothing was bound any more."""
    later = from_client(PLACED, dp_rank=3, policy_revision="r2")
    assert (note(Ledger(), PLACED, later)).moved_ranks == 0
    assert (note(Ledger(), PLACED, later, replace(later, dp_rank=1))).moved_ranks == 1
