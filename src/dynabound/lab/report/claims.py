"""The paper's claims, study by study, with their lines in its LaTeX source, and our own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from dynabound.lab.report.groups import (
    BEST,
    EARLY_TEST,
    EARLY_TRAIN,
    FIRST,
    LAST,
    LAST_TRAIN,
    ROUGHNESS,
    SAME,
    Group,
)
from dynabound.lab.report.read import Curve, Panels, StudyRuns
from dynabound.lab.report.statistics import ALPHA, Claim, judge, mean
from dynabound.lab.studies.recipes import DEFAULTS, PEERS, REFERENCE, REFERENCES, SAME_RATES
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED, Verdict

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

OURS = "AdaBound"
"""The label of the curve with suggested learning rates."""
MOST_STEPS = 600
"""What a suggestion may cost, in training steps."""
_SHARE = 5
"""A search costs this many times as much, at least."""
COUNT = "count"
"""The kind of a verdict on a number that is counted, where no chance is involved."""
_DRAWS = 2000
"""Draws of the seeds for a claim about ranks."""
_NOT_SEARCHED = "no learning rate was searched for at this scale"
_MISSING = "a run is missing"

_Claims: TypeAlias = list[Claim | Verdict]


def judge_study(study: str, runs: StudyRuns) -> list[Verdict]:
    """The verdicts on the claims of a study."""
    return judge(_CLAIMS[study](runs))


def _not_testable(text: str, source: str, reason: str) -> Verdict:
    return Verdict(text, reason, NOT_TESTABLE, source)


def _size(text: str, source: str, runs: StudyRuns, claim: Claim | Verdict) -> Claim | Verdict:
    """A claim about the size of an effect, which only the paper's own setup can decide."""
    scale = next(iter(next(iter(runs.panels.values())).values())).spec.scale
    reason = "the size of a difference depends on data, network and budget: only paper scale can decide it"
    return claim if scale == "paper" else _not_testable(text, source, reason)


def same_start(curves: Mapping[str, Curve]) -> str:
    """The label of the curve of AdaBound that starts with the learning rate of REFERENCE."""
    return DEFAULTS["AdaBound"] if DEFAULTS["AdaBound"] in curves else "AdaBound"


def _starts(where: str, group: Group) -> Claim | Verdict:
    """Whether AdaBound is on Adam's side of the middle between Adam and SGDM after one epoch."""
    bound = same_start(group.curves)
    towards = group.comparison({REFERENCE: 1.0, "SGDM": -1.0}, FIRST).estimate.value
    sign = -1.0 if towards < 0 else 1.0
    return group.claim(
        f"{where}{STARTS}", "paper l. 96", {bound: sign, REFERENCE: -sign / 2, "SGDM": -sign / 2}, [FIRST]
    )


def _untuned(where: str, group: Group) -> _Claims:
    """Our own claim: the paper's defaults are as good as learning rates chosen for the task."""
    margin = group.margin
    return [
        group.better(f"{where}{name} needs no tuning: at the paper's defaults it ends at most {group.amount(margin)} "
                     "worse than with its suggested learning rates", "ours", label, name, low=-margin)
        for name, label in DEFAULTS.items() if label in group.curves and name in group.curves
    ]  # fmt: skip


def _mnist(runs: StudyRuns) -> _Claims:
    group = Group(runs.panels["perceptron"])
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
    claims.append(_similar("", group, "Adam", "AMSGrad", "paper l. 497"))
    return [*claims, *_untuned("", group), *_between("", group)]


def _similar(where: str, group: Group, a: str, b: str, source: str = "ours") -> Claim | Verdict:
    margin = group.margin
    text = f"{where}{a} and {b} end within {group.amount(margin)} of each other"
    return group.claim(text, source, {a: 1.0, b: -1.0}, [LAST, BEST], -margin, margin)


