"""Figures of learning rates, drawn from plain data. Every function returns a matplotlib Figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dynabound import _drawing
from dynabound._extras import need
from dynabound.lens.table import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LABELS = 40  # more parameter names than this do not fit beside an axis
_SMALL: dict[str, Any] = dict(fontsize=8)


def choose_kernels(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Figure 1's parameters: nine with 3×3 kernels, else nine matrices, from first to last, and the last vector."""
    matrices = [name for name, shape in shapes.items() if sum(size > 1 for size in shape) > 1]
    kernels = [name for name in matrices if tuple(shapes[name][2:]) == (3, 3)] or matrices
    count = min(9, len(kernels))
    chosen = [kernels[round(i * (len(kernels) - 1) / max(1, count - 1))] for i in range(count)]
    return chosen + [name for name in shapes if name not in matrices][-1:]


def heatmaps(
    methods: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    title: str,
    extremes: tuple[float, float] | None = None,
) -> Figure:
    """The paper's Figure 1: log₁₀ of rates, the methods side by side with one colour scale; lighter is smaller.

    Args:
        methods: for each method, by its heading, the rates of each parameter as rows; one row is drawn as a vector.
        title: of the figure.
        extremes: rates that the colour scale includes, so that figures of two runs can be compared.
    """
    logs = {
        method: {name: [[_log10(rate) for rate in row] for row in rows] for name, rows in patches.items()}
        for method, patches in methods.items()
    }
    shown = [log for patches in logs.values() for rows in patches.values() for row in rows for log in row]
    scale = _drawing.heat_scale([*map(_log10, extremes or ()), *shown])
    counts = [sum(len(rows) > 1 for rows in patches.values()) for patches in logs.values()]
    columns = max(1, min(3, *counts, 3))
    lines = max(math.ceil(count / columns) for count in counts)
    vectors = max(len(patches) - count for patches, count in zip(logs.values(), counts, strict=True))
    width = max(4.0 if len(methods) == 1 else 0.0, 1.0 + 1.6 * columns)
    figure = _drawing.new_figure(width * len(methods), 1.0 + 1.75 * lines + 0.9 * vectors, title, fontsize=10)
    parts = figure.subfigures(1, len(methods), squeeze=False)
    for part, (method, patches) in zip(parts.flat, logs.items(), strict=True):
        part.suptitle(method, fontsize=10)
        grid = part.add_gridspec(lines + vectors, columns, height_ratios=[1.75] * lines + [0.7] * vectors)
        image = _heat(part, grid, patches, scale, lines, columns)
    _drawing.heat_bar(part, image)
    return figure


def _heat(part: Any, grid: Any, patches: Mapping[str, list[list[float]]], scale: Any, lines: int, columns: int) -> Any:
    kernels = [name for name, rows in patches.items() if len(rows) > 1]
    vectors = [name for name in patches if name not in kernels]
    places = {name: grid[i // columns, i % columns] for i, name in enumerate(kernels)}
    places |= {name: grid[lines + i, :] for i, name in enumerate(vectors)}
    for name, place in places.items():
        axes = part.add_subplot(place)
        axes.set_title(shorten(name, 26), fontsize=7)
        image = _drawing.heat_cells(axes, patches[name], scale)
    return image


def _log10(rate: float) -> float:
    return math.log10(rate) if rate > 0 else -math.inf if rate == 0 else math.nan


def evolution(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    times: Sequence[float],
    unit: str,
    title: str,
    final_lr: float | None = None,
) -> Figure:
    """The paper's last figure: a panel per parameter with its rates over time.

    Args:
        panels: for each parameter ``min``, ``median`` and ``max`` over time, and where they exist ``lower`` and
            ``upper`` (the bounds) and the numbers of ``nan`` and ``inf``.
        times: when each number was measured.
        unit: of the times, "step" or "epoch".
        title: of the figure.
        final_lr: where the bounds meet, drawn as a line.
    """
    rows, columns = math.ceil(len(panels) / 2), min(len(panels), 2)
    figure = _drawing.new_figure(4.4 * columns + 0.4, 3.4 * rows + 0.4, title, fontsize=10)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axes, (name, series) in zip(grid, panels.items(), strict=False):
        _evolve(axes, name, series, times)
        if final_lr is not None:
            axes.axhline(final_lr, color=_drawing.BLACK, linewidth=0.8, label=f"final learning rate {final_lr:g}")
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, final_lr / 1.2), max(high, final_lr * 1.2))
        axes.set(xlabel=unit, ylabel="learning rate (log scale)")
        axes.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(8, integer=unit == "step"))
    for axes in grid[len(panels) :]:
        axes.remove()
    _drawing.legend_below(figure, 5, **_SMALL)
    return figure


