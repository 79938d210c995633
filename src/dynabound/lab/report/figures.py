"""The paper's figures as data, each with its drawing: the same data makes the same file."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dynabound import _drawing
from dynabound._drawing import BLACK, BLUE, GREEN, GREY, VERMILION, label_axes
from dynabound._extras import need
from dynabound.lab.report.claims import OURS, method
from dynabound.lab.report.read import Panels, RateEvolution, SampledRates
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.studies.recipes import PEERS
from dynabound.lens import draw
from dynabound.theory.verdict import REFUTED, SUPPORTED, UNDECIDED, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERSION = 13
"""Raise this when a drawing changes, so that old files are drawn again."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the page; a subclass adds its data and how it is drawn."""

    name: str
    title: str
    kind: ClassVar[str]

    def draw(self) -> Figure:
        """Draw it with matplotlib."""
        raise NotImplementedError

    def data(self) -> dict[str, Any]:
        """What is drawn, for JSON."""
        return {"kind": self.kind, **asdict(self)}

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png, NAME.svg and NAME.pdf, with the data in NAME.json, unless they exist."""
        return _drawing.save(self.name, self.data(), folder, self.draw, VERSION)

    def svg(self, folder: Path) -> bytes:
        """Its SVG, drawn if it is not in ``folder`` yet."""
        return next(path for path in self.save(folder) if path.suffix == ".svg").read_bytes()

    def png(self) -> bytes:
        """Its PNG."""
        return _drawing.render(self.name, self.draw, ("png",))["png"]


@dataclass(frozen=True)
class StoredFigure(ReportFigure):
    """A figure that is already drawn."""

    kind = "stored"
    path: Path

    def svg(self, folder: Path) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Band:
    """A method's curves, one list per seed, of the splits that are drawn."""

    label: str
    diverged: bool
    train: list[list[float]] | None = None
    test: list[list[float]] | None = None

    def seeds(self, split: str) -> list[list[float]]:
        """The curves of one split."""
        return (self.train if split == "train" else self.test) or []


@dataclass(frozen=True)
class Panel:
    """The methods that are drawn into the same axes."""

    name: str
    curves: tuple[Band, ...]


def line_style(label: str, place: int) -> dict[str, Any]:
    """A method's style; a variant, such as "Adam, α = 0.001", has its method's colour, and is dotted or dash-dotted."""
    method, _, variant = label.partition(", ")
    style = _drawing.method_style(method, place)
    return {**style, "linestyle": "-." if variant == "SGDM's rate" else ":"} if variant else style


_VIEWS = {"start": "first epochs", "train": "training", "test": "test"}


