"""The client's counters: their names and labels, which dashboards rely on, and how `stats()` shows them."""

from __future__ import annotations

import pytest

from routing_hints.metrics import Metric, MetricStore
from tests.support.builders import (
    ENGINE,
    WITHHOLD,
    build_client,
    build_decision,
    build_output,
    build_request,
)
from worker_client import Phase, RequestKind, _metrics

NAMES = {
    "plans": ("origin",),
    "skipped_requests": ("reason",),
    "fail_open": ("reason",),
    "plan_deviations": ("reason",),
    "applied": ("directive",),
    "id_attached": ("phase",),
    "id_not_attached": ("reason",),
    "finished": ("outcome",),
    "conversation_returns": ("directive", "placement", "result"),
    "cached_tokens": ("directive", "placement"),
    "prompt_tokens": ("directive", "placement"),
    "router_rank_dropped": (),
    "late_decisions": (),
    "refused_items": ("code",),
    "reuse_corrected": ("what",),
    "reuse_dropped": ("source",),
    "stream_lost": ("reason",),
    "policies_received": (),
    "finishes_lost": (),
    "internal_errors": ("exception",),
}


def test_the_names_and_labels_are_pinned() -> None:
    """Adding one is a decision, renaming one breaks dashboards and alerts."""
    assert _metrics.TABLE.prefix == "routing_hints_client_"
    assert {metric.name: metric.labels for metric in _metrics.TABLE} == NAMES
    assert {metric.kind for metric in _metrics.TABLE} == {"counter"}


@pytest.mark.parametrize("metric", list(_metrics.TABLE), ids=lambda metric: metric.name)
def test_each_counter_says_what_it_counts_in_one_sentence(metric: Metric) -> None:
    assert metric.help[0].isupper()
    assert metric.help.endswith(".")


def test_stats_are_name_to_label_values_joined_by_slashes_to_count() -> None:
    store = MetricStore(_metrics.TABLE)
    store.add(_metrics.PLANS, "memory")
    store.add(_metrics.CONVERSATION_RETURNS, "withhold", "none", "same", amount=2)
    store.add(_metrics.LATE_DECISIONS)
    assert _metrics.read_stats(store) == {
        "plans": {"memory": 1},
        "conversation_returns": {"withhold/none/same": 2},
        "late_decisions": {"": 1},
    }


async def test_stats_of_a_client_show_what_became_of_its_requests() -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    async with client.plan(build_request(rank=4), phase=Phase.PREFILL, engine=ENGINE) as plan:
        plan.engine_kwargs()
        plan.observe(build_output(3, cached_tokens=2))
    await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE, kind=RequestKind.WARMUP)
    assert client.stats() == {
        "plans": {"sidecar": 1, "forwarded": 1},
        "skipped_requests": {"kind-warmup": 1},
        "applied": {"withhold": 1},
        "id_attached": {"prefill": 1},
        "finished": {"completed": 1},
        "conversation_returns": {"withhold/none/first": 1},
        "cached_tokens": {"withhold/none": 2},
        "prompt_tokens": {"withhold/none": 3},
        "router_rank_dropped": {"": 1},
    }
    assert _metrics.read_stats(client.metrics) == client.stats()