def _between(where: str, group: Group) -> _Claims:
    """Our own claims: AdaBound ends like the methods that it lies between."""
    others = ("SGDM", "SGD", "AMSGrad") if OURS in group.curves else ()
    return [_similar(where, group, OURS, other) for other in others if other in group.curves]


def _cifar10(runs: StudyRuns) -> _Claims:
    claims: _Claims = []
    for panel, curves in runs.panels.items():
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
        claims.append(_how_much(where, group, runs, dense))
        if "AMSGrad" in curves:
            claims.append(_similar(where, group, "Adam", "AMSGrad", "paper l. 497"))
        claims += [*_untuned(where, group), *_between(where, group)]
    return claims


def _how_much(where: str, group: Group, runs: StudyRuns, dense: bool) -> Claim | Verdict:
    other, points, line = ("Adam", 2, 452) if dense else ("SGDM", 1, 457)
    text, source = f"{where}AdaBound is about {group.amount(points)} better than {other}", f"paper l. {line}"
    claim = group.claim(text, source, {"AdaBound": 1.0, other: -1.0}, [LAST], points / 2, 1.5 * points)
    return _size(text, source, runs, claim)


def _ptb(runs: StudyRuns) -> _Claims:
    claims: _Claims = []
    for panel, curves in runs.panels.items():
        group, where = Group(curves), f"{panel[:2]}: "
        ours = [label for label in ("AdaBound", "AMSBound") if label in curves]
        others = ["SGD", *ours]
        text = f"{where}Adam is the fastest of all early in training ({group.early})"
        claims.append(group.all_of(text, "paper l. 488", [{"Adam": 1.0, b: -1.0} for b in others], EARLY_TEST))
        claims += [group.better(f"{where}{a} ends better than Adam", "paper l. 488", a, "Adam") for a in others]
        text, source = f"{where}the curves of AdaBound and AMSBound are smoother than that of SGD", "paper l. 489"
        epochs = curves["SGD"].spec.epochs
        if epochs < _SMOOTH_EPOCHS:
            claims.append(_not_testable(text, source, f"{epochs} epochs show how a curve falls, not how smooth it is"))
        else:
            claims.append(group.all_of(text, source, [{a: 1.0, "SGD": -1.0} for a in ours], ROUGHNESS))
        claims += [*_untuned(where, group), *_between(where, group)]
    return [*claims, *_gains(runs)]


def _gains(runs: StudyRuns) -> _Claims:
    """The gain of both methods over Adam, with three layers and with one."""
    names = list(runs.panels)
    text = "the gain of AdaBound and AMSBound over Adam is larger with three layers than with one"
    if not names[-1].startswith("L3"):
        return [_not_testable(text, "paper l. 492", "this scale has no LSTM of three layers")]
    group = Group({f"{name[:2]} {label}": curve for name in (names[0], names[-1])
                   for label, curve in runs.panels[name].items()})  # fmt: skip
    first, last = names[0][:2], names[-1][:2]
    ours = [label for label in ("AdaBound", "AMSBound") if f"{first} {label}" in group.curves]
    gains = {where: {**{f"{where} {label}": 1 / len(ours) for label in ours}, f"{where} Adam": -1.0}
             for where in (first, last)}  # fmt: skip
    more = {**gains[last], **{label: -weight for label, weight in gains[first].items()}}
    claims = [group.claim(text, "paper l. 492", more, [LAST])]
    for where, percent in ((first, 1.1), (last, 2.8)):
        text = f"{where}: AdaBound and AMSBound end about {percent:g} % better than Adam"
        claim = group.claim(text, "paper l. 492", gains[where], [LAST], percent / 2, 1.5 * percent)
        claims.append(_size(text, "paper l. 492", runs, claim))
    return claims


def _end_of_training(runs: StudyRuns) -> _Claims:
    claims: _Claims = []
    for curves in runs.panels.values():
        group = Group(curves)
        for label in (label for label in curves if "Bound" in label):
            comma = "," if "," in label else ""
            claims.append(group.better(f"{label}{comma} ends better than Adam", "ours", label, "Adam"))
            claims.append(_similar("", group, label, "SGDM"))
        claims.append(_similar("", group, "AdaBound, SGDM's rate", "CSGD"))
    return claims


