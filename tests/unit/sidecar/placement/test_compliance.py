"""Placement pauses where the engine does not follow the ranks that it is sent."""

from __future__ import annotations

from routing_hints.vocabulary import Phase, RankDirective
from sidecar.placement.compliance import COOL_DOWN_S, MAX_ELSEWHERE
from sidecar.telemetry import metrics
from tests.support.placement_world import PlacementHarness


def _run_turn(harness: PlacementHarness, name: str, *, follows: bool) -> None:
    placed = harness.place(name)
    placed.finish(observed=placed.rank if follows else (placed.rank + 1) % 4)


def test_five_percent_elsewhere_are_tolerated() -> None:
    harness = PlacementHarness()
    for number in range(1_000):
        _run_turn(harness, f"c{number}", follows=number % 20 != 0)
    assert harness.pauses == []
    assert harness.read_counts(metrics.PLACED_RANKS) == {"prefill/as_placed": 950, "prefill/elsewhere": 50}


def test_eleventh_elsewhere_of_the_last_200_pauses_placement_for_the_cool_down() -> None:
    harness = PlacementHarness()
    for number in range(189):
        _run_turn(harness, f"c{number}", follows=True)
    for number in range(MAX_ELSEWHERE + 1):
        assert harness.pauses == []
        _run_turn(harness, f"d{number}", follows=False)
    assert harness.pauses == [Phase.PREFILL]
    assert harness.try_place("c") is None
    assert harness.preview("c") is None
    harness.now_s += COOL_DOWN_S
    assert harness.try_place("c") is not None
    assert harness.read_counts(metrics.PLACEMENT_PAUSES) == {"prefill": 1}


def test_requests_before_the_last_200_do_not_count() -> None:
    harness = PlacementHarness()
    for number in range(MAX_ELSEWHERE):
        _run_turn(harness, f"c{number}", follows=False)
    for number in range(200):
        _run_turn(harness, f"d{number}", follows=True)
    for number in range(MAX_ELSEWHERE):
        _run_turn(harness, f"e{number}", follows=False)
    assert harness.pauses == []


def test_requests_placed_before_a_pause_do_not_begin_the_next_one() -> None:
    """Their late finish reports say nothing about the engine after the cool-down."""
    harness = PlacementHarness()
    in_flight = [harness.place(f"c{number}") for number in range(2 * MAX_ELSEWHERE + 2)]
    harness.now_s += 1
    for placed in in_flight[: MAX_ELSEWHERE + 1]:
        placed.finish(observed=(placed.rank + 1) % 4)
    harness.now_s += COOL_DOWN_S
    for placed in in_flight[MAX_ELSEWHERE + 1 :]:
        placed.finish(observed=(placed.rank + 1) % 4)
    assert harness.pauses == [Phase.PREFILL]


def test_only_requests_that_were_sent_with_a_placed_rank_count() -> None:
    """A worker that forwarded, or an engine that was left to choose, does not disobey."""
    harness = PlacementHarness()
    for number in range(50):
        for applied in (RankDirective.FORWARD, RankDirective.WITHHOLD):
            placed = harness.place(f"c{number}-{applied}")
            placed.finish(observed=(placed.rank + 1) % 4, applied=applied)
    assert harness.pauses == []


def test_overflow_of_a_full_rank_does_not_count() -> None:
    """An engine that runs two requests on a rank at a time balances the others of a hundred."""
    harness = PlacementHarness()
    in_flight = [harness.place("one conversation", max_active=2) for _ in range(102)]
    for placed in in_flight[2:]:
        placed.finish(observed=(placed.rank + 1) % 4)
    assert harness.pauses == []
    assert harness.read_counts(metrics.PLACED_RANKS) == {"prefill/overflow": 100}


def test_overflow_of_one_rank_excuses_requests_on_the_others() -> None:
    """What overflows fills other ranks, so a request may find its rank full though few were placed there."""
    harness = PlacementHarness()
    full = [harness.place("one conversation", max_active=MAX_ELSEWHERE) for _ in range(MAX_ELSEWHERE)]
    others = [harness.place(f"c{number}", max_active=MAX_ELSEWHERE) for number in range(MAX_ELSEWHERE + 1)]
    for placed in others:
        assert placed.rank != full[0].rank
        placed.finish(observed=full[0].rank)
    assert harness.pauses == []


def test_running_elsewhere_counts_where_the_rank_had_room_or_its_room_is_unknown() -> None:
    for max_active in (0, 100):
        harness = PlacementHarness()
        in_flight = [
            harness.place(f"c{number}", max_active=max_active) for number in range(MAX_ELSEWHERE + 1)
        ]
        for placed in in_flight:
            placed.finish(observed=(placed.rank + 1) % 4)
        assert harness.pauses == [Phase.PREFILL]


def test_pause_is_of_one_engine_phase() -> None:
    harness = PlacementHarness()
    for number in range(MAX_ELSEWHERE + 1):
        _run_turn(harness, f"c{number}", follows=False)
    assert harness.try_place("c") is None
    assert harness.try_place("c", instance="other") is not None
    assert harness.try_place("c", phase=Phase.AGGREGATED) is not None