def _evolve(axes: Axes, name: str, series: Mapping[str, Sequence[float]], times: Sequence[float]) -> None:
    bounded = not all(map(math.isnan, series.get("lower", ())))
    _drawing.rates_over_time(axes, times, series, (series["lower"], series["upper"]) if bounded else None)
    if len(times) > 1:
        axes.set_xlim(times[0], times[-1])  # also if no rate is finite and nothing is drawn
    counts = {label: series.get(key, [0.0]) for key, label in (("nan", "NaN"), ("inf", "infinite"))}
    known = {label: [count for count in values if not math.isnan(count)] for label, values in counts.items()}
    notes = [shorten(name, 60)]
    if len(known["NaN"]) < len(counts["NaN"]):
        notes.append("no gradient at first" if known["NaN"] else "no gradient yet")
    notes += [f"{label} rates: up to {max(values):,.0f}" for label, values in known.items() if any(values)]
    axes.set_title("\n".join(notes), fontsize=9, color="black" if len(notes) == 1 else _drawing.VERMILION)


def funnel(
    rows: Mapping[str, Mapping[str, float] | None],
    middle: tuple[str, str] | None,
    extremes: tuple[float, float],
    title: str,
) -> Figure:
    """A line per parameter, thick between the two columns of ``middle``; see :meth:`dynabound.lens.History.funnel`."""
    figure = _drawing.new_figure(7.0, max(3.0, 1.6 + 0.17 * min(len(rows), _MAX_LABELS)), title, fontsize=10)
    axes = figure.add_subplot()
    drawn = {i: row for i, row in enumerate(rows.values()) if row is not None and math.isfinite(row["min"])}
    _spans(axes, drawn, middle)
    limits = _drawing.log_scale(axes, "x")
    bounded = {i: row for i, row in drawn.items() if not math.isnan(row["lower"])}
    for i, row in bounded.items():
        axes.fill_betweenx([i - 0.5, i + 0.5], row["lower"], row["upper"], label="between the bounds", **_drawing.BAND)
    axes.set_xlim(limits)
    for extreme in extremes:
        if limits[0] < extreme < limits[1]:
            axes.axvline(extreme, color=_drawing.VERMILION, linestyle="--", linewidth=1, label="extremes")
    every = math.ceil(len(rows) / _MAX_LABELS)
    axes.set_yticks(range(0, len(rows), every), [_label(name, rows[name]) for name in list(rows)[::every]], fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="learning rate (log scale)", ylabel="parameter, from first to last")
    _drawing.legend_below(figure, 5, **_SMALL)
    return figure


def _spans(axes: Axes, drawn: Mapping[int, Mapping[str, float]], middle: tuple[str, str] | None) -> None:
    """The ranges of the rates, and the medians."""

    def span(low: str, high: str, label: str, **style: Any) -> None:
        left, right = ([row[column] for row in drawn.values()] for column in (low, high))
        axes.hlines(list(drawn), left, right, label=label, color=_drawing.BLUE, **style)

    span("min", "max", "min to max", linewidth=1)
    if middle is not None:
        label = " to ".join(column.replace("q", "") for column in middle)
        span(*middle, f"{label} %", linewidth=4, alpha=0.5)
    medians = [row["median"] for row in drawn.values()]
    axes.plot(medians, list(drawn), "o", color=_drawing.ORANGE, markersize=4, label="median")


def _label(name: str, row: Mapping[str, float] | None) -> str:
    name = shorten(name, 48)
    if row is None:
        return f"{name} (no gradient)"
    bad = [f"{row[key]:,.0f} {label}" for key, label in (("nan", "NaN"), ("inf", "infinite")) if row[key]]
    return f"{name} ({', '.join(bad)})" if bad else name


def bounds_funnel(curve: Mapping[str, Sequence[float]], final_lr: float, marks: dict[str, int], title: str) -> Figure:
    """The bounds over the steps, with vertical lines at the named steps of ``marks``."""
    figure = _drawing.new_figure(7.0, 4.0, title, fontsize=10)
    axes = figure.add_subplot()
    axes.fill_between(curve["step"], curve["lower"], curve["upper"], label="allowed learning rates", **_drawing.BAND)
    axes.plot(curve["step"], curve["upper"], "--", color=_drawing.VERMILION, label="upper bound")
    axes.plot(curve["step"], curve["lower"], ":", color=_drawing.GREEN, label="lower bound")
    axes.axhline(final_lr, color=_drawing.BLUE, linewidth=1, label=f"final learning rate {final_lr:g}")
    _drawing.log_scale(axes, "x")
    _drawing.log_scale(axes, "y")
    axes.set_xlim(curve["step"][0], curve["step"][-1])
    for style, (label, step) in zip(("-.", "-"), marks.items(), strict=False):
        axes.axvline(step, color=_drawing.ORANGE, linestyle=style, linewidth=1, label=f"{label}: step {step:,}")
    axes.set(xlabel="step (log scale)", ylabel="learning rate (log scale)")
    _drawing.legend_below(figure, 3, **_SMALL)
    return figure
