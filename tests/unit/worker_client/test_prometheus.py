"""The client's counters in a worker's own registry."""

import re
from pathlib import Path

import pytest

from worker_client import ClientConfig, EngineProfile, Phase, RoutingHintClient

pytest.importorskip("prometheus_client", reason="the extra [prometheus] is not installed")

from prometheus_client import CollectorRegistry, generate_latest

from worker_client.prometheus import LABELS, StatsCollector

PAGE = Path(__file__).parents[3] / "docs" / "reference.md"


async def test_counters_are_published_by_the_names_of_the_page() -> None:
    """The parts of a label come apart, and what has no label has none."""
    client = RoutingHintClient(ClientConfig(target="unix:///nowhere/sidecar.sock"))
    registry = CollectorRegistry()
    registry.register(StatsCollector(client))
    async with client.plan({}, phase=Phase.PREFILL, engine=EngineProfile()) as plan:
        plan.engine_kwargs()
    text = generate_latest(registry).decode()
    await client.close()
    assert 'routing_hints_client_plans_total{origin="forwarded"} 1.0' in text
    assert (
        'routing_hints_client_effect_total{decision="none",directive="forward",effect="unknown"} 1.0' in text
    )
    assert 'routing_hints_client_finished_total{outcome="completed"} 1.0' in text


def test_every_labelled_counter_of_the_page_has_a_name_for_its_label() -> None:
    """A counter that the collector does not know would lose its label."""
    section = PAGE.read_text().split("## Counters of the worker client")[1].split("\n## ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    labelled = {name for names, label in rows if label.strip() for name in re.findall(r"`(\w+)`", names)}
    assert labelled == set(LABELS)
