"""Which conversations return, and whether they are where they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.census import Census
from sidecar.counters import Counters
from sidecar.model import ConversationHash, Phase

_PREFILL = (("phase", "prefill"),)


def _values(counters: Counters) -> dict[str, float]:
    found: dict[str, float] = {name: value for name, labels, value in counters if labels == _PREFILL}
    found.update({name: value for name, labels, value in counters.read_gauges() if labels == _PREFILL})
    return found


def _note(census: Census, *names: str) -> None:
    for name in names:
        census.note_request(Phase.PREFILL, ConversationHash(name))


def test_a_conversation_counts_once_and_returns_once() -> None:
    """Three turns of one and one turn of another: two seen, one of them returned, one still a one-shot."""
    counters = Counters()
    _note(Census(counters), "a", "b", "a", "a")
    assert _values(counters) == {"conversations": 2, "returned_conversations": 1, "one_shot_conversations": 1}


def test_a_request_without_identity_is_no_conversation() -> None:
    """No hash, nothing to return."""
    counters = Counters()
    _note(Census(counters), "", "")
    assert _values(counters) == {}


def test_legs_are_counted_apart() -> None:
    """The second leg of a first turn is no second turn."""
    counters = Counters()
    census = Census(counters)
    _note(census, "a")
    census.note_request(Phase.DECODE, ConversationHash("a"))
    assert _values(counters) == {"conversations": 1, "one_shot_conversations": 1}


def test_the_least_recently_used_conversation_is_forgotten() -> None:
    """Beyond the limit the oldest goes, and counts as new when it comes again."""
    counters = Counters()
    _note(Census(counters, max_remembered=2), "a", "b", "a", "c", "b")
    assert _values(counters) == {"conversations": 4, "returned_conversations": 1, "one_shot_conversations": 2}


@pytest.mark.parametrize(
    ("second", "effect"), [(("w", 3), "same"), (("w", 2), "moved"), (("other", 3), "moved")]
)
def test_a_turn_is_held_against_the_turn_before(second: tuple[str, int], effect: str) -> None:
    """The place is worker and rank."""
    census = Census(Counters())
    _note(census, "a")
    assert census.note_place(Phase.PREFILL, ConversationHash("a"), "w", 3) == "first"
    assert census.note_place(Phase.PREFILL, ConversationHash("a"), *second) == effect


def test_a_forgotten_conversation_has_no_place() -> None:
    """What is not remembered can't be compared."""
    assert Census(Counters()).note_place(Phase.PREFILL, ConversationHash("a"), "w", 3) == "unknown"


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 4))
def test_one_shots_are_never_more_than_what_is_remembered(names: list[str], limit: int) -> None:
    """However conversations come and are forgotten, the gauge stays within its bounds."""
    counters = Counters()
    _note(Census(counters, max_remembered=limit), *names)
    assert 0 <= _values(counters).get("one_shot_conversations", 0) <= limit
