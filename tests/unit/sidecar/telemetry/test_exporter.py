"""The metrics as Prometheus reads them."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from routing_hints.metrics import MetricStore, MetricTable
from routing_hints.v1 import types_pb2
from sidecar.placement.gauges import register_gauges
from sidecar.telemetry.exporter import make_registry
from tests.support.decisions import DecisionHarness
from tests.support.messages import BALANCING_ENGINE, PINNING_ENGINE, make_request


class ExporterHarness:
    """One metric of each kind, and what is exported of them."""

    def __init__(self) -> None:
        table = MetricTable("test_")
        self.requests = table.counter("requests", "Requests.", "phase")
        self.load = table.gauge("load", "Load.", "rank")
        self.seconds = table.histogram("seconds", "Time.", (0.1, 1.0))
        self.store = MetricStore(table)

    def export(self) -> list[str]:
        """Returns the lines of the table's metrics, without those of the process."""
        text = generate_latest(make_registry(self.store)).decode()
        return [line for line in text.splitlines() if "test_" in line]


@pytest.fixture
def harness() -> ExporterHarness:
    return ExporterHarness()


def test_counter_is_exported_with_its_help_labels_and_suffix(harness: ExporterHarness) -> None:
    harness.store.add(harness.requests, "prefill", amount=2)
    harness.store.add(harness.requests, "decode", amount=0)
    assert harness.export()[:4] == [
        "# HELP test_requests_total Requests.",
        "# TYPE test_requests_total counter",
        'test_requests_total{phase="decode"} 0.0',
        'test_requests_total{phase="prefill"} 2.0',
    ]


def test_gauge_is_exported_without_a_suffix(harness: ExporterHarness) -> None:
    harness.store.set_reader(harness.load, lambda: [(("0",), 0.5)])
    assert harness.export()[:3] == [
        "# HELP test_load Load.",
        "# TYPE test_load gauge",
        'test_load{rank="0"} 0.5',
    ]


def test_buckets_of_a_histogram_are_exported_as_cumulative(harness: ExporterHarness) -> None:
    for value in (0.05, 0.5, 0.5, 5.0):
        harness.store.observe(harness.seconds, value)
    assert harness.export() == [
        "# HELP test_seconds Time.",
        "# TYPE test_seconds histogram",
        'test_seconds_bucket{le="0.1"} 1.0',
        'test_seconds_bucket{le="1.0"} 3.0',
        'test_seconds_bucket{le="+Inf"} 4.0',
        "test_seconds_count 4.0",
        "test_seconds_sum 6.05",
    ]


def test_wrong_number_of_label_values_is_noticed(harness: ExporterHarness) -> None:
    """Negative control of the next test."""
    harness.store.add(harness.requests, "prefill", "one too many")
    with pytest.raises(ValueError, match="zip"):
        harness.export()


def test_every_series_that_decisions_count_fits_its_declared_labels() -> None:
    decisions = DecisionHarness()
    register_gauges(decisions.store, decisions.service.placement, lambda: decisions.now_s)
    for engine in (PINNING_ENGINE, BALANCING_ENGINE):
        for hints in (types_pb2.RoutingHints(), types_pb2.RoutingHints(dp_rank=3)):
            decided = decisions.decide_on_stream(make_request(engine=engine, hints=hints, prompt_tokens=9))
            decisions.finish(decided, cached_tokens=5, local_reason="sidecar-timed-out")
    exported = generate_latest(make_registry(decisions.store)).decode()
    assert 'routing_hints_placement_conversations{phase="prefill"} 1.0' in exported
    assert 'routing_hints_local_reasons_total{reason="sidecar-timed-out"} 4.0' in exported
