"""The figures of the study of suggested step sizes: quality against cost, and ranks over workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabound import _drawing
from dynabound._drawing import BLACK, BLUE, GREY
from dynabound._extras import need
from dynabound.lab.report.evidence import Panels
from dynabound.lab.report.figures import ReportFigure, label_axes, line_style
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.report.suggested import OURS, method, placings, tuning_steps
from dynabound.lab.report.tables import metric_name
from dynabound.lab.studies.recipes import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CostFigure", "CostPanel", "Point", "RanksFigure", "build"]

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


def build(name: str, title: str, panels: Panels) -> Iterator[ReportFigure]:
    """The figures of the runs that have finished."""
    finished = {panel: [curve for curve in curves.values() if curve.finished] for panel, curves in panels.items()}
    shown = tuple(
        CostPanel(panel, metric_name(curves[0]), tuple(map(_point, curves)))
        for panel, curves in finished.items() if curves
    )  # fmt: skip
    if shown:
        yield CostFigure(f"{name}-cost", f"{title}: quality against cost", shown)
        yield RanksFigure(f"{name}-ranks", f"{title}: ranks over workloads", placings(panels))


def _point(curve: Curve) -> Point:
    # A search has trained its winner already.
    return Point(curve.row.label, tuning_steps(curve) + (0 if curve.search_runs else curve.steps), curve.final())
