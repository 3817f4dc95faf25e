"""Means over seeds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's t for 95 %, two-sided, by degrees of freedom.
_T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_T_95_BEYOND = 2.23


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and half the width of its 95 % interval."""

    mean: float
    half_width: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ± {self.half_width:{spec.lstrip('+')}}"


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of at least two values and its interval."""
    freedom = len(values) - 1
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Estimate(float(np.mean(values)), _T_95.get(freedom, _T_95_BEYOND) * error)


def compare(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """Returns by how many percent values differ from those of the same seeds."""
    return estimate([100 * (value / other - 1) for value, other in zip(values, base, strict=True)])
