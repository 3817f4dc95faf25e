"""The metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from routing_hints.metrics import Distribution, Metric, MetricStore


def make_registry(store: MetricStore) -> CollectorRegistry:
    """Returns a registry of this sidecar's metrics and of its process's."""
    registry = CollectorRegistry()
    registry.register(_StoreCollector(store))
    ProcessCollector(registry=registry)
    return registry


class _StoreCollector(Collector):
    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._prefix = store.table.prefix

    def collect(self) -> Iterable[Family]:
        for read in (self._store.read_counters, self._store.read_gauges):
            for metric, series in groupby(read(), key=attrgetter("metric")):
                name = self._prefix + metric.name
                family = Family(name, metric.help, metric.kind)
                suffix = "_total" if metric.kind == "counter" else ""
                for one in series:
                    family.add_sample(
                        name + suffix, dict(zip(metric.labels, one.labels, strict=True)), one.value
                    )
                yield family
        for metric, distribution in self._store.read_histograms():
            yield self._make_histogram(metric, distribution)

    def _make_histogram(self, metric: Metric, distribution: Distribution) -> Family:
        buckets, count = [], 0
        for bound, number in zip((*metric.buckets, float("inf")), distribution.counts, strict=True):
            count += number
            buckets.append((str(bound) if bound != float("inf") else "+Inf", count))
        return HistogramMetricFamily(self._prefix + metric.name, metric.help, buckets, distribution.total)
