"""The forest plot of a study: the difference and the interval of every claim that was tested."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynabound import _drawing
from dynabound._drawing import BLACK, GREEN, GREY, VERMILION
from dynabound.lab.report.figures import ReportFigure, label_axes
from dynabound.lab.report.verdicts import FAILS, HOLDS, NOT_REPRODUCED, REPRODUCED, Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ForestFigure"]

_COLOURS = {REPRODUCED: GREEN, HOLDS: GREEN, NOT_REPRODUCED: VERMILION, FAILS: VERMILION}
_LINEAR = 2.0
"""Up to here the axis is linear, and logarithmic beyond: one large difference must not hide the small ones."""

_TICKS, _FEW_TICKS = (1, 2, 5, 10, 20), (1, 2, 10, 50, 200, 1000)
"""Labels of the axis on either side of 0: the second where the first would overlap."""


@dataclass(frozen=True)
class ForestFigure(ReportFigure):
    """A line per claim, from the first at the top to the last."""

    kind = "forest"
    checks: tuple[Check, ...]

    def data(self) -> dict[str, Any]:
        """What is drawn, for JSON."""
        return {"kind": self.kind, "name": self.name, "title": self.title, "checks": [asdict(c) for c in self.checks]}

    def draw(self) -> Figure:
        """Draw the intervals over seeds; thin lines add the error of the finite test set."""
        labels = ["\n".join(textwrap.wrap(check.claim, 62)) for check in self.checks]
        lines = sum(1 + label.count("\n") for label in labels)
        figure = _drawing.new_figure(10.4, 1.5 + 0.2 * lines + 0.1 * len(labels), self.title)
        axes = figure.subplots()
        unit = " / ".join(dict.fromkeys(check.unit for check in self.checks))
        label_axes(axes, "", f"difference in {unit}; logarithmic beyond ±{_LINEAR:g}", "")
        for place, check in enumerate(self.checks):
            _draw_check(axes, place, check)
        axes.axvline(0, color=BLACK, linewidth=0.8)
        axes.set_xscale("symlog", linthresh=_LINEAR)
        low, high = axes.get_xlim()
        chosen = _TICKS if max(-low, high) < 3 * _TICKS[-1] else _FEW_TICKS
        axes.set_xticks([t for t in (*(-tick for tick in reversed(chosen)), 0, *chosen) if low <= t <= high])
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        limited = any(bound for check in self.checks for bound in check.bounds or ())
        figure.legend(*_legend(axes, limited), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        return figure


def _draw_check(axes: Axes, place: int, check: Check) -> None:
    colour = _COLOURS.get(check.verdict, GREY)
    value, low, high = (float(x or 0.0) for x in (check.difference, check.low, check.high))
    if check.test_error:
        extra = 2 * check.test_error
        below, above = value - math.hypot(value - low, extra), value + math.hypot(high - value, extra)
        axes.plot([below, above], [place, place], color=colour, linewidth=0.8)
    axes.plot([low, high], [place, place], color=colour, linewidth=3.2, solid_capstyle="butt")
    decided = check.verdict in _COLOURS
    axes.plot(value, place, "o", color=colour, markerfacecolor=colour if decided else "white", markersize=6)
    for bound in check.bounds or ():
        if bound:
            axes.plot([bound, bound], [place - 0.3, place + 0.3], color=BLACK, linewidth=1)


def _legend(axes: Axes, limited: bool) -> tuple[list[Any], list[str]]:
    entries = {
        "reproduced, or holds": axes.plot([], [], "o-", color=GREEN, linewidth=3.2)[0],
        "not reproduced, or fails": axes.plot([], [], "o-", color=VERMILION, linewidth=3.2)[0],
        "not decided": axes.plot([], [], "o-", color=GREY, linewidth=3.2, markerfacecolor="white")[0],
    }
    if limited:
        entries["limit of the claim"] = axes.plot([], [], "|", color=BLACK, markersize=10)[0]
    return list(entries.values()), list(entries)
