"""The first part of the page: a newcomer's questions about AdaBound, each with a figure and a computed answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynabound.lab.report.claims import STARTS, check, same_start
from dynabound.lab.report.evidence import FIRST, LAST, Evidence, Group
from dynabound.lab.report.figures import Band, ReportFigure
from dynabound.lab.report.opening_figures import Dot, DotsFigure, LinesFigure
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import ALPHA, mean
from dynabound.lab.report.suggested import best_searched, tuning_steps
from dynabound.lab.report.verdicts import FAILS, HOLDS, NOT_REPRODUCED, REPRODUCED, Check, judge
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE

__all__ = ["Question", "questions"]

_UNITS = "points of accuracy, or % of perplexity"


@dataclass(frozen=True)
class Question:
    """A question, its answer in a sentence, the details, and a figure."""

    question: str
    answer: str
    details: str
    figure: ReportFigure


@dataclass(frozen=True)
class Tally:
    """On how many networks a statement is decided, for it and against it."""

    good: int
    bad: int
    total: int

    @classmethod
    def of(cls, checks: Sequence[Check]) -> Tally:
        """Count the verdicts."""
        yes, no = (REPRODUCED, HOLDS), (NOT_REPRODUCED, FAILS)
        good, bad = (sum(each.verdict in words for each in checks) for words in (yes, no))
        return cls(good, bad, len(checks))

    @property
    def word(self) -> str:
        """The answer to "is it so?"."""
        if 2 * (self.good + self.bad) < self.total:
            return "Mostly not decided" if self.good or self.bad else "Not decided"
        if self.bad:
            return "Not always" if self.good else "No"
        return "Yes" if self.good == self.total else "Yes, where decided"

    @property
    def on(self) -> str:
        """Where it is so."""
        return f"on {self.good} of {self.total} network{'s'[: self.total != 1]}"

    @property
    def undecided(self) -> str:
        """A clause on the other networks, if there are any."""
        left = self.total - self.good - self.bad
        return f"; on {left} the seeds do not decide" if left else ""


Curves = Mapping[str, Mapping[str, Curve]]
"""Finished curves by network and method."""


def questions(evidence: Mapping[str, Evidence]) -> tuple[Question, ...]:
    """The questions that the given studies can answer."""
    panels = {
        name: curves
        for study in ("mnist", "cifar10", "ptb") if study in evidence
        for name, curves in evidence[study].panels.items()
        if all(curve.finished for label, curve in curves.items() if label in ("SGDM", "SGD", "Adam", "AdaBound"))
    }  # fmt: skip
    checks = [each for study in ("mnist", "cifar10") if study in evidence for each in check(study, evidence[study])]
    found = (
        _start(panels, [each for each in checks if STARTS in each.claim]),
        _end(panels),
        _tuning(evidence.get("final-step-size"), panels),
        _cost(panels),
    )
    return tuple(question for question in found if question)


def _start(panels: Curves, checks: Sequence[Check]) -> Question | None:
    shown = {name: curves for name, curves in panels.items() if REFERENCE in curves and curves[REFERENCE].finished}
    tally = Tally.of([each for each in checks if each.difference is not None])  # the runs of the others have not ended
    if not shown or not tally.total:
        return None
    name, curves = list(shown.items())[-1]
    labels = (same_start(curves), REFERENCE, "SGDM")
    first = {label: mean([FIRST.of(seed) for seed in curves[label].finished]) for label in labels}
    answer = f"{tally.word}: after one epoch AdaBound with Adam's step size is nearer to Adam than to SGDM {tally.on}."
    details = (
        f"It is nearer to SGDM on {tally.bad}{tally.undecided}. Training accuracy on {name}: "
        f"{'; '.join(f'{label}: {value:.1f} %' for label, value in first.items())}."
    )
    bands = tuple(Band(label, False, [seed.series("train")[: max(4, seed.spec.epochs // 6)]
                                      for seed in curves[label].finished]) for label in labels)  # fmt: skip
    title = f"The first epochs on {name}; shading: one standard deviation over seeds"
    figure = LinesFigure("question-start", title, bands, "epoch", "training accuracy (%)")
    return Question("Does it start like Adam?", answer, details, figure)


def _dot(curves: Mapping[str, Curve], row: str, label: str, other: str) -> Dot:
    """The difference of two methods at the last epoch, with its interval over seeds."""
    estimate = Group(curves).comparison({label: 1.0, other: -1.0}, LAST).estimate
    margin = estimate.margin(ALPHA) if estimate.known else 0.0
    return Dot(row, label.partition(", ")[0], estimate.value, estimate.value - margin, estimate.value + margin)


def _signed(dot: Dot) -> str:
    text = f"{abs(dot.value):.1f}"
    return f"{'' if float(text) == 0 else '−' if dot.value < 0 else '+'}{text} ({dot.row})"


def _end(panels: Curves) -> Question | None:
    if not panels:
        return None
    sgd = {name: "SGDM" if "SGDM" in curves else "SGD" for name, curves in panels.items()}
    dots = [_dot(curves, name, label, sgd[name]) for name, curves in panels.items() for label in ("AdaBound", "Adam")]
    ours = sorted((dot for dot in dots if dot.label == "AdaBound"), key=lambda dot: dot.value)
    tally = _as_good(panels, "AdaBound", sgd)
    answer = f"{tally.word}: AdaBound ends as well as SGD {tally.on}, and worse on {tally.bad}."
    range_ = (
        f"differences range from {_signed(ours[0])} to {_signed(ours[-1])}"
        if len(ours) > 1
        else f"difference is {_signed(ours[0])}"
    )
    details = f"{_meaning(panels, tally)} The {range_}. {_compared_with_adam(panels)}"
    title = "Final results, with 90 % intervals over seeds"
    figure = DotsFigure("question-end", title, tuple(dots), f"final test result minus SGD's\n({_UNITS})")
    return Question("Does it end as well as SGD?", answer, details, figure)


def _decided(panels: Curves, ours: str, others: Mapping[str, str], margin: bool = False) -> Tally:
    """On how many networks it is decided that ``ours`` ends better than ``others``, or not worse by the margin."""
    groups = {name: Group(curves) for name, curves in panels.items()}
    return Tally.of(judge([
        group.better("", "ours", ours, others[name], [LAST], -group.margin if margin else 0.0)
        for name, group in groups.items()
    ]))  # fmt: skip


def _as_good(panels: Curves, ours: str, others: Mapping[str, str]) -> Tally:
    return _decided(panels, ours, others, margin=True)


def _meaning(panels: Curves, tally: Tally) -> str:
    """What "as well" means on these networks, and on how many nothing is decided."""
    margins = {name: Group(curves).margin for name, curves in panels.items()}
    most = max(margins.values())
    text = f"{most:g} point{'s'[: most != 1]} of accuracy"
    text += ", or percent of perplexity," if any(Group(curves).unit == "%" for curves in panels.values()) else ""
    left = f" {tally.undecided[2:].capitalize()}." if tally.undecided else ""
    smaller = "".join(f" ({name}: {margin:g})" for name, margin in margins.items() if margin < most)
    return f"“As well” is at most {text} worse{smaller}.{left}"


def _compared_with_adam(panels: Curves) -> str:
    searched = _decided(panels, "AdaBound", dict.fromkeys(panels, "Adam"))
    text = f"Compared with Adam it ends better on {searched.good} and worse on {searched.bad}{searched.undecided}."
    shown = {name: curves for name, curves in panels.items() if REFERENCE in curves and curves[REFERENCE].finished}
    if not shown:
        return text
    plain = _decided(shown, "AdaBound", dict.fromkeys(shown, REFERENCE))
    dots = ", ".join(_signed(_dot(curves, name, "AdaBound", REFERENCE)) for name, curves in shown.items())
    return (
        f"{text} Compared with Adam at 0.001, without a search, it ends better on {plain.good} and worse on "
        f"{plain.bad}{plain.undecided}: {dots}."
    )


def _tuning(steps: Evidence | None, panels: Curves) -> Question | None:
    best = {name: best_searched(curves) for name, curves in panels.items()}
    others = {name: label for name, label in best.items() if label}
    if not others:
        return None
    shown = {name: panels[name] for name in others}
    costs = [curves["AdaBound"].suggestion.cost for curves in shown.values() if curves["AdaBound"].suggestion]
    searches = [tuning_steps(curve) for curves in shown.values() for curve in curves.values() if curve.search_runs]
    tally = _as_good(shown, "AdaBound", others)
    with_what = "with suggested step sizes" if costs else "at the paper's defaults"
    answer = (
        f"{_NO.get(tally.word, tally.word)}: {with_what} AdaBound ends as well as the best searched method {tally.on}, "
        f"and worse on {tally.bad}."
    )
    sentences = [f"The searches took {_range(searches)} training steps"]
    if costs:
        sentences[0] += f", dynabound.suggest {_range(costs)}"
    sentences[0] += f". {_meaning(shown, tally)}"
    details = " ".join([*sentences, *_defaults(panels), *_sensitivity(steps)])
    dots = tuple(_dot(curves, f"{name}\n(best: {others[name]})", "AdaBound", others[name])
                 for name, curves in shown.items())  # fmt: skip
    title = f"AdaBound {with_what} against the best searched method, with 90 % intervals"
    figure = DotsFigure("question-tuning", title, dots, f"final test result minus the best searched one's\n({_UNITS})")
    return Question("Do I have to tune it?", answer, details, figure)


_NO = {
    "Yes": "No",
    "Yes, where decided": "No, where decided",
    "Not always": "Sometimes",
    "No": "Yes",
}
"""From the answers to "does it end as well without?" to those to "do I have to?", if they differ."""


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _defaults(panels: Curves) -> list[str]:
    """A sentence on the defaults, where there are suggested step sizes to compare them with."""
    label = DEFAULTS["AdaBound"]
    shown = {name: curves for name, curves in panels.items() if label in curves and curves[label].finished}
    if not shown:
        return []
    tally = _as_good(shown, label, dict.fromkeys(shown, "AdaBound"))
    return [
        "At the paper's defaults, with γ scaled to the length of an epoch, AdaBound ends as well as with suggested "
        f"step sizes {tally.on}, and worse on {tally.bad}{tally.undecided}."
    ]


def _sensitivity(steps: Evidence | None) -> list[str]:
    """A sentence on the final step size, if the runs of SGDM and AdaBound have finished."""
    if not steps:
        return []
    finals = {name: [mean(curve.final()) for curve in steps.panels[name].values() if curve.final()]
              for name in ("SGDM", "AdaBound")}  # fmt: skip
    if not all(finals.values()):
        return []
    ranges = {name: max(means) - min(means) for name, means in finals.items()}
    return [
        f"The final step size matters: over a thousandfold range AdaBound's accuracy varies by "
        f"{ranges['AdaBound']:.1f} points, and SGDM's over the same step sizes by {ranges['SGDM']:.1f}."
    ]


def _times(curves: Mapping[str, Curve]) -> dict[str, list[float]]:
    """Each method's fastest epochs, one per run, on the CPU model with the most runs of AdaBound and Adam.

    The other epochs of a run waited for whatever else the machine did.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for label in (label for label in ("AdaBound", "Adam", "SGDM", "SGD") if label in curves):
        for seed in (seed for seed in curves[label].finished if seed.cpu):
            seconds = min(line["seconds"] for line in seed.metrics)
            found.setdefault(seed.cpu, {}).setdefault(label, []).append(seconds)
    runs = Counter({cpu: min(len(times.get(label, ())) for label in ("AdaBound", "Adam"))
                    for cpu, times in found.items()})  # fmt: skip
    return found[runs.most_common(1)[0][0]] if runs.total() else {}


