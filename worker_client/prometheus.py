"""The client's counters for the worker's own Prometheus registry.

Needs prometheus-client, which the worker's image brings or the extra `[prometheus]` installs; nothing else
here imports it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from worker_client._client import RoutingHintClient

_PREFIX = "routing_hints_client_"
_HELP = "See docs/reference.md of routing-hint-sidecar."
# What the label of a counter holds; parts are separated by slashes. Others have none.
LABELS = {
    "applied": ("directive",),
    "cached_tokens": ("directive", "decision"),
    "defects": ("exception",),
    "differs": ("reason",),
    "effect": ("directive", "decision", "effect"),
    "fail_open": ("reason",),
    "finished": ("outcome",),
    "id_attached": ("phase",),
    "id_not_attached": ("reason",),
    "item_refused": ("field",),
    "not_asked": ("reason",),
    "plans": ("origin",),
    "prompt_tokens": ("directive", "decision"),
    "stream_lost": ("reason",),
}


class StatsCollector(Collector):
    """Publishes `client.stats()` as `routing_hints_client_<name>_total`.

    Register it once per client: `REGISTRY.register(StatsCollector(client))`.
    """

    def __init__(self, client: RoutingHintClient) -> None:
        self._client = client

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Gives the counters as they are now."""
        for name, counts in self._client.stats().items():
            labels = LABELS.get(name, ())
            family = CounterMetricFamily(f"{_PREFIX}{name}", _HELP, labels=labels)
            for label, count in counts.items():
                family.add_metric(label.split("/") if labels else (), count)
            yield family
