"""The paper's claims, study by study, with their lines in its LaTeX source, and a few of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from dynabound.lab.report import suggested
from dynabound.lab.report.evidence import (
    BEST,
    EARLY_TEST,
    EARLY_TRAIN,
    FIRST,
    LAST,
    LAST_TRAIN,
    ROUGHNESS,
    SAME,
    Evidence,
    Group,
)
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import mean
from dynabound.lab.report.verdicts import NOT_COMPARABLE, NOT_REPRODUCED, REPRODUCED, UNDECIDED, Check, Claim, judge
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, REFERENCES

__all__ = ["CLAIMS", "STARTS", "check", "same_start"]

_NEAR = 99.0
"""Percent of training accuracy that counts as "approaching 100 %"."""
STARTS = "after one epoch AdaBound is nearer to Adam with the same α than to SGDM"
"""The paper's claim about the beginning."""
_PADDED = ("digits", "digits-half")
"""Tasks whose images, of 8×8 pixels, are a single pixel in the last stage of ResNet-34."""
_ON_BOUND = 1.01
"""A rate below this multiple of the lower bound lies on it."""
_SMOOTH_EPOCHS = 20
"""With fewer epochs a curve shows its descent, and not how smooth it is."""

_Claims: TypeAlias = list[Claim | Check]


def check(study: str, evidence: Evidence) -> list[Check]:
    """The verdicts on the claims of a study."""
    return judge(CLAIMS[study](evidence))


def _not_comparable(text: str, source: str, reason: str) -> Check:
    return Check(text, reason, NOT_COMPARABLE, source)


def _size(text: str, source: str, evidence: Evidence, claim: Claim | Check) -> Claim | Check:
    """A claim about the size of an effect, which only the paper's own setup can decide."""
    scale = next(iter(next(iter(evidence.panels.values())).values())).spec.scale
    reason = "the size of a difference depends on data, network and budget: only paper scale can decide it"
    return claim if scale == "paper" else _not_comparable(text, source, reason)


def same_start(curves: Mapping[str, Curve]) -> str:
    """The label of the curve of AdaBound that starts with the step size of REFERENCE."""
    return DEFAULTS["AdaBound"] if DEFAULTS["AdaBound"] in curves else "AdaBound"


def _starts(where: str, group: Group) -> Claim | Check:
    """Whether AdaBound is on Adam's side of the middle between Adam and SGDM after one epoch."""
    bound = same_start(group.curves)
    towards = group.comparison({REFERENCE: 1.0, "SGDM": -1.0}, FIRST).estimate.value
    sign = -1.0 if towards < 0 else 1.0
    return group.claim(
        f"{where}{STARTS}", "paper l. 96", {bound: sign, REFERENCE: -sign / 2, "SGDM": -sign / 2}, [FIRST]
    )


def _untuned(where: str, group: Group, margin: float) -> _Claims:
    """Our own claim: the paper's defaults are as good as step sizes chosen for the task."""
    return [
        group.better(f"{where}{name} needs no tuning: at the paper's defaults it ends at most {group.amount(margin)} "
                     "worse than with its suggested step sizes", "ours", label, name, low=-margin)
        for name, label in DEFAULTS.items() if label in group.curves and name in group.curves
    ]  # fmt: skip


def _mnist(evidence: Evidence) -> _Claims:
    group = Group(evidence.panels["perceptron"])
    six = [label for label in group.curves if label not in REFERENCES]
    near = f"all methods come near 100 % in training ({_NEAR:g} % or more)"
    claims = [
        _starts("", group),
        group.all_of(near, "paper l. 396", [{label: 1.0} for label in six], LAST_TRAIN, constant=-_NEAR),
    ]
    claims += [group.better(f"SGDM ends better than {b}", "paper l. 397", "SGDM", b) for b in ("Adam", "AMSGrad")]
    for name, prototype in (("AdaBound", "Adam"), ("AMSBound", "AMSGrad")):
        claims.append(group.better(f"{name} ends better than {prototype}", "paper l. 398", name, prototype))
        claims.append(group.better(f"{name} ends better than SGDM", "paper l. 398", name, "SGDM"))
    claims.append(_similar("", group, group.margin))
    return [*claims, *_untuned("", group, group.margin)]


