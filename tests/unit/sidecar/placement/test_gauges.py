"""The gauges of placement: engine phases of one phase are added up."""

from __future__ import annotations

import pytest

from routing_hints.metrics import Metric
from routing_hints.vocabulary import Phase
from sidecar.placement.compliance import MAX_ELSEWHERE
from sidecar.placement.gauges import register_gauges
from sidecar.telemetry import metrics
from tests.support.metric_values import read_gauge
from tests.support.placement_world import PlacementHarness


class GaugesHarness(PlacementHarness):
    """A placement whose gauges are registered."""

    def __init__(self) -> None:
        super().__init__()
        register_gauges(self.store, self.placement, lambda: self.now_s)

    def read(self, metric: Metric) -> dict[str, float]:
        return read_gauge(self.store, metric)


@pytest.fixture
def harness() -> GaugesHarness:
    return GaugesHarness()


def test_idle_sidecar_shows_no_series(harness: GaugesHarness) -> None:
    assert list(harness.store.read_gauges()) == []


def test_conversations_and_requests_in_flight_are_added_up_over_the_engines_of_a_phase(
    harness: GaugesHarness,
) -> None:
    harness.run_turn("a")
    harness.place("b", instance="other")
    harness.place("c", phase=Phase.AGGREGATED)
    assert harness.read(metrics.PLACEMENT_CONVERSATIONS) == {"prefill": 2, "aggregated": 1}
    assert harness.read(metrics.PLACEMENT_REQUESTS_IN_FLIGHT) == {"prefill": 1, "aggregated": 1}


def test_tokens_of_a_rank_are_added_up_over_engines_of_different_sizes(harness: GaugesHarness) -> None:
    harness.place("a", 100, known_rank=0)
    harness.place("b", 20, known_rank=1)
    harness.place("c", 3, known_rank=1, instance="small", dp_size=2)
    assert harness.read(metrics.PLACEMENT_OUTSTANDING_TOKENS) == {
        "prefill/0": 100,
        "prefill/1": 23,
        "prefill/2": 0,
        "prefill/3": 0,
    }


def test_resident_tokens_decay_while_nobody_uses_them(harness: GaugesHarness) -> None:
    harness.run_turn("a", 800, known_rank=1)
    harness.now_s += 600
    assert harness.read(metrics.PLACEMENT_RESIDENT_TOKENS) == {
        "prefill/0": 0,
        "prefill/1": pytest.approx(400),
        "prefill/2": 0,
        "prefill/3": 0,
    }


def test_skew_is_of_the_worst_engine_and_0_where_all_are_idle(harness: GaugesHarness) -> None:
    """4 ranks of which one has all of the load: four times an even share."""
    harness.run_turn("a", 100, known_rank=0)
    for rank in range(4):
        harness.run_turn(f"even-{rank}", 100, known_rank=rank, instance="even")
    assert harness.read(metrics.PLACEMENT_RESIDENT_SKEW) == {"prefill": pytest.approx(4.0)}
    assert harness.read(metrics.PLACEMENT_OUTSTANDING_SKEW) == {"prefill": 0}


def test_paused_engines_are_counted(harness: GaugesHarness) -> None:
    harness.run_turn("other", instance="other")
    assert harness.read(metrics.PLACEMENT_PAUSED) == {"prefill": 0}
    for number in range(MAX_ELSEWHERE + 1):
        placed = harness.place(f"c{number}")
        placed.finish(observed=(placed.rank + 1) % 4)
    assert harness.read(metrics.PLACEMENT_PAUSED) == {"prefill": 1}


def test_gauges_forget_what_has_outlived_its_time(harness: GaugesHarness) -> None:
    harness.run_turn("a")
    harness.now_s += 3_601
    assert list(harness.store.read_gauges()) == []
