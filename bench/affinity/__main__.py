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
from bench.affinity.calibration import Fit, choose_fits, find_fits
from bench.affinity.experiment import Job
from bench.affinity.parameter import Parameters, load_parameters
from bench.affinity.plot import draw_all

PARTS = ("band", "policies", "failures", "kv", "trace", "sensitivity")
QUICK_PARTS = ("policies", "failures")
CALIBRATION_SEEDS = range(101, 104)
SPEEDS = (8.0, 14.0, 20.0)


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of JSON, table and plots."
)
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="A trace in Mooncake's format.")
@click.option("--seeds", default=5, show_default=True, help="Seeds of each row.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; others stay.")
@click.option("--quick", is_flag=True, help="One seed of short runs, policies and failures, nothing fitted.")
@click.option("--report-only", is_flag=True, help="Run nothing; tables and plots of what is in the folder.")
def main(
    out: Path, trace: Path | None, seeds: int, parts: tuple[str, ...], quick: bool, report_only: bool
) -> None:
    """Simulates the report's topology around real clients and sidecars."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "affinity.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not report_only:
        _run(results, path, trace, range(1, 2 if quick else seeds + 1), parts, quick=quick)
    text = report.write_report(results)
    (out / "affinity.md").write_text(text, encoding="utf-8")
    click.echo(text)
    draw_all(results, out)


def _run(
    results: dict[str, Any],
    path: Path,
    trace: Path | None,
    seeds: range,
    parts: tuple[str, ...],
    *,
    quick: bool,
) -> None:
    """Fits where that has not been done, runs the parts, and saves after each trial."""
    parameters = load_parameters()
    if quick:
        parameters = replace(parameters, warm_up_s=5.0, duration_s=12.0)
        parts = QUICK_PARTS
        fits = [Fit(parameters.context_tokens_per_s, parameters.generation_step_s, 0.0, 0.0)]
    else:
        if "fits" not in results:
            tried = _calibrate(parameters)
            results["tried"] = [asdict(fit) for fit in tried]
            results["fits"] = [asdict(fit) for fit in choose_fits(tried)]
            _save(path, results)
        fits = [Fit(**fit) for fit in results["fits"]]
    plans = _plan(parameters, fits, seeds, trace)
    chosen = [part for part in parts or PARTS if part in plans]
    with Progress() as progress:
        for part in chosen:
            jobs = plans[part]()
            task = progress.add_task(part, total=len(jobs))
            results[part] = []
            for job, outcome in experiment.run_jobs(jobs):
                row = {"case": job.case, "arm": job.arm.name, "seed": job.seed, **outcome.as_dict()}
                results[part].append(row)
                progress.advance(task)
                _save(path, results)


def _plan(
    parameters: Parameters, fits: list[Fit], seeds: range, trace: Path | None
) -> dict[str, Callable[[], list[Job]]]:
    fitted = fits[0].apply(parameters)
    plans: dict[str, Callable[[], list[Job]]] = {
        "band": lambda: experiment.plan_band([fit.apply(parameters) for fit in fits], seeds[:3]),
        "policies": lambda: experiment.plan_policies(fitted, seeds),
        "failures": lambda: experiment.plan_failures(fitted, seeds),
        "kv": lambda: experiment.plan_kv(fitted, seeds),
        "sensitivity": lambda: experiment.plan_sensitivity(fitted, seeds[:2]),
    }
    if trace is not None:
        plans["trace"] = lambda: experiment.plan_trace(fitted, seeds[:3], trace, SPEEDS)
    return plans


def _calibrate(parameters: Parameters) -> list[Fit]:
    with Progress() as progress:
        task = progress.add_task("calibration on before", total=None)
        tried = []
        for fit in find_fits(parameters, CALIBRATION_SEEDS):
            tried.append(fit)
            progress.advance(task)
    return tried


def _save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
