"""Tests of differences between methods that were run with a few seeds each, from their values to verdicts on claims.

A comparison is a contrast: a weighted sum of the methods' means. Its standard error uses the variance pooled over all
methods of a panel, because three seeds of one method say little about its variance. A claim says in which region the
true value of the contrast lies; one-sided tests, corrected with Holm's procedure, decide for or against it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED, Verdict

ALPHA = 0.05
"""The probability of a false decision in one direction, for or against claims, anywhere in a study. In both directions
together it is 5.6 to 7.2 % in simulations."""
_POOLED = (1 / 4, 25.0)
"""Other methods are pooled if their variance is between these multiples of the compared methods' variance: from half to
five times the standard deviation. In simulations a narrower range finds fewer true differences, a wider one more false
ones."""

_SIGN_TEST = math.ceil(-math.log2(ALPHA))
"""Seeds that a sign test takes to decide anything."""

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
    agreeing: int = 0
    """If it is the mean of one method whose seeds all agree: their number. Then a sign test replaces the t test."""

    @property
    def known(self) -> bool:
        """Whether there is a spread to test with; not if the seeds of two methods all agree, or are single."""
        return self.agreeing > 1 or (self.freedom > 0 and self.error > 0)

    def p_above(self, bound: float) -> float:
        """The one-sided p value of "the true value is above ``bound``"."""
        from scipy.special import stdtr

        if math.isinf(bound):
            return 0.0 if bound < 0 else 1.0
        if self.agreeing:
            return 0.5**self.agreeing if self.value > bound else 1.0
        return float(stdtr(self.freedom, (bound - self.value) / self.error)) if self.known else 1.0

    def p_below(self, bound: float) -> float:
        """The one-sided p value of "the true value is below ``bound``"."""
        return replace(self, value=-self.value).p_above(-bound)

    def margin(self, alpha: float) -> float:
        """Half the width of the interval of confidence 1 − 2·``alpha``, which matches one-sided tests at ``alpha``."""
        from scipy.special import stdtrit

        if self.agreeing:
            return 0.0 if 0.5**self.agreeing <= alpha else math.inf
        return -float(stdtrit(self.freedom, alpha)) * self.error if self.known else math.inf


def contrast(weighted: Sequence[tuple[float, Values]], panel: Sequence[Values], constant: float = 0.0) -> Estimate:
    """Estimate Σ weight · mean + ``constant``; ``panel`` has the values of all methods that share a spread.

    The variance is pooled over the compared methods and the other methods of the panel with a similar spread. If there
    is no such method, each compared method keeps its own variance: Welch's test.

    >>> adam, sgd, others = [90.0, 90.4, 90.2], [91.0, 91.3, 91.1], [[89.9, 90.2, 90.3], [90.5, 90.6, 90.9]]
    >>> found = contrast([(1, sgd), (-1, adam)], [adam, sgd, *others])
    >>> round(found.value, 2), found.freedom, found.p_above(0) < 0.001
    (0.93, 8, True)
    """
    value = constant + sum(weight * mean(values) for weight, values in weighted)
    own = [values for _, values in weighted]
    if not all(own):
        return Estimate(value, math.nan, 0)
    squares, freedom = _add(map(_squares, own))
    if len(own) == 1 and freedom and not squares:
        return Estimate(value, 0.0, 0, agreeing=len(own[0]))
    if freedom:
        low, high = (limit * squares / freedom for limit in _POOLED)
        others = [_squares(values) for values in panel if len(values) > 1 and not any(values is mine for mine in own)]
        similar = [each for each in others if low <= each[0] / each[1] <= high]
        if others and not similar:
            return _welch(value, weighted)
        squares, freedom = _add([(squares, freedom), *similar])
    else:  # single seeds: only the spread of the other methods is known
        squares, freedom = _add(map(_squares, panel))
    scale = sum(weight**2 / len(values) for weight, values in weighted)
    return Estimate(value, math.sqrt(squares / freedom * scale) if freedom else math.nan, freedom)


def _squares(values: Values) -> tuple[float, int]:
    """The sum of squared deviations from the mean, and its degrees of freedom."""
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values), max(0, len(values) - 1)


def _add(parts: Iterable[tuple[float, int]]) -> tuple[float, int]:
    found = list(parts)
    return sum(squares for squares, _ in found), sum(freedom for _, freedom in found)


def _welch(value: float, weighted: Sequence[tuple[float, Values]]) -> Estimate:
    """Each method's own variance, with Satterthwaite's degrees of freedom."""
    if any(len(values) < 2 for _, values in weighted):
        return Estimate(value, math.nan, 0)
    parts = []
    for weight, values in weighted:
        squares, own = _squares(values)
        parts.append((weight**2 * squares / own / len(values), own))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / own for part, own in parts) if variance else 0.0
    return Estimate(value, math.sqrt(variance), freedom)


@dataclass(frozen=True)
class Level:
    """The result of Holm's procedure for one p value."""

    p: float
    """The adjusted p value."""
    alpha: float
    """The level at which it was tested, or at which the procedure stopped; its interval has the same level."""

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


