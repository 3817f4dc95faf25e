"""Fits the two free parameters to the report's "before" row, and to nothing else.

The report does not say how its requests were placed before. Two readings are fitted, each on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bench.affinity.arm import BEFORE, BEFORE_FORCED, Arm
from bench.affinity.experiment import Job, Runner
from bench.affinity.parameter import Parameters

BEFORE_P95_S = 8.39
BEFORE_REQUESTS_PER_S = 46.0
TOLERANCE = 0.05
READINGS = {"balanced": BEFORE, "forced": BEFORE_FORCED}
"""What "before" may have been: the engines balanced without ids, or the router's rank was forced."""
_RATES = (46_000.0, 52_000.0, 58_000.0, 65_000.0, 73_000.0)
_STEPS_S = (0.006, 0.010, 0.014, 0.018, 0.022)
_FINE = (0.94, 0.98, 1.02, 1.06)
_COARSE_SEEDS = 1
SETTINGS = len(_RATES) * len(_STEPS_S) + len(_FINE) ** 2


@dataclass(frozen=True, slots=True)
class Fit:
    """One setting of the free parameters, and what it gives for "before": means over `seeds` seeds."""

    context_tokens_per_s: float
    generation_step_s: float
    p95_s: float
    requests_per_s: float
    seeds: int

    @property
    def error(self) -> float:
        """The larger relative error against the report's "before" row."""
        return max(abs(self.p95_s / BEFORE_P95_S - 1), abs(self.requests_per_s / BEFORE_REQUESTS_PER_S - 1))

    def apply(self, parameters: Parameters) -> Parameters:
        """Returns `parameters` with these."""
        return replace(
            parameters,
            context_tokens_per_s=self.context_tokens_per_s,
            generation_step_s=self.generation_step_s,
        )


def find_fits(runner: Runner, parameters: Parameters, arm: Arm, seeds: range) -> Iterator[Fit]:
    """Gives every setting that was tried: a coarse grid on few seeds, then a fine one around its best."""
    coarse = []
    for fit in _try_all(
        runner, parameters, arm, [(rate, step) for rate in _RATES for step in _STEPS_S], seeds[:_COARSE_SEEDS]
    ):
        coarse.append(fit)
        yield fit
    best = min(coarse, key=lambda fit: fit.error)
    grid = [
        (best.context_tokens_per_s * rate, best.generation_step_s * step) for rate in _FINE for step in _FINE
    ]
    yield from _try_all(runner, parameters, arm, grid, seeds)


def choose_fits(fits: Iterable[Fit]) -> list[Fit]:
    """Returns the fits within the tolerance, of those on the most seeds; the best first, if need be alone."""
    fits = list(fits)
    most = max(fit.seeds for fit in fits)
    ranked = sorted((fit for fit in fits if fit.seeds == most), key=lambda fit: fit.error)
    return [fit for fit in ranked if fit.error <= TOLERANCE] or ranked[:1]


def _try_all(
    runner: Runner, parameters: Parameters, arm: Arm, grid: Iterable[tuple[float, float]], seeds: range
) -> Iterator[Fit]:
    settings = [
        replace(parameters, context_tokens_per_s=rate, generation_step_s=step_s) for rate, step_s in grid
    ]
    jobs = [Job("calibration", "", arm, setting, seed) for setting in settings for seed in seeds]
    outcomes = (outcome for _, outcome in runner.run(jobs))
    for setting in settings:
        mine = [next(outcomes) for _ in seeds]
        yield Fit(
            setting.context_tokens_per_s,
            setting.generation_step_s,
            p95_s=float(np.mean([outcome.ttft_s[95] for outcome in mine])),
            requests_per_s=float(np.mean([outcome.requests_per_s for outcome in mine])),
            seeds=len(seeds),
        )
