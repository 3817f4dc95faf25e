"""Fits the two free parameters to the report's "before" row, and to nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bench.affinity.arm import BEFORE
from bench.affinity.experiment import Job, run_jobs
from bench.affinity.parameter import Parameters

BEFORE_P95_S = 8.39
BEFORE_REQUESTS_PER_S = 46.0
TOLERANCE = 0.05
MAX_FITS = 5
_RATES = (46_000.0, 51_000.0, 56_000.0, 62_000.0)
_STEPS_S = (0.004, 0.006, 0.008, 0.010)
_FINE = (0.92, 0.96, 1.0, 1.04, 1.08)


@dataclass(frozen=True, slots=True)
class Fit:
    """One setting of the free parameters, and what it gives for "before".

    Attributes:
        error: the larger of the two relative errors.
    """

    context_tokens_per_s: float
    generation_step_s: float
    p95_s: float
    requests_per_s: float

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


def find_fits(parameters: Parameters, seeds: range) -> Iterator[Fit]:
    """Gives every setting that was tried: a coarse grid, then a fine one around its best."""
    coarse = list(_try_all(parameters, [(rate, step) for rate in _RATES for step in _STEPS_S], seeds[:1]))
    yield from coarse
    best = min(coarse, key=lambda fit: fit.error)
    grid = [
        (best.context_tokens_per_s * rate, best.generation_step_s * step) for rate in _FINE for step in _FINE
    ]
    yield from _try_all(parameters, grid, seeds)


def choose_fits(fits: Iterable[Fit]) -> list[Fit]:
    """Returns the fits within the tolerance, the best first and at most `MAX_FITS` spread over them.

    Where none is, the best alone.
    """
    ranked = sorted(fits, key=lambda fit: fit.error)
    good = [fit for fit in ranked if fit.error <= TOLERANCE] or ranked[:1]
    picks = {round(pick) for pick in np.linspace(0, len(good) - 1, min(MAX_FITS, len(good)))}
    return [good[pick] for pick in sorted(picks)]


def _try_all(parameters: Parameters, grid: Iterable[tuple[float, float]], seeds: range) -> Iterator[Fit]:
    grid = list(grid)
    jobs = [
        Job(
            "calibration",
            str(number),
            BEFORE,
            replace(parameters, context_tokens_per_s=rate, generation_step_s=step_s),
            seed,
        )
        for number, (rate, step_s) in enumerate(grid)
        for seed in seeds
    ]
    outcomes = [outcome for _, outcome in run_jobs(jobs)]
    for number, (rate, step_s) in enumerate(grid):
        mine = outcomes[number * len(seeds) : (number + 1) * len(seeds)]
        yield Fit(
            rate,
            step_s,
            p95_s=float(np.mean([outcome.ttft_s[95] for outcome in mine])),
            requests_per_s=float(np.mean([outcome.requests_per_s for outcome in mine])),
        )