def _similar(where: str, group: Group, margin: float) -> Claim | Check:
    text = f"{where}Adam and AMSGrad end within {group.amount(margin)} of each other"
    return group.claim(text, "paper l. 497", {"Adam": 1.0, "AMSGrad": -1.0}, [LAST, BEST], -margin, margin)


def _cifar10(evidence: Evidence) -> _Claims:
    claims: _Claims = []
    for panel, curves in evidence.panels.items():
        group, where = Group(curves), f"{panel}: "
        dense = panel.startswith("Dense")  # of ResNet the paper says: similar to DenseNet (l. 456)
        early, late, ends, gains = ("449", "450", "451", "452") if dense else ("456",) * 4
        adaptive = [label for label in ("AdaGrad", "Adam", "AMSGrad") if label in curves]
        if REFERENCE in curves:
            claims.append(_starts(where, group))
        for label in adaptive:
            text = f"{where}{label} is better than SGDM early in training ({group.early})"
            claims.append(group.better(text, f"paper l. {early}", label, "SGDM", [EARLY_TRAIN]))
        for label in adaptive:
            text = f"{where}SGDM ends better than {label}"
            claims.append(group.better(text, f"paper l. {late}", "SGDM", label))
        for name, prototype in (("AdaBound", "Adam"), ("AMSBound", "AMSGrad")):
            if name not in curves or prototype not in curves:
                continue
            text = f"{where}{name} learns as fast as {prototype} (at most {SAME:g} points behind; {group.early})"
            claims.append(group.better(text, f"paper l. {ends}", name, prototype, [EARLY_TRAIN], -SAME))
            text = f"{where}{name} ends better than SGDM"
            claims.append(group.better(text, "paper l. 451" if dense else "paper l. 457", name, "SGDM", [LAST]))
            text = f"{where}{name} ends better than {prototype}"
            claims.append(group.better(text, f"paper l. {gains}", name, prototype))
        claims.append(_how_much(where, group, evidence, dense))
        if "AMSGrad" in curves:
            claims.append(_similar(where, group, SAME))
        claims += _untuned(where, group, SAME)
    return claims


def _how_much(where: str, group: Group, evidence: Evidence, dense: bool) -> Claim | Check:
    other, points, line = ("Adam", 2, 452) if dense else ("SGDM", 1, 457)
    text, source = f"{where}AdaBound is about {group.amount(points)} better than {other}", f"paper l. {line}"
    claim = group.claim(text, source, {"AdaBound": 1.0, other: -1.0}, [LAST], points / 2, 1.5 * points)
    return _size(text, source, evidence, claim)


def _ptb(evidence: Evidence) -> _Claims:
    claims: _Claims = []
    for panel, curves in evidence.panels.items():
        group, where = Group(curves), f"{panel[:2]}: "
        ours = [label for label in ("AdaBound", "AMSBound") if label in curves]
        others = ["SGD", *ours]
        text = f"{where}Adam is the fastest of all early in training ({group.early})"
        claims.append(group.all_of(text, "paper l. 488", [{"Adam": 1.0, b: -1.0} for b in others], EARLY_TEST))
        claims += [group.better(f"{where}{a} ends better than Adam", "paper l. 488", a, "Adam") for a in others]
        text, source = f"{where}the curves of AdaBound and AMSBound are smoother than that of SGD", "paper l. 489"
        epochs = curves["SGD"].spec.epochs
        if epochs < _SMOOTH_EPOCHS:
            claims.append(
                _not_comparable(text, source, f"{epochs} epochs show how a curve falls, not how smooth it is")
            )
        else:
            claims.append(group.all_of(text, source, [{a: 1.0, "SGD": -1.0} for a in ours], ROUGHNESS))
        claims += _untuned(where, group, SAME)
    return [*claims, *_gains(evidence)]


