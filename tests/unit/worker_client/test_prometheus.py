"""The client's counters in a worker's own registry."""

from __future__ import annotations

import pytest

from tests.support.builders import build_client
from worker_client import ClientConfig, EngineProfile, Phase, RoutingHintClient, _metrics

pytest.importorskip("prometheus_client", reason="the extra [prometheus] is not installed")

from prometheus_client import CollectorRegistry, generate_latest

from worker_client.prometheus import StatsCollector


async def test_counters_are_published_by_the_names_of_the_reference_page() -> None:
    client = RoutingHintClient(ClientConfig(target="unix:///nowhere/sidecar.sock"))
    registry = CollectorRegistry()
    registry.register(StatsCollector(client))
    async with client.plan({}, phase=Phase.PREFILL, engine=EngineProfile()) as plan:
        plan.engine_kwargs()
    lines = generate_latest(registry).decode().splitlines()
    await client.close()
    labels = 'directive="forward",placement="none",result="unknown"'
    assert 'routing_hints_client_plans_total{origin="forwarded"} 1.0' in lines
    assert f"routing_hints_client_conversation_returns_total{{{labels}}} 1.0" in lines
    assert 'routing_hints_client_finished_total{outcome="completed"} 1.0' in lines


def test_every_counter_is_published_with_its_labels_and_its_help() -> None:
    client = build_client(None)
    for metric in _metrics.TABLE:
        client.metrics.add(metric, *metric.labels)
        client.metrics.add(metric, *("other" for _ in metric.labels))
    families = {family.name: family for family in StatsCollector(client).collect()}
    for metric in _metrics.TABLE:
        family = families.pop(f"routing_hints_client_{metric.name}")
        assert (family.type, family.documentation) == ("counter", metric.help)
        labels = [sample.labels for sample in family.samples]
        expected = [dict(zip(metric.labels, metric.labels, strict=True))]
        if metric.labels:
            expected.append(dict.fromkeys(metric.labels, "other"))
        assert sorted(map(str, labels)) == sorted(map(str, expected))
    assert families == {}
