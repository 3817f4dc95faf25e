"""The alerts of deploy/prometheus, by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
CASES = Path(__file__).parent / "rules_test.yaml"

PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing; Debian's package prometheus has it"
)


def _run(*arguments: str) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_are_valid() -> None:
    """Every expression parses and every template can be filled in."""
    _run("check", "rules", str(RULES))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    """The cases of rules_test.yaml hold."""
    _run("test", "rules", str(CASES))


def test_every_alert_has_a_case() -> None:
    """None is written and never tried."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    cases = yaml.safe_load(CASES.read_text())["tests"]
    tried = {entry["alertname"] for case in cases for entry in case["alert_rule_test"] if entry["exp_alerts"]}
    assert tried == {rule["alert"] for rule in rules}


def test_every_metric_of_the_alerts_is_published() -> None:
    """A name that nobody publishes would never fire."""
    page = (ROOT / "docs" / "reference.md").read_text()
    listed = set(re.findall(r"`([a-z_]+)`", page))
    used = set(re.findall(r"routing_hints_(?:client_)?([a-z_]+?)(?:_total|_bucket)?\b", RULES.read_text()))
    assert used - listed == set()
