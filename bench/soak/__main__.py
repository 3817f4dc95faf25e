"""`python -m bench.soak`: runs a soak, prints its report, and fails if it is not clean."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.soak.run import SoakReport, soak

MAX_SECONDS = 24 * 3600


@click.command()
@click.option("--seconds", default=600.0, type=click.FloatRange(1, MAX_SECONDS), show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of every choice that is made at random.")
@click.option("--control", is_flag=True, help="Switch fail-open off, and expect the report to complain.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the report here.")
def main(seconds: float, seed: int, control: bool, json_path: Path | None) -> None:
    """Soak client and sidecar."""
    report = asyncio.run(soak(seconds, fails_open=not control, seed=seed))
    _show(report)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    if control:
        sys.exit(0 if "missing ids" in report.complaints else 1)
    sys.exit(1 if report.complaints else 0)


def _show(report: SoakReport) -> None:
    table = Table("figure", "value")
    for name, value in report.to_json().items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        table.add_row(name.replace("_", " "), str(shown))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