def _bound_speed(runs: StudyRuns) -> _Claims:
    claims: _Claims = []
    for panel, curves in runs.panels.items():
        group = Group(curves)
        *others, default = list(curves)  # the last is the default, β = 1 − 1/1000
        for label in others:
            text = f"{panel}: {label} ends within {SAME:g} points of the default {default}"
            claims.append(group.claim(text, "paper l. 1091", {label: 1.0, default: -1.0}, [LAST, BEST], -SAME, SAME))
        text = f"{panel}: no β in [0.9, 0.999] ends more than {SAME:g} points below the default"
        parts = [{label: 1.0, default: -1.0} for label in others]
        claims.append(group.all_of(text, "paper l. 1093", parts, LAST, -SAME))
    return claims


def _final_step_size(runs: StudyRuns) -> _Claims:
    keyed = {f"{name} {label}": curve for name, curves in runs.panels.items() for label, curve in curves.items()}
    group = Group(keyed)
    steps = [label.removeprefix("α = ") for label in runs.panels["SGDM"]]
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
    claims += [group.better(f"AdaBound is better than SGDM at {s}", "paper l. 1130", bound[s], sgdm[s]) for s in steps]
    return claims + [
        _similar("", group, bound[step], f"CSGD α = {step}", "Savarese 2019") for step in steps if "CSGD" in runs.panels
    ]


def _sensitivity(group: Group, text: str, weights: dict[str, float]) -> Claim | Verdict:
    """SGDM against AdaBound over all learning rates; a method that diverged has lost more than any number."""
    source, mine = "paper l. 1124", {label: group.curves[label] for label in weights}
    diverged = [label for label, curve in mine.items() if curve.diverged]
    if not all(curve.ended for curve in mine.values()):
        return Verdict(text, "a run is missing", UNDECIDED, source)
    if diverged:
        verdict = UNDECIDED if any(label.startswith("AdaBound") for label in diverged) else SUPPORTED
        return Verdict(text, f"{' and '.join(diverged)} diverged", verdict, source)
    comparison = group.comparison(weights, LAST)
    losses = {name: sum(weight * mean(mine[label].final()) for label, weight in weights.items() if name in label)
              for name in ("SGDM", "AdaBound")}  # fmt: skip
    measured = f"mean drop from 0.1: SGDM {losses['SGDM']:.2f}, AdaBound {-losses['AdaBound'] / 2:.2f} points"
    return Claim(text, source, measured, (comparison,), group.unit)


def _learning_rates(runs: StudyRuns) -> _Claims:
    texts = ("Adam's rates contain tiny ones, below 0.01", "Adam's rates contain huge ones, above 1000")
    source = "paper l. 189"
    curve = next((curves["Adam"] for curves in runs.panels.values() if "Adam" in curves), None)
    if "Adam" not in runs.sampled:
        reason = "the run's checkpoint is missing" if curve and curve.finished else "the run is missing"
        return [Verdict(text, reason, UNDECIDED, source) for text in texts]
    adam, found = runs.sampled["Adam"], runs.sampled.items()
    tiny = "; ".join(f"{name} {100 * rates.below:.2f} % of the rates, min {rates.min:.2g}" for name, rates in found)
    huge = "; ".join(f"{name} {100 * rates.above:.2f} % of the rates, max {rates.max:.2g}" for name, rates in found)
    shares = ((texts[0], tiny, adam.below), (texts[1], huge, adam.above))
    reached = curve.final("train")[0] if curve and curve.finished else 100.0
    padded = curve is not None and curve.spec.task in _PADDED
    return [
        _not_testable(text, source, f"{measured}; in small images the outer weights of the last kernels see only "
                                      "padding: weight decay is their only gradient, which makes their rates huge")
        if share and padded and text == texts[1]
        else Verdict(text, measured, SUPPORTED, source)
        if share
        else Verdict(text, measured, REFUTED, source)
        if reached >= _NEAR
        else _not_testable(text, source, f"{measured}; the paper's claim is about rates near convergence, and the "
                                           f"training accuracy is {reached:.1f} %")
        for text, measured, share in shares
    ]  # fmt: skip