def _gains(evidence: Evidence) -> _Claims:
    """The gain of both methods over Adam, with three layers and with one."""
    names = list(evidence.panels)
    group = Group({f"{name[:2]} {label}": curve for name in (names[0], names[-1])
                   for label, curve in evidence.panels[name].items()})  # fmt: skip
    first, last = names[0][:2], names[-1][:2]
    ours = [label for label in ("AdaBound", "AMSBound") if f"{first} {label}" in group.curves]
    gains = {where: {**{f"{where} {label}": 1 / len(ours) for label in ours}, f"{where} Adam": -1.0}
             for where in (first, last)}  # fmt: skip
    more = {**gains[last], **{label: -weight for label, weight in gains[first].items()}}
    text = "the gain of AdaBound and AMSBound over Adam is larger with three layers than with one"
    claims = [group.claim(text, "paper l. 492", more, [LAST])]
    for where, percent in ((first, 1.1), (last, 2.8)):
        text = f"{where}: AdaBound and AMSBound end about {percent:g} % better than Adam"
        claim = group.claim(text, "paper l. 492", gains[where], [LAST], percent / 2, 1.5 * percent)
        claims.append(_size(text, "paper l. 492", evidence, claim))
    return claims


def _bound_speed(evidence: Evidence) -> _Claims:
    claims: _Claims = []
    for panel, curves in evidence.panels.items():
        group = Group(curves)
        *others, default = list(curves)  # the last is the default, β = 1 − 1/1000
        for label in others:
            text = f"{panel}: {label} ends within {SAME:g} points of the default {default}"
            claims.append(group.claim(text, "paper l. 1091", {label: 1.0, default: -1.0}, [LAST, BEST], -SAME, SAME))
        text = f"{panel}: no β in [0.9, 0.999] ends more than {SAME:g} points below the default"
        parts = [{label: 1.0, default: -1.0} for label in others]
        claims.append(group.all_of(text, "paper l. 1093", parts, LAST, -SAME))
    return claims


def _final_step_size(evidence: Evidence) -> _Claims:
    keyed = {f"{name} {label}": curve for name, curves in evidence.panels.items() for label, curve in curves.items()}
    group = Group(keyed)
    steps = [label.removeprefix("α = ") for label in evidence.panels["SGDM"]]
    sgdm, bound = {s: f"SGDM α = {s}" for s in steps}, {s: f"AdaBound α* = {s}" for s in steps}
    others = [step for step in steps if step != "0.1"]
    share = 1 / len(others)
    loss = {sgdm["0.1"]: 1.0, **{sgdm[s]: -share for s in others}, bound["0.1"]: -2.0,
            **{bound[s]: 2 * share for s in others}}  # fmt: skip
    text = "away from 0.1 SGDM loses more than twice as much accuracy as AdaBound, on average"
    claims = [_sensitivity(group, text, loss)]
    for step in others:
        text = f"AdaBound ends within {SAME:g} points of α* = 0.1 at {step}"
        weights = {bound[step]: 1.0, bound["0.1"]: -1.0}
        claims.append(group.claim(text, "paper l. 1126", weights, [LAST, BEST], -SAME, SAME))
    return claims + [
        group.better(f"AdaBound is better than SGDM at {s}", "paper l. 1130", bound[s], sgdm[s]) for s in steps
    ]


def _sensitivity(group: Group, text: str, weights: dict[str, float]) -> Claim | Check:
    """SGDM against AdaBound over all step sizes; a method that diverged has lost more than any number."""
    source, mine = "paper l. 1124", {label: group.curves[label] for label in weights}
    diverged = [label for label, curve in mine.items() if curve.diverged]
    if not all(curve.ended for curve in mine.values()):
        return Check(text, "a run is missing", UNDECIDED, source)
    if diverged:
        verdict = UNDECIDED if any(label.startswith("AdaBound") for label in diverged) else REPRODUCED
        return Check(text, f"{' and '.join(diverged)} diverged", verdict, source)
    comparison = group.comparison(weights, LAST)
    losses = {name: sum(weight * mean(mine[label].final()) for label, weight in weights.items() if name in label)
              for name in ("SGDM", "AdaBound")}  # fmt: skip
    measured = f"mean drop from 0.1: SGDM {losses['SGDM']:.2f}, AdaBound {-losses['AdaBound'] / 2:.2f} points"
    return Claim(text, source, measured, (comparison,), group.unit)


