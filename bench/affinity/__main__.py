"""The command `python -m bench.affinity`; see `make bench-affinity`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from bench.affinity import experiment, report
from bench.affinity.calibration import READINGS, SETTINGS, Fit, choose_fits, find_fits
from bench.affinity.experiment import Job, Runner
from bench.affinity.parameter import load_parameters
from bench.affinity.plot import draw_all

PARTS = ("policies", "failures", "band", "kv", "trace", "sensitivity")
CALIBRATION_SEEDS = range(101, 106)
SPEEDS = (10.0, 16.0, 22.0)


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
        with Runner() as runner, Progress() as progress:
            if quick:
                jobs = _plan_quick()
            else:
                _fit(runner, progress, results, path)
                jobs = _plan(results, parts, range(1, seeds + 1), trace)
            _run_jobs(runner, progress, results, path, jobs)
    text = report.write_report(results)
    (out / "affinity.md").write_text(text, encoding="utf-8")
    click.echo(text)
    draw_all(results, images or out)


def _plan_quick() -> list[Job]:
    parameters = replace(load_parameters(), warm_up_s=5.0, duration_s=10.0)
    parameters = replace(parameters, scattered_warm_up_s=5.0, scattered_duration_s=10.0)
    seeds = range(1, 2)
    return [
        *experiment.plan_policies(parameters, seeds, experiment.MAIN_ARMS),
        *experiment.plan_failures(parameters, seeds),
    ]


def _fit(runner: Runner, progress: Progress, results: dict[str, Any], path: Path) -> None:
    """Fits each reading of "before", where that has not been done."""
    tried = results.setdefault("tried", {})
    results.setdefault("fits", {})
    for reading, before in READINGS.items():
        if reading in tried:
            continue
        task = progress.add_task(f"fit on before, {reading}", total=SETTINGS)
        fits = []
        for fit in find_fits(runner, load_parameters(), before, CALIBRATION_SEEDS):
            fits.append(fit)
            progress.advance(task)
        tried[reading] = [asdict(fit) for fit in fits]
        results["fits"][reading] = [asdict(fit) for fit in choose_fits(fits)]
        _save(path, results)


def _plan(results: dict[str, Any], parts: tuple[str, ...], seeds: range, trace: Path | None) -> list[Job]:
    """Returns the trials of the parts, or of all; a trace's only with a trace."""
    parameters = load_parameters()
    fits = {
        reading: [Fit(**fit).apply(parameters) for fit in rows] for reading, rows in results["fits"].items()
    }
    band = {reading: (READINGS[reading], fitted) for reading, fitted in fits.items()}
    fitted = fits["balanced"][0]
    plans: dict[str, Callable[[], list[Job]]] = {
        "policies": lambda: experiment.plan_policies(fitted, seeds),
        "failures": lambda: experiment.plan_failures(fitted, seeds),
        "band": lambda: experiment.plan_band(band, seeds),
        "kv": lambda: experiment.plan_kv(fitted, seeds),
        "trace": lambda: [] if trace is None else experiment.plan_trace(fitted, seeds, trace, SPEEDS),
        "sensitivity": lambda: experiment.plan_sensitivity(fitted, seeds),
    }
    return [job for part in parts or PARTS for job in plans[part]()]


def _run_jobs(
    runner: Runner, progress: Progress, results: dict[str, Any], path: Path, jobs: list[Job]
) -> None:
    """Runs trials; those of a part replace what the results have of it, once they are complete."""
    task = progress.add_task("trials", total=len(jobs))
    for part, trials in groupby(runner.run(jobs), key=lambda trial: trial[0].part):
        progress.update(task, description=part)
        rows = []
        for job, outcome in trials:
            rows.append({"case": job.case, "arm": job.arm.name, "seed": job.seed, **outcome.as_dict()})
            progress.advance(task)
        results[part] = rows
        _save(path, results)


def _save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