def _rate_evolution(runs: StudyRuns) -> _Claims:
    source = "paper l. 1162"
    if runs.evolution is None:
        return [Verdict("the rates rise, then fall towards α*", "the run is missing", UNDECIDED, source)]
    claims: _Claims = []
    final = runs.evolution.final_lr
    for layer, series in runs.evolution.layers.items():
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
            lower = runs.evolution.lower[-1]
            if not falls and values[-1] < _ON_BOUND * lower < final:
                reason = f"{measured}, on the lower bound, which is still {100 * (1 - lower / final):.0f} % below α*"
                claims.append(_not_testable(text, source, reason))
            elif falls and when == 1:  # a rise may have come before the first record
                reason = f"{measured}; a rise before the first record would not be seen"
                claims.append(_not_testable(text, source, reason))
            else:
                claims.append(Verdict(text, measured, SUPPORTED if falls else REFUTED, source))
    return claims


def ranks(
    methods: Iterable[Curve], final: Callable[[Curve], float] = lambda curve: mean(curve.final())
) -> dict[str, int]:
    """Ranks by the final mean, shared by equals; a method that diverged is last, one without a result has no rank."""
    losses = {
        curve.label: math.inf if curve.diverged else round(final(curve) * (1 if curve.spec.text else -1), 6)
        for curve in methods
        if curve.finished or curve.diverged
    }
    return {label: 1 + sum(other < loss for other in losses.values()) for label, loss in losses.items()}


def method(label: str) -> str:
    """The method of a curve. SGD with and without momentum counts as one method: each network has one of the two."""
    return "SGD(M)" if label in ("SGD", "SGDM") else label


def ranks_by_method(
    panels: Panels, final: Callable[[Curve], float] = lambda curve: mean(curve.final())
) -> dict[str, list[int]]:
    """Each method's ranks on the workloads."""
    found: dict[str, list[int]] = {}
    for curves in panels.values():
        for label, rank in ranks(curves.values(), final).items():
            found.setdefault(method(label), []).append(rank)
    return found


def _suggest(runs: StudyRuns) -> _Claims:
    """Quality on each workload, then costs, then ranks over all workloads."""
    groups = {f"{panel.partition(':')[0]}: ": Group(curves) for panel, curves in runs.panels.items()}
    found = [_against_best(where, group) for where, group in groups.items()]
    for label in (DEFAULTS[OURS], *SAME_RATES.values()):
        found += [group.better(f"{where}AdaBound as suggested ends better than {label}", "ours", OURS, label, [LAST])
                  for where, group in groups.items()]  # fmt: skip
    for where, group in groups.items():
        found += _costs(where, group.curves)
    return [*found, *_ranked(runs.panels)]


def best_searched(curves: Mapping[str, Curve]) -> str | None:
    """The label of the method that ends best, of the searched ones; None if a run is missing."""
    searched = [curve for curve in curves.values() if curve.search_runs]
    places = ranks(searched)
    return min(places, key=places.__getitem__) if places and len(places) == len(searched) else None


def _against_best(where: str, group: Group) -> Claim | Verdict:
    text = f"{where}AdaBound as suggested ends at most {group.amount(group.margin)} worse than the best searched method"
    if not any(curve.search_runs for curve in group.curves.values()):
        return Verdict(text, _NOT_SEARCHED, NOT_TESTABLE)
    best = best_searched(group.curves)
    return group.better(text, "ours", OURS, best, [LAST], -group.margin) if best else Verdict(text, _MISSING, UNDECIDED)


