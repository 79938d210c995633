"""What the paper claims, held against the numbers. Every verdict is computed; the rule is the same for all.

Two methods are compared by their means over seeds, with Welch's test: the difference counts if it is more than t
standard errors, with t the 97.5 % point of Student's distribution. Less is chance, and the claim is not decided at this
scale. A run that diverged is worse than one that did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dynabound.lab.report.learning_rates import RateEvolution, SampledRates
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import mean, welch_margin
from dynabound.lab.studies.recipes import REFERENCE

__all__ = ["CLAIMS", "NOT_REPRODUCED", "REPRODUCED", "UNDECIDED", "Check", "Evidence", "better", "overall"]

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "not decided at this scale"
_SAME = 2.0
"""Percentage points of test accuracy: what lies no further apart is "almost the same"."""
_NEAR = 99.0
"""Percent of training accuracy: what is "near 100 %"."""


@dataclass(frozen=True)
class Check:
    """One claim, what was measured, and what follows."""

    claim: str
    measured: str
    verdict: str


def overall(checks: list[Check]) -> str:
    """A study is reproduced if all its claims are, and not if one of them is not."""
    verdicts = {check.verdict for check in checks}
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    return REPRODUCED if verdicts == {REPRODUCED} else UNDECIDED


def _judge(difference: float, error: float, margin: float = 0.0) -> str:
    if difference - error > margin:
        return REPRODUCED
    return NOT_REPRODUCED if difference + error < margin else UNDECIDED


def _text(values: list[float]) -> str:
    return f"{mean(values):.2f}" if values else "–"


def better(claim: str, a: Curve, b: Curve, values: Callable[[Curve], list[float]] = Curve.final) -> Check:
    """Whether ``a`` is better than ``b``: a higher accuracy or a lower perplexity."""
    x, y = values(a), values(b)
    names = f"{a.row.label} {_text(x)}, {b.row.label} {_text(y)}"
    if not (a.ended and b.ended):
        return Check(claim, f"{names}; a run is missing", UNDECIDED)
    if a.diverged or b.diverged:
        diverged = " and ".join(curve.row.label for curve in (a, b) if curve.diverged)
        verdict = UNDECIDED if a.diverged and b.diverged else NOT_REPRODUCED if a.diverged else REPRODUCED
        return Check(claim, f"{names}; {diverged} diverged", verdict)
    difference, error = (mean(x) - mean(y)) * (-1 if a.spec.text else 1), welch_margin(x, y)
    margin = f"± {error:.2f}" if math.isfinite(error) else "of single runs"
    return Check(claim, f"{names}: {difference:+.2f} {margin}", _judge(difference, error))


Panels = dict[str, dict[str, Curve]]
"""Curves by panel and label."""


@dataclass(frozen=True)
class Evidence:
    """What the claims of a study are checked against."""

    panels: Panels
    sampled: dict[str, SampledRates] = field(default_factory=dict)
    """Learning rates at the end of training, by method."""
    evolution: RateEvolution | None = None


def _early(curve: Curve) -> list[float]:
    """The mean training metric of the first quarter of the epochs."""
    quarter = max(1, curve.spec.epochs // 4)
    return [mean(seed.series("train")[:quarter]) for seed in curve.finished]


def _prototypes(where: str, methods: dict[str, Curve]) -> list[Check]:
    pairs = (("AdaBound", "Adam"), ("AMSBound", "AMSGrad"))
    return [better(f"{where}{a} ends better than {b}", methods[a], methods[b]) for a, b in pairs if b in methods]


def _start(where: str, methods: dict[str, Curve]) -> Check:
    """Whether AdaBound's first epoch is nearer to that of Adam with the same step size than SGDM's is."""
    claim = f"{where}AdaBound starts like Adam with the same α: after one epoch it is nearer to it than SGDM"
    first = {name: {seed.spec.seed: seed.series("train")[0] for seed in methods[name].finished}
             for name in (REFERENCE, "AdaBound", "SGDM")}  # fmt: skip
    means = (f"{name} {_text(list(values.values()))}" for name, values in first.items())
    measured = f"training after one epoch: {', '.join(means)}"
    adam, bound, sgdm = first.values()
    near, far = ([abs(adam[seed] - other[seed]) for seed in adam if seed in other] for other in (bound, sgdm))
    if not (near and far):
        return Check(claim, f"{measured}; a run is missing", UNDECIDED)
    return Check(claim, measured, _judge(mean(far) - mean(near), welch_margin(far, near)))


def _mnist(evidence: Evidence) -> list[Check]:
    methods = evidence.panels["perceptron"]
    six = {name: curve for name, curve in methods.items() if name != REFERENCE}
    levels = {name: -math.inf if curve.diverged else mean(curve.final("train")) for name, curve in six.items()}
    worst = min(levels, key=lambda name: levels[name])
    missing = not all(curve.ended for curve in six.values())
    verdict = UNDECIDED if missing else REPRODUCED if levels[worst] >= _NEAR else NOT_REPRODUCED
    measured = "a run is missing" if missing else f"least: {worst} {_text(six[worst].final('train'))}"
    near = Check(f"all methods come near 100 % in training ({_NEAR:g} % or more)", measured, verdict)
    sgdm = methods["SGDM"]
    return [_start("", methods), near, *_prototypes("", methods), better("SGDM ends better than Adam", sgdm,
            methods["Adam"]), *_ours("{} ends better than SGDM", methods, sgdm)]  # fmt: skip


def _ours(
    claim: str, methods: dict[str, Curve], other: Curve, values: Callable[[Curve], list[float]] = Curve.final
) -> list[Check]:
    """A claim about both of the paper's methods."""
    return [better(claim.format(name), methods[name], other, values) for name in ("AdaBound", "AMSBound")]


