"""Figures of learning rates, drawn from plain data. Every function returns a matplotlib Figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dynabound._drawing import (
    BAND,
    BLUE,
    GREEN,
    ORANGE,
    VERMILION,
    heat_bar,
    heat_cells,
    heat_scale,
    legend_below,
    log_scale,
    new_figure,
    rates_over_time,
)
from dynabound._extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bounds_funnel", "evolution", "funnel", "heatmap"]

_MAX_LABELS = 40  # more parameter names than this do not fit beside an axis
_SMALL: dict[str, Any] = dict(fontsize=8)


def heatmap(patches: Mapping[str, Tensor], extremes: tuple[float, float], title: str) -> Figure:
    """log₁₀ of the rates in each patch, a kernel or a vector; see :meth:`dynabound.lens.History.heatmap`."""
    logs = {name: patch.double().log10() for name, patch in patches.items()}
    # The scale spans both extremes, so that figures of two runs can be compared and a small spread looks small.
    ends = [math.log10(rate) if rate else -math.inf for rate in extremes]
    scale = heat_scale([*ends, *(value for log in logs.values() for value in log.flatten().tolist())])
    kernels = [name for name, log in logs.items() if log.ndim == 2]
    vectors = [name for name, log in logs.items() if log.ndim == 1]
    columns = max(1, min(3, len(kernels)))
    rows = math.ceil(len(kernels) / columns)
    figure = new_figure(max(4.0, 1.2 + 1.8 * columns), 1.0 + 1.9 * rows + 1.0 * len(vectors), title, fontsize=10)
    grid = figure.add_gridspec(rows + len(vectors), columns, height_ratios=[1.9] * rows + [0.8] * len(vectors))
    places = {name: grid[i // columns, i % columns] for i, name in enumerate(kernels)}
    places |= {name: grid[rows + i, :] for i, name in enumerate(vectors)}
    for name, place in places.items():
        axes = figure.add_subplot(place)
        axes.set_title(name, fontsize=7)
        image = heat_cells(axes, logs[name].reshape(-1, logs[name].shape[-1]).tolist(), scale)
    heat_bar(figure, image)
    return figure


def evolution(panels: Mapping[str, Mapping[str, Tensor]], times: Sequence[float], unit: str, title: str) -> Figure:
    """A panel per parameter with its series by column; see :meth:`dynabound.lens.History.evolution`."""
    rows, columns = math.ceil(len(panels) / 2), min(len(panels), 2)
    figure = new_figure(4.4 * columns + 0.4, 3.4 * rows + 0.4, title, fontsize=10)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axes, (name, series) in zip(grid, panels.items(), strict=False):
        _evolve(axes, name, series, times)
        axes.set(xlabel=unit, ylabel="learning rate (log scale)")
        axes.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(8, integer=unit == "step"))
    for axes in grid[len(panels) :]:
        axes.remove()
    legend_below(figure, 4, **_SMALL)
    return figure


def _evolve(axes: Axes, name: str, series: Mapping[str, Tensor], times: Sequence[float]) -> None:
    lists = {column: values.tolist() for column, values in series.items()}
    bounded = not series["lower"].isnan().all()
    rates_over_time(axes, times, lists, (lists["lower"], lists["upper"]) if bounded else None)
    if len(times) > 1:
        axes.set_xlim(times[0], times[-1])  # also if no rate is finite and nothing is drawn
    notes = [name]
    if series["nan"].isnan().any():
        notes.append("no gradient yet" if series["nan"].isnan().all() else "no gradient at first")
    for key, label in (("nan", "NaN"), ("inf", "infinite")):
        if series[key].nan_to_num().any():
            notes.append(f"{label} rates: up to {series[key].nan_to_num().max():,.0f}")
    axes.set_title("\n".join(notes), fontsize=9, color="black" if len(notes) == 1 else VERMILION)


def funnel(
    rows: Mapping[str, Mapping[str, float] | None],
    middle: tuple[str, str] | None,
    extremes: tuple[float, float],
    title: str,
) -> Figure:
    """A line per parameter, thick between the two columns of ``middle``; see :meth:`dynabound.lens.History.funnel`."""
    figure = new_figure(7.0, max(3.0, 1.6 + 0.17 * min(len(rows), _MAX_LABELS)), title, fontsize=10)
    axes = figure.add_subplot()
    drawn = {i: row for i, row in enumerate(rows.values()) if row is not None and math.isfinite(row["min"])}
    _spans(axes, drawn, middle)
    limits = log_scale(axes, "x")
    bounded = {i: row for i, row in drawn.items() if not math.isnan(row["lower"])}
    for i, row in bounded.items():
        axes.fill_betweenx([i - 0.5, i + 0.5], row["lower"], row["upper"], label="between the bounds", **BAND)
    axes.set_xlim(limits)
    for extreme in extremes:
        if limits[0] < extreme < limits[1]:
            axes.axvline(extreme, color=VERMILION, linestyle="--", linewidth=1, label="extremes")
    every = math.ceil(len(rows) / _MAX_LABELS)
    axes.set_yticks(range(0, len(rows), every), [_label(name, rows[name]) for name in list(rows)[::every]], fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="learning rate (log scale)", ylabel="parameter, from first to last")
    legend_below(figure, 5, **_SMALL)
    return figure


def _spans(axes: Axes, drawn: Mapping[int, Mapping[str, float]], middle: tuple[str, str] | None) -> None:
    """The ranges of the rates, and the medians."""

    def span(low: str, high: str, label: str, **style: Any) -> None:
        left, right = ([row[column] for row in drawn.values()] for column in (low, high))
        axes.hlines(list(drawn), left, right, label=label, color=BLUE, **style)

    span("min", "max", "min to max", linewidth=1)
    if middle is not None:
        label = " to ".join(column.replace("q", "") for column in middle)
        span(*middle, f"{label} %", linewidth=4, alpha=0.5)
    medians = [row["median"] for row in drawn.values()]
    axes.plot(medians, list(drawn), "o", color=ORANGE, markersize=4, label="median")


def _label(name: str, row: Mapping[str, float] | None) -> str:
    if row is None:
        return f"{name} (no gradient)"
    bad = [f"{row[key]:,.0f} {label}" for key, label in (("nan", "NaN"), ("inf", "infinite")) if row[key]]
    return f"{name} ({', '.join(bad)})" if bad else name


def bounds_funnel(curve: Mapping[str, Sequence[float]], final_lr: float, marks: dict[str, int], title: str) -> Figure:
    """The bounds over the steps, with vertical lines at the named steps of ``marks``."""
    figure = new_figure(7.0, 4.0, title, fontsize=10)
    axes = figure.add_subplot()
    axes.fill_between(curve["step"], curve["lower"], curve["upper"], label="allowed learning rates", **BAND)
    axes.plot(curve["step"], curve["upper"], "--", color=VERMILION, label="upper bound")
    axes.plot(curve["step"], curve["lower"], ":", color=GREEN, label="lower bound")
    axes.axhline(final_lr, color=BLUE, linewidth=1, label=f"final learning rate {final_lr:g}")
    log_scale(axes, "x")
    log_scale(axes, "y")
    axes.set_xlim(curve["step"][0], curve["step"][-1])
    for style, (label, step) in zip(("-.", "-"), marks.items(), strict=False):
        axes.axvline(step, color=ORANGE, linestyle=style, linewidth=1, label=f"{label}: step {step:,}")
    axes.set(xlabel="step (log scale)", ylabel="learning rate (log scale)")
    legend_below(figure, 3, **_SMALL)
    return figure
