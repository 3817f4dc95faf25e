"""The command `python -m bench.affinity`; see `make bench-affinity`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from bench.affinity import experiment, report
from bench.affinity.calibration import READINGS, SETTINGS, Fit, choose_fits, find_fits
from bench.affinity.experiment import Job, Runner
from bench.affinity.parameter import Parameters, load_parameters
from bench.affinity.plot import draw_all

PARTS = ("band", "policies", "failures", "kv", "trace", "sensitivity")
CALIBRATION_SEEDS = range(101, 106)
SPEEDS = (8.0, 14.0, 20.0)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of JSON and tables.")
@click.option(
    "--images", type=click.Path(path_type=Path), help="Folder of plots; the one of --out if not given."
)
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="A trace in Mooncake's format.")
@click.option("--seeds", default=5, show_default=True, help="Seeds of each row.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; others stay.")
@click.option("--quick", is_flag=True, help="One seed of short runs, few policies, failures, nothing fitted.")
@click.option("--report-only", is_flag=True, help="Run nothing; tables and plots of what is in the folder.")
def main(
    out: Path,
    images: Path | None,
    trace: Path | None,
    seeds: int,
    parts: tuple[str, ...],
    quick: bool,
    report_only: bool,
) -> None:
    """Simulates the report's topology around real clients and sidecars."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "affinity.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not report_only:
        try:
            with Runner() as runner, Progress() as progress:
                if quick:
                    _run_jobs(runner, progress, results, _plan_quick())
                else:
                    _run_parts(runner, progress, results, trace, range(1, seeds + 1), parts)
        finally:
            path.write_text(json.dumps(results), encoding="utf-8")
    text = report.write_report(results)
    (out / "affinity.md").write_text(text, encoding="utf-8")
    click.echo(text)
    draw_all(results, images or out)


def _plan_quick() -> list[Job]:
    parameters = replace(load_parameters(), warm_up_s=5.0, duration_s=10.0)
    seeds = range(1, 2)
    return [
        *experiment.plan_policies(parameters, seeds, experiment.MAIN_ARMS),
        *experiment.plan_failures(parameters, seeds),
    ]


def _run_parts(
    runner: Runner,
    progress: Progress,
    results: dict[str, Any],
    trace: Path | None,
    seeds: range,
    parts: tuple[str, ...],
) -> None:
    """Fits where that has not been done, then runs the parts."""
    parameters = load_parameters()
    if "fits" not in results:
        tried = {reading: _calibrate(runner, progress, parameters, reading) for reading in READINGS}
        results["tried"] = {reading: [asdict(fit) for fit in fits] for reading, fits in tried.items()}
        results["fits"] = {
            reading: [asdict(fit) for fit in choose_fits(fits)] for reading, fits in tried.items()
        }
    fits = {reading: [Fit(**fit) for fit in rows] for reading, rows in results["fits"].items()}
    plans = _plan(parameters, fits, seeds, trace)
    chosen = [part for part in parts or PARTS if part in plans]
    _run_jobs(runner, progress, results, [job for part in chosen for job in plans[part]()])


def _run_jobs(runner: Runner, progress: Progress, results: dict[str, Any], jobs: list[Job]) -> None:
    """Runs trials; those of a part replace what the results have of it."""
    task = progress.add_task("trials", total=len(jobs))
    fresh: dict[str, list[dict[str, Any]]] = {}
    for job, outcome in runner.run(jobs):
        row = {"case": job.case, "arm": job.arm.name, "seed": job.seed, **outcome.as_dict()}
        results[job.part] = fresh.setdefault(job.part, [])
        results[job.part].append(row)
        progress.update(task, advance=1, description=job.part)


def _plan(
    parameters: Parameters, fits: dict[str, list[Fit]], seeds: range, trace: Path | None
) -> dict[str, Callable[[], list[Job]]]:
    fitted = fits["balanced"][0].apply(parameters)
    band = {
        reading: (READINGS[reading], [fit.apply(parameters) for fit in good])
        for reading, good in fits.items()
    }
    plans: dict[str, Callable[[], list[Job]]] = {
        "band": lambda: experiment.plan_band(band, seeds),
        "policies": lambda: experiment.plan_policies(fitted, seeds),
        "failures": lambda: experiment.plan_failures(fitted, seeds),
        "kv": lambda: experiment.plan_kv(fitted, seeds),
        "sensitivity": lambda: experiment.plan_sensitivity(fitted, seeds),
    }
    if trace is not None:
        plans["trace"] = lambda: experiment.plan_trace(fitted, seeds, trace, SPEEDS)
    return plans


def _calibrate(runner: Runner, progress: Progress, parameters: Parameters, reading: str) -> list[Fit]:
    task = progress.add_task(f"fit on before, {reading}", total=SETTINGS)
    tried = []
    for fit in find_fits(runner, parameters, READINGS[reading], CALIBRATION_SEEDS):
        tried.append(fit)
        progress.advance(task)
    return tried


if __name__ == "__main__":
    main()
