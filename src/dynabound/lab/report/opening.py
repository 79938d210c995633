"""The first part of the page: a newcomer's questions about AdaBound, each with a figure and a computed answer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynabound import _drawing
from dynabound._drawing import BLACK
from dynabound.lab.report.claims import SAME, STARTS, check, same_start
from dynabound.lab.report.evidence import FIRST, LAST, Evidence, Group
from dynabound.lab.report.figures import Band, ReportFigure, draw_band, label_axes, line_style
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import ALPHA, mean
from dynabound.lab.report.suggested import best_searched, tuning_steps
from dynabound.lab.report.verdicts import FAILS, HOLDS, NOT_REPRODUCED, REPRODUCED, Check, judge
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Question", "questions"]

_SIZE = (5.2, 3.5)


@dataclass(frozen=True)
class Question:
    """A question, its answer, and a figure."""

    question: str
    answer: str
    figure: ReportFigure


@dataclass(frozen=True)
class LinesFigure(ReportFigure):
    """A few lines over a common axis; each band has one list of values per seed."""

    kind = "lines"
    bands: tuple[Band, ...]
    x: str
    y: str
    ticks: tuple[str, ...] = ()
    """Names of the points, if they are not epochs."""

    def draw(self) -> Figure:
        """Draw the means, with a band of one standard deviation over seeds."""
        figure = _drawing.new_figure(*_SIZE)
        axes = figure.subplots()
        label_axes(axes, "", self.x, self.y)
        for place, band in enumerate(self.bands):
            draw_band(axes, band.seeds("train"), band.label, line_style(band.label, place))
        if self.ticks:
            axes.set_xticks(range(1, len(self.ticks) + 1), self.ticks)
        else:
            locator: Any = axes.xaxis.get_major_locator()
            locator.set_params(integer=True)
        axes.legend(fontsize=9, frameon=False)
        return figure


@dataclass(frozen=True)
class Dot:
    """A value with its interval, in a row of a :class:`DotsFigure`."""

    row: str
    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class DotsFigure(ReportFigure):
    """Values with intervals, a row per network and a colour per method."""

    kind = "dots"
    dots: tuple[Dot, ...]
    x: str
    zero: float = 0.0

    def draw(self) -> Figure:
        """Draw the dots, the methods of a row a little apart."""
        figure = _drawing.new_figure(*_SIZE)
        axes = figure.subplots()
        label_axes(axes, "", self.x, "")
        rows = list(dict.fromkeys(dot.row for dot in self.dots))
        labels = list(dict.fromkeys(dot.label for dot in self.dots))
        for place, label in enumerate(labels):
            mine = [dot for dot in self.dots if dot.label == label]
            offset = 0.22 * (place - (len(labels) - 1) / 2)
            errors = [[dot.value - dot.low for dot in mine], [dot.high - dot.value for dot in mine]]
            axes.errorbar([dot.value for dot in mine], [rows.index(dot.row) + offset for dot in mine], xerr=errors,
                          fmt="o", capsize=3, label=label, color=line_style(label, place)["color"])  # fmt: skip
        axes.axvline(self.zero, color=BLACK, linewidth=0.8)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        figure.legend(loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
        return figure


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


Curves = Mapping[str, Mapping[str, Curve]]
"""Finished curves by network and method."""


def _word(good: int, bad: int, total: int) -> str:
    """The answer, if ``good`` of ``total`` networks are decided in favour and ``bad`` against."""
    if bad:
        return "Not always" if good else "No"
    return "Yes" if good == total else "Yes, where decided" if good else "Not decided"


def _start(panels: Curves, checks: Sequence[Check]) -> Question | None:
    shown = {name: curves for name, curves in panels.items() if REFERENCE in curves and curves[REFERENCE].finished}
    if not shown:
        return None
    checks = [each for each in checks if each.difference is not None]  # the runs of the others have not ended
    nearer, farther = (sum(each.verdict == verdict for each in checks) for verdict in (REPRODUCED, NOT_REPRODUCED))
    name, curves = list(shown.items())[-1]
    labels = (same_start(curves), REFERENCE, "SGDM")
    first = {label: mean([FIRST.of(seed) for seed in curves[label].finished]) for label in labels}
    answer = (
        f"{_word(nearer, farther, len(checks))}: after one epoch AdaBound with Adam's step size is nearer to Adam than "
        f"to SGDM on {nearer} of {len(checks)} networks, and nearer to SGDM on {farther}"
        f"{_undecided(len(checks) - nearer - farther)}. Training accuracy on {name}: "
        f"{'; '.join(f'{label}: {value:.1f} %' for label, value in first.items())}."
    )
    bands = tuple(Band(label, False, [seed.series("train")[: max(4, seed.spec.epochs // 6)]
                                      for seed in curves[label].finished]) for label in labels)  # fmt: skip
    title = f"The first epochs on {name}; shading: one standard deviation over seeds"
    figure = LinesFigure("question-start", title, bands, "epoch", "training accuracy (%)")
    return Question("Does it start like Adam?", answer, figure)


def _dot(curves: Mapping[str, Curve], row: str, label: str, other: str) -> Dot:
    """The difference of two methods at the last epoch, with its interval over seeds."""
    estimate = Group(curves).comparison({label: 1.0, other: -1.0}, LAST).estimate
    margin = estimate.margin(ALPHA) if estimate.known else 0.0
    return Dot(row, label.partition(", ")[0], estimate.value, estimate.value - margin, estimate.value + margin)


def _signed(dot: Dot) -> str:
    return f"{'−' if dot.value < 0 else '+'}{abs(dot.value):.1f} ({dot.row})"


def _end(panels: Curves) -> Question | None:
    if not panels:
        return None
    sgd = {name: "SGDM" if "SGDM" in curves else "SGD" for name, curves in panels.items()}
    dots = [_dot(curves, name, label, sgd[name]) for name, curves in panels.items() for label in ("AdaBound", "Adam")]
    ours = sorted((dot for dot in dots if dot.label == "AdaBound"), key=lambda dot: dot.value)
    word, text = _as_good_as(panels, sgd, "SGD")
    answer = (
        f"{word}: AdaBound ends {text}. The differences range from {_signed(ours[0])} to {_signed(ours[-1])}. "
        f"{_compared_with_adam(panels)}"
    )
    x = "final test result minus SGD's\n(points of accuracy, or % of perplexity)"
    title = "Final results, with 90 % intervals over seeds"
    return Question("Does it end as well as SGD?", answer, DotsFigure("question-end", title, tuple(dots), x))


def _decided(panels: Curves, others: Mapping[str, str], low: float = 0.0) -> tuple[int, int]:
    """On how many networks it is decided that AdaBound ends better than ``others`` by ``low``, and that it does not."""
    checks = judge(
        [Group(curves).better("", "ours", "AdaBound", others[name], [LAST], low) for name, curves in panels.items()]
    )
    good, bad = (sum(each.verdict == verdict for each in checks) for verdict in (HOLDS, FAILS))
    return good, bad


def _as_good_as(panels: Curves, others: Mapping[str, str], name: str) -> tuple[str, str]:
    """Whether AdaBound ends as well as another method of each network: a word, and a text with the others' ``name``."""
    good, worse = _decided(panels, others, low=-SAME)
    return _word(good, worse, len(panels)), (
        f"at most {SAME:g} points of accuracy, or percent of perplexity, worse than {name} on {good} of {len(panels)} "
        f"networks, and worse by more on {worse}{_undecided(len(panels) - good - worse)}"
    )


