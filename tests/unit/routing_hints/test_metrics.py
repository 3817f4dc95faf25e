from __future__ import annotations

import pytest

from routing_hints.metrics import Metric, MetricStore, MetricTable


class MetricsHarness:
    """One metric of each kind, and a store of them."""

    def __init__(self) -> None:
        self.table = MetricTable("test_")
        self.requests = self.table.counter("requests", "Requests.", "phase", "outcome")
        self.errors = self.table.counter("errors", "Errors.")
        self.load = self.table.gauge("load", "Load.", "rank")
        self.seconds = self.table.histogram("seconds", "Time.", (0.1, 1.0))
        self.store = MetricStore(self.table)

    def read_counters(self) -> list[tuple[Metric, tuple[str, ...], float]]:
        return [tuple(series) for series in self.store.read_counters()]


@pytest.fixture
def harness() -> MetricsHarness:
    return MetricsHarness()


def test_declared_metric_has_its_name_kind_help_and_labels(harness: MetricsHarness) -> None:
    declared = [(each.name, each.kind, each.help, each.labels, each.buckets) for each in harness.table]
    assert declared == [
        ("requests", "counter", "Requests.", ("phase", "outcome"), ()),
        ("errors", "counter", "Errors.", (), ()),
        ("load", "gauge", "Load.", ("rank",), ()),
        ("seconds", "histogram", "Time.", (), (0.1, 1.0)),
    ]
    assert harness.table.prefix == "test_"
    assert harness.store.table is harness.table


def test_counter_adds_up_by_its_label_values(harness: MetricsHarness) -> None:
    harness.store.add(harness.requests, "prefill", "completed")
    harness.store.add(harness.requests, "prefill", "completed", amount=4)
    harness.store.add(harness.requests, "prefill", "failed")
    assert harness.read_counters() == [
        (harness.requests, ("prefill", "completed"), 5),
        (harness.requests, ("prefill", "failed"), 1),
    ]


def test_counters_are_read_in_the_order_of_their_declaration_with_labels_sorted(
    harness: MetricsHarness,
) -> None:
    """Two scrapes of equal counts are equal, whatever was counted first."""
    harness.store.add(harness.errors)
    harness.store.add(harness.requests, "prefill", "failed")
    harness.store.add(harness.requests, "decode", "failed")
    assert [(metric.name, labels) for metric, labels, _ in harness.read_counters()] == [
        ("requests", ("decode", "failed")),
        ("requests", ("prefill", "failed")),
        ("errors", ()),
    ]


def test_counter_that_was_never_raised_has_no_series(harness: MetricsHarness) -> None:
    assert harness.read_counters() == []


def test_amount_zero_shows_a_series_and_never_resets_it(harness: MetricsHarness) -> None:
    """An alert on a rise needs the zero before it."""
    harness.store.add(harness.errors, amount=0)
    assert harness.read_counters() == [(harness.errors, (), 0)]
    harness.store.add(harness.errors)
    harness.store.add(harness.errors, amount=0)
    assert harness.read_counters() == [(harness.errors, (), 1)]


def test_gauge_is_read_when_somebody_looks(harness: MetricsHarness) -> None:
    """Its value is that of the moment, not of the registration."""
    values = [1.0]
    harness.store.set_reader(harness.load, lambda: [(("0",), values[-1])])
    assert list(harness.store.read_gauges()) == [(harness.load, ("0",), 1.0)]
    values.append(2.0)
    assert list(harness.store.read_gauges()) == [(harness.load, ("0",), 2.0)]


def test_gauge_without_a_reader_has_no_series(harness: MetricsHarness) -> None:
    assert list(harness.store.read_gauges()) == []


def test_gauge_has_the_reader_that_was_set_last(harness: MetricsHarness) -> None:
    harness.store.set_reader(harness.load, lambda: [(("0",), 1.0)])
    harness.store.set_reader(harness.load, lambda: [(("1",), 2.0), (("2",), 3.0)])
    assert [series.labels for series in harness.store.read_gauges()] == [("1",), ("2",)]


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (0.0, [1, 0, 0]),
        (0.1, [1, 0, 0]),
        (0.11, [0, 1, 0]),
        (1.0, [0, 1, 0]),
        (1.01, [0, 0, 1]),
    ],
)
def test_histogram_bound_belongs_to_its_bucket(
    harness: MetricsHarness, value: float, counts: list[int]
) -> None:
    """As Prometheus defines it: `le` is less than or equal."""
    harness.store.observe(harness.seconds, value)
    ((metric, distribution),) = harness.store.read_histograms()
    assert metric is harness.seconds
    assert (distribution.counts, distribution.total) == (counts, value)


def test_histogram_adds_up_counts_and_values(harness: MetricsHarness) -> None:
    for value in (0.05, 0.5, 0.5, 5.0):
        harness.store.observe(harness.seconds, value)
    ((_, distribution),) = harness.store.read_histograms()
    assert distribution.counts == [1, 2, 1]
    assert distribution.total == pytest.approx(6.05)


def test_histogram_without_observations_is_read_as_empty(harness: MetricsHarness) -> None:
    ((_, distribution),) = harness.store.read_histograms()
    assert (distribution.counts, distribution.total) == ([0, 0, 0], 0.0)


def test_two_stores_of_one_table_count_apart(harness: MetricsHarness) -> None:
    other = MetricStore(harness.table)
    harness.store.add(harness.errors)
    harness.store.observe(harness.seconds, 0.5)
    assert list(other.read_counters()) == []
    ((_, distribution),) = other.read_histograms()
    assert distribution.counts == [0, 0, 0]
