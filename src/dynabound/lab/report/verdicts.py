"""From claims to verdicts: one rule for all claims of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from dynabound.lab.report.statistics import ALPHA, Estimate, Level, holm

__all__ = [
    "FAILS", "HOLDS", "HOLDS_IN_PART", "HOLDS_WHERE_DECIDED", "NOT_COMPARABLE", "NOT_REPRODUCED", "OPEN_ONLY", "PARTLY",
    "REPRODUCED", "UNDECIDED", "Check", "Claim", "Comparison", "judge", "overall",
]  # fmt: skip

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "not decided at this scale"
NOT_COMPARABLE = "not comparable at this scale"
PARTLY, OPEN_ONLY = "partly reproduced", "reproduced where decided"
HOLDS, FAILS = "holds", "fails"
HOLDS_IN_PART, HOLDS_WHERE_DECIDED = "holds in part", "holds where decided"
_OURS = {REPRODUCED: HOLDS, NOT_REPRODUCED: FAILS, PARTLY: HOLDS_IN_PART, OPEN_ONLY: HOLDS_WHERE_DECIDED}
"""The words for our own claims."""
_SIGN_TEST = math.ceil(-math.log2(ALPHA))
"""Seeds that a sign test takes to decide anything."""
_YES, _NO = (REPRODUCED, HOLDS), (NOT_REPRODUCED, FAILS)


@dataclass(frozen=True)
class Check:
    """One claim, what was measured, and what follows."""

    claim: str
    measured: str
    verdict: str
    source: str = "ours"
    """Whose claim it is: "paper l. N", a line of the paper's LaTeX source, or "ours"."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval of the difference, over seeds."""
    test_error: float | None = None
    """The standard error of the difference from the finite test set, if the methods erred on independent examples."""
    bounds: tuple[float | None, float | None] | None = None
    """The range of differences for which the claim is true; None: no limit."""
    unit: str = ""
    p: float | None = None
    """After Holm's correction; None if no chance is involved, or if nothing was tested."""

    @property
    def of_paper(self) -> bool:
        """Whether the paper makes the claim."""
        return self.source.startswith("paper")


@dataclass(frozen=True)
class Comparison:
    """A contrast and the region where its true value lies if the claim is true."""

    estimate: Estimate
    low: float = 0.0
    high: float = math.inf
    test_error: float | None = None

    @property
    def p_for(self) -> float:
        """The p value of "the claim is true"."""
        return self.estimate.p_inside(self.low, self.high)

    @property
    def p_against(self) -> float:
        """The p value of "the claim is false"."""
        return self.estimate.p_outside(self.low, self.high)


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
        """See the class."""
        p_values = [each.p_against for each in self.comparisons]
        return max(p_values) if self.joint else min(1.0, len(p_values) * min(p_values))

    def check(self, level: Level) -> Check:
        """The verdict, with the interval of the test that is the hardest to decide."""
        supported = self.p_for < self.p_against
        words = (REPRODUCED, NOT_REPRODUCED) if self.source.startswith("paper") else (HOLDS, FAILS)
        verdict = UNDECIDED if not level.decided else words[0] if supported else words[1]
        few = [each.estimate.agreeing for each in self.comparisons if 0 < each.estimate.agreeing < _SIGN_TEST]
        if few and verdict == UNDECIDED:
            reason = f"{few[0]} seeds of a method agree exactly, and a sign test takes {_SIGN_TEST}"
            return Check(self.text, f"{self.measured}; {reason}", NOT_COMPARABLE, self.source, unit=self.unit)
        hardest = "p_against" if self.joint and not supported else "p_for"
        shown: Comparison = max(self.comparisons, key=attrgetter(hardest))
        # Evidence against one of several tests is corrected for their number, and so is its interval.
        tests = 1 if supported or self.joint else len(self.comparisons)
        margin = shown.estimate.margin(level.alpha / tests)
        known = math.isfinite(margin)
        return Check(
            self.text,
            self.measured if known else f"{self.measured}; seeds agree exactly, so there is no spread to test with",
            verdict,
            self.source,
            difference=shown.estimate.value if math.isfinite(shown.estimate.value) else None,
            low=shown.estimate.value - margin if known else None,
            high=shown.estimate.value + margin if known else None,
            test_error=shown.test_error,
            bounds=(_finite(shown.low), _finite(shown.high)),
            unit=self.unit,
            p=level.p if known else None,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(claims: Sequence[Claim | Check]) -> list[Check]:
    """Decide the claims of a study together; a Check, which is already decided, is kept."""
    tested = [claim for claim in claims if isinstance(claim, Claim)]
    known = [claim for claim in tested if all(each.estimate.known for each in claim.comparisons)]
    levels = dict(zip(map(id, known), holm([min(claim.p_for, claim.p_against) for claim in known]), strict=True))
    untested = Level(1.0, ALPHA)
    checks = [claim.check(levels.get(id(claim), untested)) if isinstance(claim, Claim) else claim for claim in claims]
    return [check if check.of_paper else replace(check, verdict=_OURS.get(check.verdict, check.verdict))
            for check in checks]  # fmt: skip


def overall(checks: Sequence[Check], ours: bool = False) -> str:
    """The verdict on a study: over the paper's claims, or ``ours``, that this scale can decide in principle."""
    mine = [check for check in checks if check.of_paper != ours]
    verdicts = [check.verdict for check in mine if check.verdict != NOT_COMPARABLE]
    if not verdicts:
        return NOT_COMPARABLE if mine else UNDECIDED
    yes, no = any(v in _YES for v in verdicts), any(v in _NO for v in verdicts)
    if not yes and not no:
        return UNDECIDED
    word = PARTLY if yes and no else NOT_REPRODUCED if no else OPEN_ONLY if UNDECIDED in verdicts else REPRODUCED
    return _OURS[word] if ours else word
