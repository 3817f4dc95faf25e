"""Writes the tables of docs/reference.md that follow from the code: `make reference`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from routing_hints import tokens
from routing_hints.metrics import MetricTable
from sidecar.decision.directive import RULES
from sidecar.settings import Settings, name_variable
from sidecar.telemetry import metrics
from worker_client import _metrics as client_metrics

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->\n)", re.S)


def render_page(text: str) -> str:
    """Returns the page with its tables as the code has them."""
    return _TABLE.sub(lambda match: match[1] + "\n" + TABLES[match[2]]() + "\n" + match[3], text)


def _render_table(heading: str, rows: Iterable[str]) -> str:
    columns = heading.count("|") - 1
    return "\n".join([heading, "|---" * columns + "|", *rows]) + "\n"


def _render_tokens(name: str, group: Iterable[tokens.Token]) -> str:
    listed = list(group)
    rows = [f"| `{token}{_render_parameter(token)}` | {token.meaning} |" for token in listed]
    if not any(token.advice for token in listed):
        return _render_table(f"| {name} | meaning |", rows)
    advised = (f"{row} {token.advice} |" for row, token in zip(rows, listed, strict=True))
    return _render_table(f"| {name} | meaning | what to do |", advised)


def _render_parameter(token: tokens.Token) -> str:
    if not token.parameter:
        return ""
    return f"<{token.parameter}>" if token.endswith("-") else f":<{token.parameter}>"


def _render_metrics(table: MetricTable, *kinds: str) -> str:
    return _render_table(
        "| name | kind | labels | help |",
        (
            f"| `{metric.name}` | {metric.kind} | "
            f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
            for metric in table
            if metric.kind in kinds
        ),
    )


def _list_settings() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        yield f"| `{name_variable(name)}` | `--{name.replace('_', '-')}` | {field.description} |"


TABLES: Mapping[str, Callable[[], str]] = {
    "sidecar-environment": lambda: _render_table("| variable | option | meaning |", _list_settings()),
    "notices": lambda: _render_tokens("notice", tokens.NOTICES),
    "unusable-reasons": lambda: _render_tokens("reason", tokens.UNUSABLE_REASONS),
    "remarks": lambda: _render_tokens("remark", tokens.REMARKS),
    "skip-reasons": lambda: _render_tokens("reason", tokens.SKIP_REASONS),
    "fail-open-reasons": lambda: _render_tokens("reason", tokens.FAIL_OPEN_REASONS),
    "deviation-reasons": lambda: _render_tokens("reason", tokens.DEVIATION_REASONS),
    "reading-notices": lambda: _render_tokens("notice", tokens.READING_NOTICES),
    "client-metrics": lambda: _render_metrics(client_metrics.TABLE, "counter", "gauge", "histogram"),
    "sidecar-counters": lambda: _render_metrics(metrics.TABLE, "counter"),
    "sidecar-gauges": lambda: _render_metrics(metrics.TABLE, "gauge", "histogram"),
    "rules": lambda: "\n".join(f"{number}. `{rule}`" for number, rule in enumerate(RULES, 1)) + "\n",
}


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
