"""The alerts of deploy/prometheus, by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.telemetry import metrics as sidecar_metrics
from worker_client import _metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
CASES = Path(__file__).parent / "rules_test.yaml"

_SUFFIXES = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing; Debian's package prometheus has it"
)


def _run(*arguments: str) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_expressions_and_templates_of_the_rules_are_valid() -> None:
    _run("check", "rules", str(RULES))


@needs_promtool
def test_alerts_fire_in_the_cases_of_rules_test_and_only_then() -> None:
    _run("test", "rules", str(CASES))


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    cases = yaml.safe_load(CASES.read_text())["tests"]
    tried = {entry["alertname"] for case in cases for entry in case["alert_rule_test"] if entry["exp_alerts"]}
    assert tried == {rule["alert"] for rule in rules}


def test_every_metric_and_label_of_the_alerts_is_declared() -> None:
    """One that nobody publishes would never fire."""
    declared = {
        table.prefix + metric.name + _SUFFIXES[metric.kind]: set(metric.labels)
        for table in (sidecar_metrics.TABLE, _metrics.TABLE)
        for metric in table
    }
    for path in (RULES, CASES):
        used = re.findall(r"(routing_hints_\w+)(?:\{([^}]*)\})?", path.read_text())
        assert {name for name, _ in used} - declared.keys() == set(), path
        for name, matchers in used:
            labels = set(re.findall(r"(\w+)=", matchers))
            assert labels <= declared[name] | {"instance", "le"}, (path, name)
