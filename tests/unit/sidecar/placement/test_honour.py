"""Placement pauses where the engine does not follow."""

from __future__ import annotations

from sidecar.model import Phase, RankDirective
from sidecar.placement.compliance import COOL_DOWN_S, MAX_ELSEWHERE
from tests.support.placement_world import World


def _turn(world: World, name: str, *, follows: bool) -> None:
    asked = world.ask(name)
    assert asked is not None
    asked.finish(observed=asked.rank if follows else (asked.rank + 1) % 4)


def test_five_percent_elsewhere_are_borne() -> None:
    """Of 200 placed requests ten may run elsewhere, over and over."""
    world = World()
    for number in range(1_000):
        _turn(world, f"c{number}", follows=number % 20 != 0)
    assert world.pauses == []
    assert world.counted("placed_ranks") == {"prefill/as_placed": 950, "prefill/elsewhere": 50}


def test_more_than_that_pauses_placement() -> None:
    """The eleventh of the last 200 stops it: nothing is proposed until the cool-down is over."""
    world = World()
    for number in range(189):
        _turn(world, f"c{number}", follows=True)
    for number in range(MAX_ELSEWHERE + 1):
        assert world.pauses == []
        _turn(world, f"d{number}", follows=False)
    assert world.pauses == [Phase.PREFILL]
    assert world.ask("c") is None
    assert world.peek("c") is None
    world.now_s += COOL_DOWN_S
    assert world.ask("c") is not None
    assert world.counted("placement_pauses") == {"prefill": 1}


def test_the_window_slides() -> None:
    """What was long ago no longer counts."""
    world = World()
    for number in range(MAX_ELSEWHERE):
        _turn(world, f"c{number}", follows=False)
    for number in range(200):
        _turn(world, f"d{number}", follows=True)
    for number in range(MAX_ELSEWHERE):
        _turn(world, f"e{number}", follows=False)
    assert world.pauses == []


def test_what_was_placed_before_a_pause_does_not_begin_the_next() -> None:
    """Late ends from before the cool-down say nothing about the engine of now."""
    world = World()
    flying = [world.ask(f"c{number}") for number in range(2 * MAX_ELSEWHERE + 2)]
    world.now_s += 1
    for asked in flying[: MAX_ELSEWHERE + 1]:
        assert asked is not None
        asked.finish(observed=(asked.rank + 1) % 4)
    world.now_s += COOL_DOWN_S
    for asked in flying[MAX_ELSEWHERE + 1 :]:
        assert asked is not None
        asked.finish(observed=(asked.rank + 1) % 4)
    assert world.pauses == [Phase.PREFILL]


def test_only_ranks_that_were_sent_count() -> None:
    """A worker that forwarded, or an engine that was left to choose, breaks no promise."""
    world = World()
    for number in range(50):
        for applied in (RankDirective.FORWARD, RankDirective.WITHHOLD):
            asked = world.ask(f"c{number}-{applied}")
            assert asked is not None
            asked.finish(observed=(asked.rank + 1) % 4, applied=applied)
    assert world.pauses == []


def test_overflow_of_a_full_rank_breaks_no_promise() -> None:
    """An engine that runs two requests a rank and is sent many more lets them overflow, and is believed."""
    world = World()
    flying = [world.ask("one conversation", max_active=2) for number in range(102)]
    for asked in flying[2:]:
        assert asked is not None
        asked.finish(observed=(asked.rank + 1) % 4)
    assert world.pauses == []
    assert world.counted("placed_ranks") == {"prefill/overflow": 100}


def test_overflow_of_one_rank_fills_the_others() -> None:
    """A request may find its rank full though few were placed there."""
    world = World()
    full = [world.ask("one conversation", max_active=MAX_ELSEWHERE) for number in range(MAX_ELSEWHERE)]
    others = [world.ask(f"c{number}", max_active=MAX_ELSEWHERE) for number in range(MAX_ELSEWHERE + 1)]
    for asked in others:
        assert asked is not None
        assert full[0] is not None
        assert asked.rank != full[0].rank
        asked.finish(observed=full[0].rank)
    assert world.pauses == []


def test_rank_with_room_is_a_promise() -> None:
    """Where the engine had room, or nobody says how much it has, running elsewhere is not following."""
    for max_active in (0, 100):
        world = World()
        flying = [world.ask(f"c{number}", max_active=max_active) for number in range(MAX_ELSEWHERE + 1)]
        for asked in flying:
            assert asked is not None
            asked.finish(observed=(asked.rank + 1) % 4)
        assert world.pauses == [Phase.PREFILL]


def test_another_engine_is_trusted_for_itself() -> None:
    """A pause holds for the leg whose engine does not follow, and for no other."""
    world = World()
    for number in range(MAX_ELSEWHERE + 1):
        _turn(world, f"c{number}", follows=False)
    assert world.ask("c", instance="other") is not None
    assert world.ask("c", phase=Phase.AGGREGATED) is not None
