"""Whether a conversation runs where it ran before."""

from __future__ import annotations

import pytest

from sidecar.decision.whereabouts import Whereabouts
from sidecar.model import ConversationHash, Phase


def _note(whereabouts: Whereabouts, name: str, rank: int = 3, phase: Phase = Phase.PREFILL) -> str:
    return whereabouts.note(phase, ConversationHash(name), "w", rank)


@pytest.mark.parametrize(
    ("worker_id", "rank", "effect"), [("w", 3, "same"), ("w", 2, "moved"), ("other", 3, "moved")]
)
def test_a_turn_is_held_against_the_turn_before(worker_id: str, rank: int, effect: str) -> None:
    """The place is worker and rank."""
    whereabouts = Whereabouts()
    assert _note(whereabouts, "a") == "first"
    assert whereabouts.note(Phase.PREFILL, ConversationHash("a"), worker_id, rank) == effect


def test_legs_are_apart() -> None:
    """A conversation has a place on each leg."""
    whereabouts = Whereabouts()
    _note(whereabouts, "a")
    assert _note(whereabouts, "a", rank=1, phase=Phase.DECODE) == "first"
    assert _note(whereabouts, "a") == "same"


def test_the_conversation_observed_longest_ago_is_forgotten() -> None:
    """Beyond the limit the oldest goes, and is new when it comes again."""
    whereabouts = Whereabouts(max_remembered=2)
    assert [_note(whereabouts, name) for name in "abacba"] == [
        "first",
        "first",
        "same",
        "first",
        "first",
        "first",
    ]
