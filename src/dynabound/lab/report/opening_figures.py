"""The figures of the opening questions: lines over epochs, and dots with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynabound import _drawing
from dynabound._drawing import BLACK
from dynabound.lab.report.figures import Band, ReportFigure, draw_band, label_axes, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Dot", "DotsFigure", "LinesFigure"]

_SIZE = (5.2, 3.5)


@dataclass(frozen=True)
class LinesFigure(ReportFigure):
    """A few lines over a common axis; each band has one list of values per seed."""

    kind = "lines"
    bands: tuple[Band, ...]
    x: str
    y: str

    def draw(self) -> Figure:
        """Draw the means, with a band of one standard deviation over seeds."""
        figure = _drawing.new_figure(*_SIZE)
        axes = figure.subplots()
        label_axes(axes, "", self.x, self.y)
        for place, band in enumerate(self.bands):
            draw_band(axes, band.seeds("train"), band.label, line_style(band.label, place))
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
