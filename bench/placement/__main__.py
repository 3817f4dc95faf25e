"""`python -m bench.placement`: runs the comparison on every core, prints its tables, draws its plot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from bench.placement.contender import CONTENDERS, ENGINE_DEFAULT, Contender, weigh_residents
from bench.placement.engine import EngineShape
from bench.placement.report import Outcomes, draw_plot, make_table
from bench.placement.trial import Outcome, Trial, Workload
from bench.placement.workload import AGENTS, HELD_OUT, TRACE_SOURCE, TraceWorkload

WEIGHTS = (0.0, 0.01, 0.05, 0.2, 1.0, 5.0)
_TABLE_WIDTH = 150


def run_trial(task: tuple[Workload, Contender, int]) -> Outcome:
    """Runs one trial, in a process of the pool."""
    return Trial(*task).run()


def run_all(
    workloads: Sequence[Workload], contenders: Sequence[Contender], seeds: int, console: Console
) -> dict[str, Outcomes]:
    """Returns the outcomes of every workload by its name."""
    tasks = list(product(workloads, contenders, range(1, seeds + 1)))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        progress = track(pool.map(run_trial, tasks), total=len(tasks), console=console)
        results = dict(zip(tasks, progress, strict=True))
    return {
        workload.name: {
            contender: [results[workload, contender, seed] for seed in range(1, seeds + 1)]
            for contender in contenders
        }
        for workload in workloads
    }


@click.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(2), help="Runs of each pair.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Plays this trace too, in the format of {TRACE_SOURCE}.",
)
@click.option(
    "--only", multiple=True, metavar="WORKLOAD", help="Plays these alone; may be given several times."
)
@click.option("--weights", is_flag=True, help="Compares weights of resident tokens instead.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draws the comparison into this SVG file.")
def main(seeds: int, trace: Path | None, only: tuple[str, ...], weights: bool, plot: Path | None) -> None:
    """Compares placements of conversations on simulated ranks."""
    console = Console(width=_TABLE_WIDTH)
    workloads: list[Workload] = [AGENTS, *HELD_OUT]
    if trace is not None:
        engine = EngineShape()
        workloads.append(TraceWorkload("trace", engine, trace))
        workloads.append(TraceWorkload("trace, short of KV", replace(engine, kv_tokens=1_000_000), trace))
    if unknown := set(only) - {workload.name for workload in workloads}:
        raise click.BadParameter(f"no such workload: {', '.join(sorted(unknown))}")
    if only:
        workloads = [workload for workload in workloads if workload.name in only]
    contenders: tuple[Contender, ...] = CONTENDERS
    if weights:
        contenders = (ENGINE_DEFAULT, *map(weigh_residents, WEIGHTS))
    by_workload = run_all(workloads, contenders, seeds, console)
    for name, outcomes in by_workload.items():
        console.print(make_table(name, outcomes))
    if plot is not None:
        draw_plot(plot, by_workload)


if __name__ == "__main__":
    main()
