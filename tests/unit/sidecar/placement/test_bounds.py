"""What placement forgets, and when: bounds, idle time and decay."""

from __future__ import annotations

import tracemalloc

import pytest

from routing_hints.vocabulary import PlacementState
from sidecar.placement.engine_phase import MAX_ENGINE_PHASES
from sidecar.placement.lease import MAX_LEASES
from sidecar.telemetry import metrics
from tests.support.placement_world import PlacementHarness


def test_full_table_evicts_the_conversation_used_longest_ago() -> None:
    harness = PlacementHarness(max_conversations=3)
    for name in ("a", "b", "c", "a", "d"):
        harness.run_turn(name)
    assert harness.list_conversations() == ["d", "a", "c"]
    assert harness.read_counts(metrics.CONVERSATIONS_FORGOTTEN) == {"evicted": 1}


def test_conversation_with_a_request_in_flight_is_not_evicted() -> None:
    harness = PlacementHarness(max_conversations=2)
    harness.place("in flight")
    for name in ("a", "b", "c"):
        harness.run_turn(name)
    assert set(harness.list_conversations()) == {"in flight", "c"}


def test_table_full_of_requests_in_flight_evicts_all_the_same() -> None:
    """The bound holds in any case, and a new conversation is never refused."""
    harness = PlacementHarness(max_conversations=2)
    placed = [harness.place(name) for name in ("a", "b", "c")]
    assert len(harness.list_entries()) == 2
    assert "c" in harness.list_conversations()
    for one in placed:
        one.finish(observed=one.rank)
    assert harness.outstanding() == [0, 0, 0, 0]
    assert sum(harness.resident()) == 2_000


@pytest.mark.parametrize(
    ("idle_s", "placement_state"), [(3_600, PlacementState.RETAINED), (3_601, PlacementState.NEW)]
)
def test_conversation_is_new_again_after_the_idle_ttl(idle_s: float, placement_state: PlacementState) -> None:
    harness = PlacementHarness(idle_ttl_s=3_600.0)
    harness.run_turn("c")
    harness.now_s += idle_s
    previewed = harness.preview("c")
    assert previewed is not None
    assert previewed[1] is placement_state
    assert harness.place("c").placement is placement_state


def test_idle_ttl_runs_from_the_last_use() -> None:
    harness = PlacementHarness(idle_ttl_s=100.0)
    for _ in range(5):
        harness.run_turn("c")
        harness.now_s += 90
    previewed = harness.preview("c")
    assert previewed is not None
    assert previewed[1] is PlacementState.RETAINED


def test_conversation_with_a_request_in_flight_is_never_idle() -> None:
    harness = PlacementHarness(idle_ttl_s=100.0)
    harness.run_turn("c")
    in_flight = harness.place("c")
    harness.now_s += 500
    harness.run_turn("other")
    in_flight.finish(observed=in_flight.rank)
    previewed = harness.preview("c")
    assert previewed is not None
    assert previewed[1] is PlacementState.RETAINED


@pytest.mark.parametrize(("idle_s", "left"), [(0, 8_000), (600, 4_000), (1_200, 2_000), (1_800, 1_000)])
def test_resident_tokens_halve_every_ten_idle_minutes(idle_s: float, left: float) -> None:
    harness = PlacementHarness()
    home = harness.run_turn("c", 8_000).rank
    harness.now_s += idle_s
    assert harness.resident()[home] == pytest.approx(left)


def test_nothing_is_left_when_every_conversation_is_forgotten() -> None:
    """An engine phase is forgotten only when its sums say that it is empty, so no rounding may be left."""
    harness = PlacementHarness()
    for number in range(20):
        harness.run_turn(f"c{number}", 1_000 + number * 7)
        harness.now_s += 13.7
    harness.now_s += 4_000
    assert harness.list_entries() == []
    assert harness.placement.list_engine_phases() == []


def test_idle_engine_is_forgotten() -> None:
    harness = PlacementHarness()
    harness.run_turn("", worker="gone")
    harness.now_s += 3_601
    harness.run_turn("")
    assert [each.key.worker_id for each in harness.placement.list_engine_phases()] == ["w"]


def test_engine_used_longest_ago_is_forgotten_with_its_conversations() -> None:
    harness = PlacementHarness()
    for number in range(MAX_ENGINE_PHASES + 5):
        harness.run_turn("c", instance=f"i{number}")
    kept = {f"i{number}" for number in range(5, MAX_ENGINE_PHASES + 5)}
    assert {each.key.instance_id for each in harness.placement.list_engine_phases()} == kept
    assert {entry.engine_phase.key.instance_id for entry in harness.list_entries()} == kept
    assert len(harness.list_entries()) == MAX_ENGINE_PHASES


def test_worker_that_finishes_nothing_loses_its_oldest_leases() -> None:
    harness = PlacementHarness()
    for _ in range(MAX_LEASES + 10):
        harness.place("", 1)
    assert harness.read_counts(metrics.LEASES_CLOSED) == {"expired": 10}
    # Whoever looks makes room for one request more.
    assert sum(harness.outstanding()) == MAX_LEASES


def test_conversation_takes_half_a_kilobyte() -> None:
    """A full table of the default size stays within 32 MiB, keys and hashes included."""
    harness = PlacementHarness(max_conversations=2_000)
    harness.run_turn("warm-up")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            harness.place(f"{number:016x}", tenant=f"tenant-{number}", unary=True)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(harness.list_entries()) == 2_000
    assert (after - before) / 2_000 < 512
