"""What a soak complains of: each count is met by a plan that deserves it, and by no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bench", reason="the benchmarks are part of a checkout")

from bench.soak.ledger import Ledger
from tests.support.builders import build_answer, build_profile, make_plan
from worker_client import Answer, Origin, RankDirective

SESSION = "conversation-0001"
PLACED = build_answer(RankDirective.PLACE, dp_rank=2)
NAMED = build_answer(RankDirective.WITHHOLD, SESSION)
NAMELESS = build_answer(RankDirective.FORWARD)


def from_client(answer: Answer, **fields: Any) -> Answer:
    """The same, said by the client while the sidecar was silent."""
    return replace(answer, origin=Origin.MEMORY, **fields)


async def note(ledger: Ledger, *answers: Answer, is_structured: bool = False) -> Ledger:
    """Takes note of one plan for each answer."""
    for answer in answers:
        plan = await make_plan(NAMELESS, build_profile())
        plan.answer = answer
        is_placing = answer.directive is RankDirective.PLACE
        ledger.note(plan, SESSION, is_structured=is_structured, is_placing=is_placing, took_s=0.001)
    return ledger


async def test_id_that_a_structured_carrier_names_is_missed() -> None:
    """The client can resolve it alone, so there is no excuse."""
    assert (await note(Ledger(), NAMELESS, is_structured=True)).missing_ids == 1
    assert (await note(Ledger(), NAMED, is_structured=True)).missing_ids == 0


async def test_id_that_the_sidecar_told_is_missed_under_the_same_policy_only() -> None:
    """Another policy may read other carriers."""
    assert (await note(Ledger(), NAMED, from_client(NAMELESS))).missing_ids == 1
    assert (await note(Ledger(), NAMED, from_client(NAMELESS, policy_revision="r2"))).missing_ids == 0
    assert (await note(Ledger(), from_client(NAMELESS))).missing_ids == 0


async def test_id_of_another_conversation_is_wrong() -> None:
    """Nothing is worse for a request's cache, and for its tenant."""
    assert (await note(Ledger(), replace(NAMED, conversation_id="conversation-0002"))).wrong_ids == 1


async def test_rank_from_memory_that_was_not_told_has_moved() -> None:
    """The sidecar may move a conversation, the client may not."""
    assert (await note(Ledger(), PLACED, from_client(PLACED, dp_rank=3))).moved_ranks == 1
    assert (await note(Ledger(), PLACED, from_client(PLACED))).moved_ranks == 0
    assert (await note(Ledger(), PLACED, replace(PLACED, dp_rank=3))).moved_ranks == 0


async def test_rank_of_another_policy_is_not_held_against_memory() -> None:
    """Where a policy kept the router's rank in between, nothing was bound any more."""
    later = from_client(PLACED, dp_rank=3, policy_revision="r2")
    assert (await note(Ledger(), PLACED, later)).moved_ranks == 0
    assert (await note(Ledger(), PLACED, later, replace(later, dp_rank=1))).moved_ranks == 1