def _cifar10(evidence: Evidence) -> list[Check]:
    checks = []
    for panel, methods in evidence.panels.items():
        sgdm = methods["SGDM"]
        checks.append(_start(f"{panel}: ", methods))
        checks += _ours(panel + ": {} learns faster than SGDM in the first quarter", methods, sgdm, _early)
        checks += _prototypes(f"{panel}: ", methods)
        checks += _ours(panel + ": {} ends better than SGDM", methods, sgdm)
    return checks


def _ptb(evidence: Evidence) -> list[Check]:
    checks = []
    for panel, methods in evidence.panels.items():
        where, adam = panel[:2], methods["Adam"]
        checks.append(
            better(f"{where}: Adam learns faster than SGD in the first quarter", adam, methods["SGD"], _early)
        )
        checks.append(better(f"{where}: SGD ends better than Adam", methods["SGD"], adam))
        checks += _ours(where + ": {} ends better than Adam", methods, adam)
    first, *_, last = evidence.panels.values()
    gains = [_gains(methods["Adam"], methods["AdaBound"]) for methods in (first, last)]
    difference, error = mean(gains[1]) - mean(gains[0]), welch_margin(gains[1], gains[0])
    margin = f" (± {error:.2f})" if math.isfinite(error) else ""
    measured = f"gain of AdaBound over Adam: L1 {_text(gains[0])} %, L3 {_text(gains[1])} %{margin}"
    verdict = UNDECIDED if math.isnan(difference) else _judge(difference, error)
    if checks[-2].verdict == NOT_REPRODUCED:
        verdict = NOT_REPRODUCED  # there is no gain that could be larger
    return [*checks, Check("AdaBound's gain over Adam is larger with three layers than with one", measured, verdict)]


def _gains(adam: Curve, ours: Curve) -> list[float]:
    """How much lower the perplexity is in percent, seed by seed."""
    theirs = {seed.spec.seed: seed.series("test")[-1] for seed in adam.finished}
    return [
        100 * (theirs[seed.spec.seed] - seed.series("test")[-1]) / theirs[seed.spec.seed]
        for seed in ours.finished
        if seed.spec.seed in theirs
    ]


def _ends(methods: dict[str, Curve]) -> tuple[Curve, Curve] | None:
    """The best and the worst curve; None if one has no result."""
    ranked = sorted(methods.values(), key=lambda curve: mean(curve.final()), reverse=True)
    if not all(curve.ended for curve in ranked):
        return None
    return ranked[0], min(ranked, key=lambda curve: mean(curve.final()) if curve.final() else -math.inf)


