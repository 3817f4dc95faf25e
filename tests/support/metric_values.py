"""The values of a metric store, by the values of the labels."""

from __future__ import annotations

from routing_hints.metrics import Metric, MetricStore


def read_counts(store: MetricStore, metric: Metric) -> dict[str, float]:
    """Returns a counter's series; the label values are joined by slashes in their declared order."""
    return {
        "/".join(series.labels): series.value for series in store.read_counters() if series.metric is metric
    }


def read_gauge(store: MetricStore, metric: Metric) -> dict[str, float]:
    """Returns a gauge's series, as `read_counts` does."""
    return {
        "/".join(series.labels): series.value for series in store.read_gauges() if series.metric is metric
    }