@dataclass(frozen=True)
class Comparison:
    """A contrast and the region where its true value lies if the claim is true."""

    estimate: Estimate
    low: float = 0.0
    high: float = math.inf
    test_error: float | None = None

    @property
    def p_for(self) -> float:
        """The p value of "the claim is true": two one-sided tests, if both limits are finite."""
        return max(self.estimate.p_above(self.low), self.estimate.p_below(self.high))

    @property
    def p_against(self) -> float:
        """The p value of "the claim is false"."""
        return min(self.estimate.p_below(self.low), self.estimate.p_above(self.high))


@dataclass(frozen=True)
class Claim:
    """A claim that is true if all its tests support it.

    With ``joint`` the tests measure the same thing (at the last epoch and at the best one), and the claim is false
    only if all reject it. Otherwise it is false if one test rejects it, after Bonferroni's correction.
    """

    text: str
    source: str
    measured: str
    comparisons: tuple[Comparison, ...]
    unit: str
    joint: bool = False

    @property
    def p_for(self) -> float:
        """The largest p value, because all tests must agree."""
        return max(each.p_for for each in self.comparisons)

    @property
    def p_against(self) -> float:
        p_values = [each.p_against for each in self.comparisons]
        return max(p_values) if self.joint else min(1.0, len(p_values) * min(p_values))

    def decide(self, level: Level) -> Verdict:
        """The verdict, with the interval of the test that is the hardest to decide."""
        supported = self.p_for < self.p_against
        verdict = UNDECIDED if not level.decided else SUPPORTED if supported else REFUTED
        few = [each.estimate.agreeing for each in self.comparisons if 0 < each.estimate.agreeing < _SIGN_TEST]
        if few and verdict == UNDECIDED:
            reason = f"{few[0]} seeds of a method agree exactly, and a sign test takes {_SIGN_TEST}"
            return Verdict(self.text, f"{self.measured}; {reason}", NOT_TESTABLE, self.source, unit=self.unit)
        hardest = "p_against" if self.joint and not supported else "p_for"
        shown: Comparison = max(self.comparisons, key=attrgetter(hardest))
        # Evidence against one of several tests is corrected for their number, and so is its interval.
        tests = 1 if supported or self.joint else len(self.comparisons)
        margin = shown.estimate.margin(level.alpha / tests)
        known = math.isfinite(margin)
        return Verdict(
            self.text,
            self.measured if known else f"{self.measured}; seeds agree exactly, so there is no spread to test with",
            verdict,
            self.source,
            difference=shown.estimate.value if math.isfinite(shown.estimate.value) else None,
            low=shown.estimate.value - margin if known else None,
            high=shown.estimate.value + margin if known else None,
            test_error=shown.test_error,
            bounds=(finite(shown.low), finite(shown.high)),
            unit=self.unit,
            p=level.p if known else None,
        )


def finite(value: float) -> float | None:
    """The value; None if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def judge(claims: Sequence[Claim | Verdict]) -> list[Verdict]:
    """Decide the claims of a study together; a Verdict, which is already decided, is kept."""
    tested = [claim for claim in claims if isinstance(claim, Claim)]
    known = [claim for claim in tested if all(each.estimate.known for each in claim.comparisons)]
    levels = dict(zip(map(id, known), holm([min(claim.p_for, claim.p_against) for claim in known]), strict=True))
    untested = Level(1.0, ALPHA)
    return [claim.decide(levels.get(id(claim), untested)) if isinstance(claim, Claim) else claim for claim in claims]
