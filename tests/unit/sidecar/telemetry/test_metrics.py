"""The table of the sidecar's metrics."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from routing_hints.metrics import Metric
from sidecar.telemetry.metrics import TABLE

_EVERY_METRIC = pytest.mark.parametrize("metric", list(TABLE), ids=[metric.name for metric in TABLE])


def test_no_metric_is_declared_twice() -> None:
    assert [name for name, count in Counter(metric.name for metric in TABLE).items() if count > 1] == []


@_EVERY_METRIC
def test_metric_has_a_plain_name_and_a_sentence_of_help(metric: Metric) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", metric.name)
    # The exporter adds it.
    assert not metric.name.endswith("_total")
    assert metric.help[0].isalnum()
    assert metric.help.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in metric.labels)


@_EVERY_METRIC
def test_only_histograms_have_buckets_and_theirs_ascend(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_shares_are_ratios_and_not_percentages() -> None:
    """Prometheus' base units."""
    assert [metric.name for metric in TABLE if "percent" in metric.name] == []
    assert {metric.name for metric in TABLE if metric.name.endswith("_ratio")} == {
        "affinity_active_ratio",
        "placement_outstanding_skew_ratio",
        "placement_resident_skew_ratio",
        "single_use_ratio",
    }