def _costs(where: str, curves: Mapping[str, Curve]) -> list[Verdict]:
    """Two claims about numbers of steps, which are counted."""
    texts = (f"{where}the suggestion costs at most {MOST_STEPS} training steps",
             f"{where}it costs at most 1/{_SHARE} of the cheapest search")  # fmt: skip
    searched = {label: curve.tuning_steps for label, curve in curves.items() if curve.search_runs}
    found = curves[OURS].suggestion
    if found is None:
        return [Verdict(text, _MISSING, UNDECIDED) for text in texts]
    word = SUPPORTED if found.cost <= MOST_STEPS else REFUTED
    absolute = Verdict(texts[0], f"{found.cost} steps", word, kind=COUNT)
    if not searched:
        return [absolute, Verdict(texts[1], _NOT_SEARCHED, NOT_TESTABLE)]
    label, least = min(searched.items(), key=lambda item: item[1])
    if not least:
        return [absolute, Verdict(texts[1], _MISSING, UNDECIDED)]
    measured = f"{found.cost} steps; {label} {least:,} steps in {curves[label].search_runs} runs"
    return [absolute, Verdict(texts[1], measured, SUPPORTED if _SHARE * found.cost <= least else REFUTED, kind=COUNT)]


def _ranked(panels: Panels) -> list[Verdict]:
    return [
        _best_rank(
            "over all workloads no searched method has a better mean rank than AdaBound as suggested",
            panels, lambda curve: bool(curve.search_runs), _NOT_SEARCHED,
        ),
        _best_rank(
            "over all workloads no tuning-free method has a better mean rank than AdaBound as suggested",
            panels, lambda curve: curve.label in PEERS, "none is installed",
        ),
    ]  # fmt: skip


def _best_rank(text: str, panels: Panels, rival: Callable[[Curve], bool], none: str) -> Verdict:
    """A claim about mean ranks among AdaBound and its rivals, over the workloads that have rivals.

    Each curve's seeds are drawn again, with replacement: the claim must hold, or be false, in 95 % of the draws.
    """
    shared = {name: {label: curve for label, curve in curves.items() if label == OURS or rival(curve)}
              for name, curves in panels.items() if any(map(rival, curves.values()))}  # fmt: skip
    if not shared:
        return Verdict(text, none, NOT_TESTABLE)
    shown = [curve for curves in shared.values() for curve in curves.values()]
    if not all(curve.ended for curve in shown):
        return Verdict(text, _MISSING, UNDECIDED)
    own = ranks_by_method(shared)
    means = {name: mean(places) for name, places in own.items()}
    finals, draw = {id(curve): curve.final() for curve in shown}, random.Random(0)
    wins = 0
    for _ in range(_DRAWS):
        drawn = ranks_by_method(shared, lambda curve: mean(draw.choices(ends := finals[id(curve)], k=len(ends))))
        ours = mean(drawn[OURS])
        wins += all(ours <= mean(places) for places in drawn.values())
    share = wins / _DRAWS
    places = ", ".join(f"{name} {value:.2f}" + (f" ({len(own[name])} of them)" if len(own[name]) < len(shared) else "")
                       for name, value in sorted(means.items(), key=lambda item: item[1]))  # fmt: skip
    measured = f"on {len(shared)} workload{'s'[: len(shared) > 1]} {places}; true in {share:.0%} of draws of the seeds"
    word = SUPPORTED if share >= 1 - ALPHA else REFUTED if share <= ALPHA else UNDECIDED
    return Verdict(text, measured, word)


_CLAIMS: dict[str, Callable[[StudyRuns], _Claims]] = {
    "learning-rates": _learning_rates,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "ptb": _ptb,
    "bound-speed": _bound_speed,
    "final-step-size": _final_step_size,
    "cifar10-16": _end_of_training,
    "rate-evolution": _rate_evolution,
    "suggest": _suggest,
}
"""The claims of each study."""
