"""The client's metrics for the worker's own Prometheus registry.

Needs prometheus-client, which the worker's image brings or the extra `[prometheus]` installs; nothing else
here imports it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from worker_client._client import RoutingHintClient


class StatsCollector(Collector):
    """Publishes the client's counters as `routing_hints_client_<name>_total`.

    Register it once per client: `REGISTRY.register(StatsCollector(client))`.
    """

    def __init__(self, client: RoutingHintClient) -> None:
        self._store = client.metrics

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Gives the counters as they are now."""
        families: dict[str, CounterMetricFamily] = {}
        for metric, labels, value in self._store.read_counters():
            family = families.get(metric.name)
            if family is None:
                name = self._store.table.prefix + metric.name
                family = families[metric.name] = CounterMetricFamily(name, metric.help, labels=metric.labels)
            family.add_metric(labels, value)
        return families.values()
