"""Means over seeds with 95 % intervals by Student's t."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95 % quantile of Student's t by the number of values."""


def find_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean, and half the width of its interval; not a number for a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, _T_975.get(len(values), 2.262) * error


def show_interval(values: Sequence[float], digits: int = 2) -> str:
    """Returns it as text."""
    mean, half = find_interval(values)
    return f"{mean:.{digits}f}" if np.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"
