"""The pictures of docs/validation.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.affinity.arm import BEFORE, ENGINE, SIDECAR
from bench.affinity.report import percentile, select
from bench.statistic import estimate

_SHOWN = (BEFORE, ENGINE, SIDECAR)


def draw_all(results: dict[str, Any], out: Path) -> None:
    """Writes every picture that the results have data for."""
    out.mkdir(parents=True, exist_ok=True)
    if "policies" in results:
        _draw_distribution(results["policies"], out / "affinity-ttft.png")
        _draw_work(results["policies"], out / "affinity-work.png")
    if "trace" in results:
        _draw_load(results["trace"], out / "affinity-load.png")


def _draw_distribution(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in dict.fromkeys(row["arm"] for row in rows):
        if "context phase" not in name:
            values = np.mean([row["ttft_s"] for row in select(rows, name)], axis=0)
            axes.plot(values, np.arange(101), label=name)
    axes.set(xlabel="TTFT, s", ylabel="% of requests", title="TTFT, mean of the seeds' percentiles")
    axes.legend()
    _save(figure, path)


def _draw_work(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure, panels = plt.subplots(len(_SHOWN), 1, figsize=(7, 7), sharex=True)
    for axes, arm in zip(panels, _SHOWN, strict=True):
        work = np.array(select(rows, arm)[0]["work"][:-1])  # the last second is not a whole one
        for rank in range(work.shape[1]):
            axes.plot(work[:, rank], label=f"rank {rank}", linewidth=0.9)
        axes.set(ylabel="tokens/s", title=arm.name, ylim=(0, None))
    panels[0].legend(ncol=work.shape[1])
    panels[-1].set_xlabel("s")
    _save(figure, path)


def _draw_load(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for name in dict.fromkeys(row["arm"] for row in rows):
        points = [estimate(percentile(select(rows, name, case), 95)) for case in cases]
        axes.errorbar(
            cases, [at.mean for at in points], [at.half_width for at in points], label=name, capsize=3
        )
    axes.set(xlabel="speed of the trace", ylabel="TTFT p95, s", yscale="log")
    axes.legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