def _told_apart(ours: Sequence[float], others: Sequence[float]) -> bool:
    """Whether runs of two methods differ by more than runs of one; single runs show nothing."""
    gap = max(min(ours) - max(others), min(others) - max(ours))
    return min(len(ours), len(others)) > 1 and gap > max(max(ours) - min(ours), max(others) - min(others))


def _cost(panels: Curves) -> Question | None:
    times = {name: found for name, curves in panels.items() if (found := _times(curves))}
    if not times:
        return None
    dots = [Dot(name, label, *(pick(seconds) / min(found["Adam"]) for pick in (min, min, max)))
            for name, found in times.items() for label, seconds in found.items()]  # fmt: skip
    ratios = [f"{dot.value:.2f}" for dot in dots if dot.label == "AdaBound"]
    took = ratios[0] if len(set(ratios)) == 1 else f"{min(ratios, key=float)} to {max(ratios, key=float)}"
    took = f"{took} times as long as Adam's on {len(times)} network{'s'[: len(times) != 1]}"
    sides = {float(ratio) > 1 for ratio in ratios}
    if len(sides) == 1 and all(_told_apart(found["AdaBound"], found["Adam"]) for found in times.values()):
        answer = f"{'More' if sides == {True} else 'Less'} than Adam: its fastest epoch took {took}."
        first = "Runs of one CPU model are compared."
    else:
        answer = "These runs do not tell: they shared a machine. dynabound bench compares single steps."
        first = f"On one CPU model AdaBound's fastest epoch took {took}, but runs and networks differ as much."
    details = f"{first} AdaBound keeps as much state as Adam, two numbers per parameter."
    x = "fastest epoch of a run, relative to Adam's fastest\n(the fastest run, and the range over seeds)"
    return Question(
        "What did it cost?", answer, details, DotsFigure("question-cost", "Time per epoch", tuple(dots), x, 1.0)
    )
