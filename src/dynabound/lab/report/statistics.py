"""Means, standard deviations, and tests of differences between methods that were run with a few seeds each.

A comparison is a contrast: a weighted sum of the methods' means. Its standard error uses the variance pooled over all
methods of a panel, because three seeds of one method say little about its variance. A claim says in which region the true
value of the contrast lies; it is decided for or against by one-sided tests, corrected with Holm's procedure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALPHA", "Estimate", "Level", "contrast", "holm", "mean", "std"]

ALPHA = 0.05
"""The probability of a false decision in a study."""
_OWN = 4.0
"""Welch's test replaces pooling where the compared methods' variance is more than this multiple of the others'."""
_OTHERS = 16.0
"""Methods whose variance is more than this multiple of the compared ones' (four standard deviations) are not pooled."""

Values = Sequence[float]


def mean(values: Values) -> float:
    """The mean; NaN if there are no values."""
    return statistics.fmean(values) if values else math.nan


def std(values: Values) -> float:
    """The sample standard deviation; NaN if there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Estimate:
    """A contrast as it was measured: its value, standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float

    @property
    def known(self) -> bool:
        """Whether there is a spread to judge by: seeds that all agree, or single seeds, have none."""
        return self.freedom > 0 and self.error > 0

    def p_above(self, bound: float) -> float:
        """The one-sided p value of "the true value is above ``bound``"."""
        from scipy.stats import t

        if math.isinf(bound):
            return 0.0 if bound < 0 else 1.0
        return float(t.sf((self.value - bound) / self.error, self.freedom)) if self.known else 1.0

    def p_below(self, bound: float) -> float:
        """The one-sided p value of "the true value is below ``bound``"."""
        return Estimate(-self.value, self.error, self.freedom).p_above(-bound)

    def p_inside(self, low: float, high: float) -> float:
        """Of "the true value lies between ``low`` and ``high``": two one-sided tests, if both are finite."""
        return max(self.p_above(low), self.p_below(high))

    def p_outside(self, low: float, high: float) -> float:
        """Of "the true value lies below ``low`` or above ``high``"."""
        return min(self.p_below(low), self.p_above(high))

    def margin(self, alpha: float) -> float:
        """Half the width of the interval of confidence 1 − 2·``alpha``, which one-sided tests at ``alpha`` go with."""
        from scipy.stats import t

        return float(t.isf(alpha, self.freedom)) * self.error if self.known else math.inf


def contrast(weighted: Sequence[tuple[float, Values]], panel: Sequence[Values], constant: float = 0.0) -> Estimate:
    """Estimate Σ weight · mean + ``constant``; ``panel`` has the values of all methods that share a spread.

    The variance is pooled over the panel, without methods that spread more than four times as much as the compared
    ones. If the compared ones themselves have more than four times the variance of the rest, nothing is pooled:
    that is Welch's test.

    >>> adam, sgd, others = [90.0, 90.4, 90.2], [91.0, 91.3, 91.1], [[89.9, 90.2, 90.3], [90.5, 90.6, 90.9]]
    >>> found = contrast([(1, sgd), (-1, adam)], [adam, sgd, *others])
    >>> round(found.value, 2), found.freedom, found.p_above(0) < 0.001
    (0.93, 8, True)
    """
    value = constant + sum(weight * mean(values) for weight, values in weighted)
    own = [values for _, values in weighted]
    others = [values for values in panel if not any(values is mine for mine in own)]
    variance, freedom = _pool(own)
    rest = [values for values in others if freedom == 0 or _pool([values])[0] <= _OTHERS * variance]
    rest_variance, rest_freedom = _pool(rest)
    if freedom and rest_freedom and variance > _OWN * rest_variance:
        return _welch(value, weighted)
    pooled, pooled_freedom = _pool([*own, *rest])
    scale = sum(weight**2 / len(values) for weight, values in weighted) if all(own) else math.nan
    return Estimate(value, math.sqrt(pooled * scale), pooled_freedom)


def _pool(samples: Sequence[Values]) -> tuple[float, int]:
    """The pooled variance and its degrees of freedom."""
    freedom = sum(len(values) - 1 for values in samples if values)
    squares = sum((len(values) - 1) * statistics.variance(values) for values in samples if len(values) > 1)
    return (squares / freedom if freedom else 0.0), freedom


def _welch(value: float, weighted: Sequence[tuple[float, Values]]) -> Estimate:
    """Each method's own variance, with Satterthwaite's degrees of freedom."""
    if any(len(values) < 2 for _, values in weighted):
        return Estimate(value, math.nan, 0)
    parts = [(weight**2 * statistics.variance(values) / len(values), len(values) - 1) for weight, values in weighted]
    variance = sum(part for part, _ in parts)
    return Estimate(value, math.sqrt(variance), variance**2 / sum(part**2 / freedom for part, freedom in parts))


@dataclass(frozen=True)
class Level:
    """What Holm's procedure makes of one p value."""

    p: float
    """The adjusted p value."""
    alpha: float
    """The level at which it was tested, or at which the procedure stopped: it goes with its interval."""

    @property
    def decided(self) -> bool:
        """Whether the hypothesis is rejected."""
        return self.p <= ALPHA


def holm(p_values: Sequence[float]) -> list[Level]:
    """Holm's procedure: the smallest p value is tested at α/m, the next at α/(m − 1), until one is not small enough.

    >>> [(round(level.p, 3), level.decided) for level in holm([0.01, 0.04, 0.03])]
    [(0.03, True), (0.06, False), (0.06, False)]
    """
    count = len(p_values)
    levels: list[Level] = [Level(1.0, ALPHA)] * count
    highest, alpha = 0.0, ALPHA
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        if highest <= ALPHA:
            alpha = ALPHA / (count - rank)
        highest = max(highest, min(1.0, (count - rank) * p_values[index]))
        levels[index] = Level(highest, alpha)
    return levels