def _bound_speed(evidence: Evidence) -> list[Check]:
    checks = []
    for panel, methods in evidence.panels.items():
        claim = f"{panel}: the final test accuracies for the five β lie within {_SAME:g} percentage points"
        ends = _ends(methods)
        if ends is None or not all(curve.final() for curve in ends):
            checks.append(Check(claim, "a run is missing or diverged", UNDECIDED if ends is None else NOT_REPRODUCED))
            continue
        best, worst = (curve.final() for curve in ends)
        gap, error = mean(best) - mean(worst), welch_margin(best, worst)
        margin = f"± {error:.2f}" if math.isfinite(error) else "of single runs"
        labels = f"{ends[0].row.label} {_text(best)}, {ends[1].row.label} {_text(worst)}"
        checks.append(Check(claim, f"best {labels}: {gap:.2f} {margin}", _judge(-gap, error, -_SAME)))
    return checks


def _range(methods: dict[str, Curve]) -> float:
    """Best less worst final accuracy; a run that diverged has learnt nothing."""
    finals = [mean(curve.final()) if curve.final() else 0.0 for curve in methods.values()]
    return max(finals) - min(finals)


def _final_step_size(evidence: Evidence) -> list[Check]:
    sgdm, bound = evidence.panels["SGDM"], evidence.panels["AdaBound"]
    complete = _ends(sgdm) is not None and _ends(bound) is not None
    theirs, ours = _range(sgdm), _range(bound)
    verdict = UNDECIDED if not complete else REPRODUCED if ours < theirs / 2 else NOT_REPRODUCED
    checks = [Check("AdaBound's final accuracies lie less than half as far apart as SGDM's",
                    f"best less worst: SGDM {theirs:.2f}, AdaBound {ours:.2f}", verdict)]  # fmt: skip
    for (step, a), b in zip(sgdm.items(), bound.values(), strict=True):
        check = better(f"AdaBound is better than SGDM at {step.removeprefix('α = ')}", b, a)
        checks.append(Check(check.claim, check.measured.replace("α* =", "AdaBound").replace("α =", "SGDM"),
                            check.verdict))  # fmt: skip
    return checks


def _learning_rates(evidence: Evidence) -> list[Check]:
    if "Adam" not in evidence.sampled:
        return [Check("Adam's rates contain tiny and huge ones", "the run is missing", UNDECIDED)]
    adam, found = evidence.sampled["Adam"], evidence.sampled.items()
    tiny = (f"{name} {100 * rates.below:.2f} % of the rates, min {rates.min:.2g}" for name, rates in found)
    huge = (f"{name} {100 * rates.above:.2f} % of the rates, max {rates.max:.2g}" for name, rates in found)
    return [
        Check("Adam's rates contain tiny ones, below 0.01", "; ".join(tiny), _verdict(adam.below > 0)),
        Check("Adam's rates contain huge ones, above 1000", "; ".join(huge), _verdict(adam.above > 0)),
    ]


def _verdict(holds: bool) -> str:
    return REPRODUCED if holds else NOT_REPRODUCED


def _rate_evolution(evidence: Evidence) -> list[Check]:
    if evidence.evolution is None:
        return [Check("the rates rise, then fall towards α*", "the run is missing", UNDECIDED)]
    checks, final = [], evidence.evolution.final_lr
    for layer, series in evidence.evolution.layers.items():
        for name in ("max", "median"):
            values = series[name]
            peak = max(values)
            when = values.index(peak) + 1
            ends = abs(math.log10(values[-1] / final)) < abs(math.log10(peak / final))
            falls = when < len(values) / 2 and values[-1] < peak and ends
            measured = f"{values[0]:.3g} at first, {peak:.3g} at epoch {when}, {values[-1]:.3g} at the end"
            verdict = _verdict(falls)
            if falls and when == 1:  # rates are recorded at the end of each epoch
                measured, verdict = f"{measured}; a rise within the first epoch is not seen", UNDECIDED
            checks.append(
                Check(f"{layer}: the {name} rate rises, then falls towards α* = {final:g}", measured, verdict)
            )
    return checks


CLAIMS: dict[str, Callable[[Evidence], list[Check]]] = {
    "learning-rates": _learning_rates,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "ptb": _ptb,
    "bound-speed": _bound_speed,
    "final-step-size": _final_step_size,
    "rate-evolution": _rate_evolution,
}
"""The claims of each study."""
