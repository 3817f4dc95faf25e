"""The counters and gauges as Prometheus reads them; docs/reference.md says what each means."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from itertools import groupby
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.policy.holder import PolicyHolder
from sidecar.telemetry.counters import Counters

PREFIX = "routing_hints_"
_HELP = "See docs/reference.md."
_LATENCY_BUCKETS_S = (
    0.000_01,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.01,
    0.1,
)


def make_registry(counters: Counters, holder: PolicyHolder) -> CollectorRegistry:
    """Returns a registry of this sidecar's metrics and of its process's.

    Args:
        counters: published under their own names, `routing_hints_<name>_total` and `routing_hints_<name>`.
        holder: gives the policy in force.
    """
    # The process's start time says the same for all of them.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    registry.register(_CountersCollector(counters))
    registry.register(_FactsCollector(holder))
    ProcessCollector(registry=registry)
    return registry


def make_latency_histogram(registry: CollectorRegistry) -> Histogram:
    """Returns the histogram of the seconds that one decision takes, parsing and encoding included."""
    return Histogram(f"{PREFIX}decision_seconds", _HELP, registry=registry, buckets=_LATENCY_BUCKETS_S)


class _CountersCollector(Collector):
    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        yield from _make_metrics(self._counters.read_counters(), "counter", "_total")
        yield from _make_metrics(self._counters.read_gauges(), "gauge", "")


class _FactsCollector(Collector):
    def __init__(self, holder: PolicyHolder) -> None:
        self._holder = holder

    def collect(self) -> Iterable[Metric]:
        policy = self._holder.current.compiled
        yield InfoMetricFamily(
            f"{PREFIX}policy",
            _HELP,
            value={
                "identity_epoch": policy.identity_epoch,
                "mode": policy.mode,
                "revision": policy.revision,
            },
        )
        yield InfoMetricFamily(f"{PREFIX}build", _HELP, value={"version": version("routing-hint-sidecar")})


def _make_metrics(series: Iterable[tuple[str, Any, float]], kind: str, suffix: str) -> Iterable[Metric]:
    for name, group in groupby(series, key=lambda entry: entry[0]):
        metric = Metric(f"{PREFIX}{name}", _HELP, kind)
        for _, labels, value in group:
            metric.add_sample(f"{PREFIX}{name}{suffix}", dict(labels), value)
        yield metric
