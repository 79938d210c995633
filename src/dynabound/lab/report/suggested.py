"""The claims of the study of suggested step sizes, all of them our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynabound.lab.report.evidence import LAST, Evidence, Group, Panels
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import mean
from dynabound.lab.report.tables import ranks
from dynabound.lab.report.verdicts import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, Check, Claim
from dynabound.lab.studies.recipes import DEFAULTS, PEERS, SAME_RATES

__all__ = ["MOST_STEPS", "OURS", "best_searched", "claims", "method", "placings", "tuning_steps"]

OURS = "AdaBound"
"""The label of the curve with suggested step sizes."""
MOST_STEPS = 600
"""What a suggestion may cost, in training steps."""
_SHARE = 5
"""A search costs this many times as much, at least."""
_NOT_SEARCHED = "no step size was searched for at this scale"
_MISSING = "a run is missing"


def method(label: str) -> str:
    """The method of a curve. SGD with and without momentum counts as one method: each network has one of the two."""
    return "SGD(M)" if label in ("SGD", "SGDM") else label


def tuning_steps(curve: Curve) -> int:
    """Training steps spent on finding the step size: all runs of its search, or the trials of its suggestion."""
    return curve.suggestion.cost if curve.suggestion else curve.search_runs * curve.steps


def placings(panels: Panels, keep: Callable[[Curve], bool] = lambda _: True) -> dict[str, list[int]]:
    """Each method's ranks on the workloads, by the final mean, among the curves to ``keep``."""
    found: dict[str, list[int]] = {}
    for curves in panels.values():
        for label, rank in ranks([curve for curve in curves.values() if keep(curve)]).items():
            found.setdefault(method(label), []).append(rank)
    return found


def claims(evidence: Evidence) -> list[Claim | Check]:
    """Quality on each workload, then costs, then ranks over all workloads."""
    groups = {f"{panel.partition(':')[0]}: ": Group(curves) for panel, curves in evidence.panels.items()}
    found = [_against_best(where, group) for where, group in groups.items()]
    for label in (DEFAULTS[OURS], *SAME_RATES.values()):
        found += [group.better(f"{where}AdaBound as suggested ends better than {label}", "ours", OURS, label, [LAST])
                  for where, group in groups.items()]  # fmt: skip
    for where, group in groups.items():
        found += _costs(where, group.curves)
    return [*found, *_ranked(evidence.panels)]


def best_searched(curves: Mapping[str, Curve]) -> str | None:
    """The label of the method that ends best, of those whose step size was searched for; None if a run is missing."""
    searched = [curve for curve in curves.values() if curve.search_runs]
    places = ranks(searched)
    return min(places, key=places.__getitem__) if places and len(places) == len(searched) else None


def _against_best(where: str, group: Group) -> Claim | Check:
    text = f"{where}AdaBound as suggested ends at most {group.amount(group.margin)} worse than the best searched method"
    if not any(curve.search_runs for curve in group.curves.values()):
        return Check(text, _NOT_SEARCHED, NOT_COMPARABLE)
    best = best_searched(group.curves)
    return group.better(text, "ours", OURS, best, [LAST], -group.margin) if best else Check(text, _MISSING, UNDECIDED)


def _costs(where: str, curves: Mapping[str, Curve]) -> list[Check]:
    """Two claims about numbers of steps, which involve no chance."""
    texts = (f"{where}the suggestion costs at most {MOST_STEPS} training steps",
             f"{where}it costs at most 1/{_SHARE} of the cheapest search")  # fmt: skip
    searched = {label: tuning_steps(curve) for label, curve in curves.items() if curve.search_runs}
    found = curves[OURS].suggestion
    if found is None:
        return [Check(text, _MISSING, UNDECIDED) for text in texts]
    absolute = Check(texts[0], f"{found.cost} steps", HOLDS if found.cost <= MOST_STEPS else FAILS)
    if not searched:
        return [absolute, Check(texts[1], _NOT_SEARCHED, NOT_COMPARABLE)]
    label, least = min(searched.items(), key=lambda item: item[1])
    if not least:
        return [absolute, Check(texts[1], _MISSING, UNDECIDED)]
    measured = f"{found.cost} steps; {label} {least:,} steps in {curves[label].search_runs} runs"
    return [absolute, Check(texts[1], measured, HOLDS if _SHARE * found.cost <= least else FAILS)]


def _ranked(panels: Panels) -> list[Check]:
    return [
        _best_rank(
            "over all workloads no searched method has a better mean rank than AdaBound as suggested",
            panels, lambda curve: bool(curve.search_runs), _NOT_SEARCHED,
        ),
        _best_rank(
            "over all workloads no tuning-free method has a better mean rank than AdaBound as suggested",
            panels, lambda curve: curve.row.label in PEERS, "none is installed",
        ),
    ]  # fmt: skip


def _best_rank(text: str, panels: Panels, rival: Callable[[Curve], bool], none: str) -> Check:
    """A claim about mean ranks among AdaBound and its rivals, over the workloads that have rivals."""
    shared = {name: curves for name, curves in panels.items() if any(map(rival, curves.values()))}
    if not shared:
        return Check(text, none, NOT_COMPARABLE)

    def keep(curve: Curve) -> bool:
        return curve.row.label == OURS or rival(curve)

    if not all(curve.ended for curves in shared.values() for curve in curves.values() if keep(curve)):
        return Check(text, _MISSING, UNDECIDED)
    means = {name: mean(places) for name, places in placings(shared, keep).items()}
    ordered = sorted(means.items(), key=lambda item: item[1])
    places = ", ".join(f"{name} {value:.2f}" for name, value in ordered)
    measured = f"{places} on {len(shared)} workload{'s'[: len(shared) > 1]}"
    return Check(text, measured, HOLDS if means[OURS] <= min(means.values()) else FAILS)
