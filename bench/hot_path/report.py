"""The figures of a run as one table and one JSON document."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.hot_path.drive import Sample


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, held against what it must be (docs/performance.md).

    Attributes:
        value: what was measured.
        must, aim: bounds; upper ones unless `is_at_least`.
    """

    name: str
    value: float
    must: float
    aim: float | None = None
    is_at_least: bool = False
    unit: str = "x"

    @property
    def is_met(self) -> bool:
        """Whether the must is met."""
        return self.value >= self.must if self.is_at_least else self.value <= self.must

    def describe_bound(self, bound: float | None) -> str:
        """Returns a bound as text."""
        return "" if bound is None else f"{'≥' if self.is_at_least else '≤'} {bound:g} {self.unit}"


@dataclass(slots=True)
class Report:
    """Everything that a run measured."""

    figures: list[Figure] = field(default_factory=list)
    samples: dict[str, Sample] = field(default_factory=dict)
    """Medians over the rounds, by load generator and number in flight."""
    facts: dict[str, float] = field(default_factory=dict)
    """What has no bound, by name with unit."""

    def to_json(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold."""
        return {
            "machine": describe_machine(),
            "figures": [asdict(figure) | {"is_met": figure.is_met} for figure in self.figures],
            "samples": {name: asdict(sample) for name, sample in self.samples.items()},
            "facts": self.facts,
        }

    def show(self) -> None:
        """Prints the report."""
        console = Console(width=118)
        latency = Table(
            "load generator, in flight", "p50 us", "p99 us", "responses/s", "client CPU s", "server CPU s"
        )
        for name, sample in self.samples.items():
            latency.add_row(
                name,
                f"{sample.p50_us:,.0f}",
                f"{sample.p99_us:,.0f}",
                f"{sample.per_s:,.0f}",
                f"{sample.client_cpu_s:.2f}",
                f"{sample.server_cpu_s:.2f}",
            )
        latency.caption = "medians over the rounds; CPU seconds per 100,000 responses"
        figures = Table("figure", "measured", "must", "aim", "")
        for figure in self.figures:
            figures.add_row(
                figure.name,
                f"{figure.value:.3g} {figure.unit}",
                figure.describe_bound(figure.must),
                figure.describe_bound(figure.aim),
                "met" if figure.is_met else "MISSED",
            )
        facts = Table("fact", "value")
        for name, value in self.facts.items():
            facts.add_row(name, f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}")
        for table in (latency, facts, figures):
            console.print(table)


def describe_machine() -> dict[str, Any]:
    """Returns what the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        **{name: version(name) for name in ("grpcio", "protobuf", "uvloop")},
    }
