"""Means, standard deviations and tests of differences between methods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["mean", "std", "welch_margin"]


def mean(values: Sequence[float]) -> float:
    """The mean; NaN if there are no values."""
    return statistics.fmean(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    """The sample standard deviation; NaN if there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def welch_margin(a: Sequence[float], b: Sequence[float]) -> float:
    """Half the width of Welch's 95 % interval for the difference of two means; infinite if it cannot be estimated.

    Seeds that agree to the last digit do so by coincidence: the other method's variance then replaces theirs.
    """
    from scipy.stats import t as student

    if min(len(a), len(b)) < 2:
        return math.inf
    variances = [statistics.variance(values) for values in (a, b)]
    if not any(variances):
        return math.inf
    x, y = ((variance or max(variances)) / len(values) for variance, values in zip(variances, (a, b), strict=True))
    freedom = (x + y) ** 2 / (x**2 / (len(a) - 1) + y**2 / (len(b) - 1))
    return float(student.ppf(0.975, freedom)) * math.sqrt(x + y)