def _learning_rates(evidence: Evidence) -> _Claims:
    texts = ("Adam's rates contain tiny ones, below 0.01", "Adam's rates contain huge ones, above 1000")
    source = "paper l. 189"
    curve = next((curves["Adam"] for curves in evidence.panels.values() if "Adam" in curves), None)
    if "Adam" not in evidence.sampled:
        reason = "the run's checkpoint is missing" if curve and curve.finished else "the run is missing"
        return [Check(text, reason, UNDECIDED, source) for text in texts]
    adam, found = evidence.sampled["Adam"], evidence.sampled.items()
    tiny = "; ".join(f"{name} {100 * rates.below:.2f} % of the rates, min {rates.min:.2g}" for name, rates in found)
    huge = "; ".join(f"{name} {100 * rates.above:.2f} % of the rates, max {rates.max:.2g}" for name, rates in found)
    shares = ((texts[0], tiny, adam.below), (texts[1], huge, adam.above))
    reached = curve.final("train")[0] if curve and curve.finished else 100.0
    padded = curve is not None and curve.spec.task in _PADDED
    return [
        _not_comparable(text, source, f"{measured}; in small images the outer weights of the last kernels see only "
                                      "padding: weight decay is their only gradient, which makes their rates huge")
        if share and padded and text == texts[1]
        else Check(text, measured, REPRODUCED, source)
        if share
        else Check(text, measured, NOT_REPRODUCED, source)
        if reached >= _NEAR
        else _not_comparable(text, source, f"{measured}; the paper's claim is about rates near convergence, and the "
                                           f"training accuracy is {reached:.1f} %")
        for text, measured, share in shares
    ]  # fmt: skip


def _rate_evolution(evidence: Evidence) -> _Claims:
    source = "paper l. 1162"
    if evidence.evolution is None:
        return [Check("the rates rise, then fall towards α*", "the run is missing", UNDECIDED, source)]
    claims: _Claims = []
    final = evidence.evolution.final_lr
    for layer, series in evidence.evolution.layers.items():
        for name in ("max", "median"):
            values = series[name]
            peak = max(values)
            when = values.index(peak) + 1
            ends = abs(math.log10(values[-1] / final)) < abs(math.log10(peak / final))
            falls = when < len(values) / 2 and values[-1] < peak and ends
            measured = (
                f"{values[0]:.3g} at first, {peak:.3g} at point {when} of {len(values)}, {values[-1]:.3g} at the end"
            )
            text = f"{layer}: the {name} rate rises, then falls towards α* = {final:g}"
            lower = evidence.evolution.lower[-1]
            if not falls and values[-1] < _ON_BOUND * lower < final:
                reason = f"{measured}, on the lower bound, which is still {100 * (1 - lower / final):.0f} % below α*"
                claims.append(_not_comparable(text, source, reason))
            elif falls and when == 1:  # a rise may have come before the first record
                reason = f"{measured}; a rise before the first record would not be seen"
                claims.append(_not_comparable(text, source, reason))
            else:
                claims.append(Check(text, measured, REPRODUCED if falls else NOT_REPRODUCED, source))
    return claims


CLAIMS: dict[str, Callable[[Evidence], _Claims]] = {
    "learning-rates": _learning_rates,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "ptb": _ptb,
    "bound-speed": _bound_speed,
    "final-step-size": _final_step_size,
    "rate-evolution": _rate_evolution,
    "suggest": suggested.claims,
}
"""The claims of each study."""
