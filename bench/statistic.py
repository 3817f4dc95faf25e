"""Means over seeds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's t for 95 %, two-sided, by degrees of freedom.
_T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_T_95_BEYOND = 2.228


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and half the width of its 95 % interval, which is not a number for a single value."""

    mean: float
    half_width: float

    def __format__(self, spec: str) -> str:
        mean = f"{self.mean:{spec}}"
        return mean if np.isnan(self.half_width) else f"{mean} ± {self.half_width:{spec.lstrip('+')}}"


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of one value or more, and its interval."""
    mean, freedom = float(np.mean(values)), len(values) - 1
    if freedom == 0:
        return Estimate(mean, float("nan"))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Estimate(mean, _T_95.get(freedom, _T_95_BEYOND) * error)


def compare(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """Returns by how many percent values differ from those of the same seeds."""
    return estimate([100 * (value / other - 1) for value, other in zip(values, base, strict=True)])