@dataclass(frozen=True)
class CurvesFigure(ReportFigure):
    """A row per panel and a column per view, or all panels in one row if there is one view: the paper's layout.

    The views are the splits; the first epochs of training have a view of their own, because the limits of the other
    view cut them off.
    """

    kind = "curves"
    panels: tuple[Panel, ...]
    splits: tuple[str, ...]
    metric: str
    shared_legend: bool

    def draw(self) -> Figure:
        """Draw the mean over seeds with a band of one standard deviation."""
        views = ("start", *self.splits) if "train" in self.splits else self.splits
        rows, columns = (len(self.panels), len(views)) if len(views) > 1 else (1, len(self.panels))
        ratios = [0.6 if view == "start" else 1.0 for view in views] if len(views) > 1 else [1.0] * columns
        figure = _drawing.new_figure(4.6 * sum(ratios) + 0.6, 3.4 * rows + 1.0, self.title)
        grid = figure.subplots(rows, columns, squeeze=False, width_ratios=ratios)
        places = [(panel, view) for panel in self.panels for view in views]
        for axes, (panel, view) in zip(grid.flat, places, strict=True):
            self._draw_panel(axes, panel, view, panel.name if len(views) == 1 else f"{panel.name}: {_VIEWS[view]}")
        if self.shared_legend:
            labels = {curve.label for panel in self.panels for curve in panel.curves}
            _drawing.legend_below(figure, 4 if len(views) < 3 and len(labels) > 6 else 7)
        return figure

    def _draw_panel(self, axes: Axes, panel: Panel, view: str, title: str) -> None:
        split = "train" if view == "start" else view
        label_axes(axes, title, "epoch", f"{_VIEWS[split]} {self.metric}")
        for place, curve in enumerate(panel.curves):
            seeds = curve.seeds(split)
            shown = [seed[: max(3, len(seed) // 6)] for seed in seeds] if view == "start" else seeds
            draw_band(axes, shown, curve.label, line_style(curve.label, place))
        locator: Any = axes.xaxis.get_major_locator()
        locator.set_params(integer=True)
        if view != "start":
            _limit(axes, [curve.seeds(split) for curve in panel.curves], self.metric)
        if not self.shared_legend:
            for line in axes.get_lines():
                values: Any = line.get_ydata()
                if len(values) and max(values) < axes.get_ylim()[0]:
                    line.set_label(f"{line.get_label()} (below)")
            axes.legend(fontsize=8, loc="best")


def draw_band(axes: Axes, seeds: list[list[float]], label: str, style: dict[str, Any]) -> None:
    """The mean over seeds, and one standard deviation on either side."""
    if not seeds:
        axes.plot([], [], label=f"{label} (no run)", **style)
        return
    epochs = range(1, len(seeds[0]) + 1)
    columns = list(zip(*seeds, strict=True))
    means = [mean(column) for column in columns]
    axes.plot(epochs, means, label=label, **style)
    if len(seeds) > 1:
        low, high = ([m + sign * std(column) for m, column in zip(means, columns, strict=True)] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _limit(axes: Axes, curves: list[list[list[float]]], metric: str) -> None:
    """Set limits that cut off the first epochs where they would flatten the rest of the curves."""
    ends = [seed[-1] for seeds in curves for seed in seeds]
    late = [value for seeds in curves for seed in seeds for value in seed[len(seed) // 5 :]]
    if not ends:
        return
    if metric == "perplexity":
        low, high = min(late), max(late)
        if high > 3 * low:
            axes.set(yscale="log", ylabel=f"{axes.get_ylabel()} (log scale)")
            axes.set_ylim(0.9 * low, 1.1 * high)
            return
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    else:
        low = max(min(late), min(max(ends) - 40, sorted(ends)[len(ends) // 4] - 5))
        top = min(100.0, max(late))
        axes.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low) + 0.05)


@dataclass(frozen=True)
class HeatmapsFigure(ReportFigure):
    """log₁₀ of sampled rates: nine kernels and a bias of each method; lighter is smaller, as in the paper."""

    kind = "heatmaps"
    methods: dict[str, SampledRates]

    def draw(self) -> Figure:
        headed = {f"{name}, step {rates.step:,}": {**rates.kernels, **{bias: [row] for bias, row in rates.bias.items()}}
                  for name, rates in self.methods.items()}  # fmt: skip
        return draw.heatmaps(headed, self.title)


@dataclass(frozen=True)
class EvolutionFigure(ReportFigure):
    """Smallest, median and largest rate of two layers, and the bounds, over time."""

    kind = "evolution"
    rates: RateEvolution

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "title": self.title, **asdict(self.rates)}

    def draw(self) -> Figure:
        shared = {"lower": self.rates.lower, "upper": self.rates.upper}
        panels = {name: {**layer, **shared} for name, layer in self.rates.layers.items()}
        epochs = range(1, len(self.rates.lower) + 1)
        return draw.evolution(panels, epochs, "epoch", self.title, self.rates.final_lr)


_COLOURS = {SUPPORTED: GREEN, REFUTED: VERMILION, UNDECIDED: GREY}
_LINEAR = 2.0
"""Up to here the axis is linear, and logarithmic beyond: one large difference must not hide the small ones."""
_TICKS, _FEW_TICKS = (1, 2, 5, 20), (1, 2, 10, 50, 200, 1000)
"""Labels of the axis on either side of 0: the second where the first would overlap."""


@dataclass(frozen=True)
class Dot:
    """A value with its interval, in a row of a :class:`DotsFigure`."""

    row: str
    label: str
    value: float
    low: float
    high: float
    decided: bool = True
    """Whether the dot is filled."""
    outer: tuple[float, float] | None = None
    """A wider interval, drawn as a thin line."""
    limits: tuple[float, ...] = ()
    """The limits of a claim, drawn as ticks."""

    @classmethod
    def of(cls, verdict: Verdict, row: str = "", label: str = "") -> Dot:
        """The difference and the interval of a claim that was tested; the wider one adds the error of the test set."""
        value, low, high = (float(x or 0.0) for x in (verdict.difference, verdict.low, verdict.high))
        outer = None
        if verdict.test_error:
            extra = 2 * verdict.test_error
            outer = (value - math.hypot(value - low, extra), value + math.hypot(high - value, extra))
        decided = verdict.verdict in (SUPPORTED, REFUTED)
        limits = tuple(limit for limit in verdict.bounds or () if limit)
        return cls(row or verdict.claim, label or verdict.verdict, value, low, high, decided, outer, limits)


@dataclass(frozen=True)
class DotsFigure(ReportFigure):
    """A forest plot: values with intervals, in rows from the top to the bottom and with a colour per label."""

    kind = "dots"
    dots: tuple[Dot, ...]
    x: str
    zero: float | None = 0.0
    logarithmic: bool = True
    """Whether the axis is logarithmic far from zero."""

    def draw(self) -> Figure:
        """Draw the dots, those of a row a little apart."""
        rows = list(dict.fromkeys(dot.row for dot in self.dots))
        labels = list(dict.fromkeys(dot.label for dot in self.dots))
        names = ["\n".join(textwrap.wrap(row, 62)) for row in rows]
        lines = sum(1 + name.count("\n") for name in names)
        wide = max(map(len, rows)) > 40
        height = max(0.2 * lines + 0.1 * len(rows), 0.24 * len(self.dots))
        figure = _drawing.new_figure(10.4 if wide else 7.0, 1.7 + height, self.title)
        axes = figure.subplots()
        label_axes(axes, "", self.x, "")
        apart = 0.0 if set(labels) <= set(_COLOURS) else 0.6 / len(labels)
        for place, label in enumerate(labels):
            offset = apart * (place - (len(labels) - 1) / 2)
            for dot in (dot for dot in self.dots if dot.label == label):
                _draw_dot(axes, rows.index(dot.row) + offset, dot, _colour(label, place))
        if self.zero is not None:
            axes.axvline(self.zero, color=BLACK, linewidth=0.8)
        if self.logarithmic:
            _symmetric_log(axes)
        axes.set_yticks(range(len(rows)), names, fontsize=8 if wide else 9)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        handles = [axes.plot([], [], "o-", color=_colour(label, place), linewidth=3)[0]
                   for place, label in enumerate(labels)]  # fmt: skip
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        return figure


def _colour(label: str, place: int) -> str:
    """The colour of a verdict, of a method, or of the method that is subtracted."""
    style = line_style(label.rpartition("− ")[2], place)
    return _COLOURS.get(label) or str(style["color"])


def _draw_dot(axes: Axes, y: float, dot: Dot, colour: str) -> None:
    if dot.outer:
        axes.plot(dot.outer, [y, y], color=colour, linewidth=0.8)
    axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
    axes.plot(dot.value, y, "o", color=colour, markerfacecolor=colour if dot.decided else "white", markersize=6)
    for limit in dot.limits:
        axes.plot([limit, limit], [y - 0.3, y + 0.3], color=BLACK, linewidth=1)


def _symmetric_log(axes: Axes) -> None:
    axes.set_xscale("symlog", linthresh=_LINEAR)
    low, high = axes.get_xlim()
    chosen = _TICKS if max(-low, high) < 3 * _TICKS[-1] else _FEW_TICKS
    axes.set_xticks([t for t in (*(-tick for tick in reversed(chosen)), 0, *chosen) if low <= t <= high])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")


def side_by_side(name: str, title: str, panels: Panels) -> DotsFigure:
    """The final test accuracy of each learning rate, a colour per panel, with the range over seeds."""
    dots = []
    for panel, curves in panels.items():
        for label, curve in curves.items():
            finals, row = curve.final(), label.rpartition("= ")[2]
            if finals:
                dots.append(Dot(row, panel, mean(finals), min(finals), max(finals)))
    x = "final test accuracy (%) at each learning rate α or α*; lines: range over seeds"
    return DotsFigure(name, title, tuple(dots), x, zero=None, logarithmic=False)


_COLUMNS = 3
_MARKERS = "osD^vPX<>ph"
_FARTHEST = 10.0
"""Times the best perplexity: a point beyond this is named and not drawn, because it would flatten all others."""


@dataclass(frozen=True)
class Point:
    """The result of a method on a workload, and the training steps it took."""

    label: str
    steps: int
    """Of its search or suggestion, and of the training itself."""
    finals: list[float]
    """The final test metric of every seed."""


@dataclass(frozen=True)
class CostPanel:
    """A workload."""

    name: str
    metric: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class CostFigure(ReportFigure):
    """Final test metric against training steps, a panel per workload."""

    kind = "cost"
    panels: tuple[CostPanel, ...]

    def draw(self) -> Figure:
        """Draw the means with one standard deviation; both axes are logarithmic, except the axis of an accuracy."""
        rows = math.ceil(len(self.panels) / _COLUMNS)
        figure = _drawing.new_figure(11.4, 3.3 * rows + 1.2, self.title)
        labels = list(dict.fromkeys(method(point.label) for panel in self.panels for point in panel.points))
        grid = figure.subplots(rows, _COLUMNS, squeeze=False)
        for axes in grid.flat[len(self.panels) :]:
            axes.remove()
        for axes, panel in zip(grid.flat, self.panels, strict=False):
            self._draw_panel(axes, panel, labels)
        _drawing.legend_below(figure, 5, fontsize=9)
        return figure

    def _draw_panel(self, axes: Axes, panel: CostPanel, labels: list[str]) -> None:
        label_axes(axes, panel.name, "training steps, search included", f"final test {panel.metric}")
        text = panel.metric == "perplexity"
        farthest = _FARTHEST * min((mean(point.finals) for point in panel.points), default=0.0) if text else math.inf
        far = [point for point in panel.points if mean(point.finals) > farthest]
        if far:
            names = [f"{method(point.label)}: {mean(point.finals):,.0f}" for point in far]
            axes.text(0.98, 0.98, "\n".join(["not shown:", *names]), transform=axes.transAxes, ha="right", va="top",
                      fontsize=8)  # fmt: skip
        for point in (point for point in panel.points if point not in far):
            place = labels.index(method(point.label))
            hollow = ", " in point.label
            colour = BLACK if point.label in PEERS else line_style(point.label, place)["color"]
            spread = std(point.finals)
            axes.errorbar([point.steps], [mean(point.finals)], yerr=None if math.isnan(spread) else [spread],
                          fmt=_MARKERS[place % len(_MARKERS)], color=colour, capsize=2, label=method(point.label),
                          markersize=10 if point.label == OURS else 7,
                          markerfacecolor="white" if hollow else colour)  # fmt: skip
        if panel.points:
            _log_scale(axes, "x")
            if text:
                _log_scale(axes, "y")
            else:
                axes.set_ylim(top=min(axes.get_ylim()[1], 100.5))


def _log_scale(axes: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5 in each decade."""
    _drawing.log_scale(axes, which)
    axis, ticker = getattr(axes, f"{which}axis"), need("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,.0f}")
    axis.set_minor_formatter(ticker.NullFormatter())


@dataclass(frozen=True)
class RanksFigure(ReportFigure):
    """The rank of each method on each workload, and their mean."""

    kind = "ranks"
    ranks: dict[str, list[int]]

    def draw(self) -> Figure:
        """Draw a line per method, the best mean at the top."""
        methods = sorted(self.ranks, key=lambda name: mean(self.ranks[name]))
        figure = _drawing.new_figure(8.4, 0.36 * len(methods) + 1.6, self.title)
        axes = figure.subplots()
        label_axes(axes, "", "rank on a workload (grey) and mean rank (diamond); 1 is the best", "")
        for place, name in enumerate(methods):
            own = self.ranks[name]
            offsets = [place + 0.09 * sum(other == rank for other in own[:i]) for i, rank in enumerate(own)]
            axes.plot(own, offsets, "o", color=GREY, markersize=4, alpha=0.7)
            axes.plot([mean(own)], [place], "D", color=BLUE if name == OURS else BLACK, markersize=9)
        names = [f"{name} ({mean(self.ranks[name]):.2f}, {len(self.ranks[name])} workloads)" for name in methods]
        axes.set_yticks(range(len(methods)), names)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        return figure