def _undecided(number: int) -> str:
    return f"; on {number} the seeds do not decide" if number else ""


def _compared_with_adam(panels: Curves) -> str:
    better, worse = _decided(panels, dict.fromkeys(panels, "Adam"))
    undecided = _undecided(len(panels) - better - worse)
    return f"Compared with Adam it ends better on {better} and worse on {worse}{undecided}."


def _tuning(steps: Evidence | None, panels: Curves) -> Question | None:
    sentences = _suggestions(panels)
    figure: ReportFigure | None = None
    names = [name for name, curves in panels.items()
             if DEFAULTS["AdaBound"] in curves and curves[DEFAULTS["AdaBound"]].finished]  # fmt: skip
    if names:
        dots = tuple(_dot(panels[name], name, DEFAULTS["AdaBound"], "AdaBound") for name in names)
        good = sum(dot.value > -SAME for dot in dots)
        sentences.append(
            f"At the paper's defaults, with γ scaled to the length of an epoch, AdaBound ends at most {SAME:g} "
            f"points (or percent of perplexity) worse than with suggested step sizes on {good} of {len(dots)} networks"
        )
        x = "at the defaults, minus suggested step sizes\n(points of accuracy, or % of perplexity)"
        figure = DotsFigure("question-tuning", "Defaults against suggested step sizes, with 90 % intervals", dots, x)
    finals = _by_step_size(steps) if steps else {}
    if len(finals) == 2:
        ranges = {name: max(map(mean, each.values())) - min(map(mean, each.values())) for name, each in finals.items()}
        sentences.append(
            f"The final step size matters: over a thousandfold range AdaBound's accuracy varies by "
            f"{ranges['AdaBound']:.1f} points, and SGDM's over the same step sizes by {ranges['SGDM']:.1f}"
        )
        ticks = tuple(sorted((step for step in finals["SGDM"] if step in finals["AdaBound"]), key=float))
        bands = tuple(Band(name, False, _transposed([each[step] for step in ticks])) for name, each in finals.items())
        x, y = "step size α of SGDM, final step size α* of AdaBound", "final test accuracy (%)"
        title = "Final accuracy against step size; shading: one standard deviation over seeds"
        figure = LinesFigure("question-tuning", title, bands, x, y, ticks)
    return Question("Do I have to tune it?", f"{'. '.join(sentences)}.", figure) if figure else None


