"""The comparison as tables and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import matplotlib
from rich.table import Table

from bench.placement.contender import ENGINE_DEFAULT, LEAST_LOAD, Contender
from bench.placement.trial import Outcome
from bench.statistic import compare, estimate

Outcomes: TypeAlias = Mapping[Contender, Sequence[Outcome]]
"""By contender, one outcome per seed."""


def make_table(workload: str, outcomes: Outcomes, base: Contender = ENGINE_DEFAULT) -> Table:
    """Returns a workload's table; the last column holds each against `base` on the same seeds."""
    table = Table(title=workload, title_justify="left")
    for heading in ("placement", "cached %", "TTFT p50 s", "p95 s", "p99 s", "skew", "moves"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "placement" else "right")
    table.add_column(f"p95 against {base.name}, %", justify="right")
    for contender, results in outcomes.items():
        against = compare(_p95(results), _p95(outcomes[base]))
        table.add_row(
            contender.name,
            f"{estimate([100 * result.cached_share for result in results]):.1f}",
            *(f"{estimate([result.ttft_s[index] for result in results]):.2f}" for index in range(3)),
            f"{estimate([result.skew for result in results]):.2f}",
            f"{estimate([result.moves for result in results]):.2f}",
            "" if contender == base else f"{against:+.0f}",
        )
    return table


def draw_plot(path: Path, by_workload: Mapping[str, Outcomes]) -> None:
    """Draws p95 by workload and contender, as a share of the engine's default rule."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bench-placement"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    contenders = [contender for contender in next(iter(by_workload.values())) if contender != ENGINE_DEFAULT]
    width = 0.8 / len(contenders)
    for index, contender in enumerate(contenders):
        against = [
            compare(_p95(outcomes[contender]), _p95(outcomes[ENGINE_DEFAULT]))
            for outcomes in by_workload.values()
        ]
        axes.bar(
            [place + index * width for place in range(len(by_workload))],
            [each.mean for each in against],
            width,
            yerr=[each.half_width for each in against],
            label=contender.name,
            edgecolor="black" if contender == LEAST_LOAD else "none",
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(-60, 100)
    axes.set_ylabel("TTFT p95 against engine, round robin, %")
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(by_workload))], by_workload)
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def _p95(results: Sequence[Outcome]) -> list[float]:
    return [result.ttft_s[1] for result in results]