def _suggestions(panels: Curves) -> list[str]:
    """What suggested step sizes cost, and how AdaBound ends with them, compared with methods that were searched."""
    best = {name: best_searched(curves) for name, curves in panels.items() if curves["AdaBound"].suggestion}
    others = {name: label for name, label in best.items() if label}
    if not others:
        return []
    shown = {name: panels[name] for name in others}
    costs = [tuning_steps(curves["AdaBound"]) for curves in shown.values()]
    searches = [tuning_steps(curve) for curves in shown.values() for curve in curves.values() if curve.search_runs]
    word, text = _as_good_as(shown, others, "the best of these methods")
    return [
        f"{_NO[word]}: dynabound.suggest found its step sizes in {min(costs):,} to {max(costs):,} training steps, "
        f"where searches for other methods' took {min(searches):,} to {max(searches):,}; with them AdaBound ends {text}"
    ]


_NO = {
    "Yes": "No",
    "Yes, where decided": "No, where decided",
    "Not always": "Sometimes",
    "No": "Yes",
    "Not decided": "Not decided",
}
"""From the answers to "does it end as well without?" to those to "do I have to?"."""


def _by_step_size(steps: Evidence) -> dict[str, dict[str, list[float]]]:
    """The final accuracies of SGDM and AdaBound by step size, of runs that finished."""
    found = {
        name: {label.split("= ")[-1]: curve.final() for label, curve in steps.panels[name].items() if curve.final()}
        for name in ("SGDM", "AdaBound")
    }
    return {name: finals for name, finals in found.items() if finals}


def _transposed(columns: list[list[float]]) -> list[list[float]]:
    return [list(row) for row in zip(*columns, strict=False)]


def _cost(panels: Curves) -> Question | None:
    dots = []
    for name, curves in panels.items():
        # The fastest epoch of a run: the others waited for whatever else the machine did.
        times = {label: [min(line["seconds"] for line in seed.metrics) for seed in curve.finished]
                 for label, curve in curves.items()}  # fmt: skip
        adam = statistics.median(times["Adam"])
        for label in (label for label in ("AdaBound", "SGDM", "SGD") if label in times):
            ratios = [seconds / adam for seconds in times[label]]
            dots.append(Dot(name, label, statistics.median(ratios), min(ratios), max(ratios)))
    if not dots:
        return None
    ours = [dot.value for dot in dots if dot.label == "AdaBound"]
    low, high = min(ours), max(ours)
    word = "More than Adam" if low > 1 else "Less than Adam" if high < 1 else "As much as Adam, as far as one can tell"
    answer = (
        f"{word}: an epoch took {low:.2f} to {high:.2f} times as long as one of Adam, on {len(ours)} networks. The "
        "runs shared a machine, so these times are rough; dynabound bench compares single steps. AdaBound keeps as "
        "much state as Adam, two numbers per parameter."
    )
    x = "seconds per epoch, relative to Adam's\n(median, and range over seeds)"
    return Question("What did it cost?", answer, DotsFigure("question-cost", "Time per epoch", tuple(dots), x, 1.0))
