"""The paper's figures as data, each with its drawing: the same data makes the same file."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dynabound import _drawing
from dynabound._drawing import BLACK, BLUE, GREEN, ORANGE
from dynabound._extras import need
from dynabound.lab.report.learning_rates import RateEvolution, SampledRates
from dynabound.lab.report.statistics import mean, std

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Band", "CurvesFigure", "EvolutionFigure", "HeatmapsFigure", "Panel", "ReportFigure", "StepSizesFigure",
           "StoredFigure"]  # fmt: skip

VERSION = 10
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


@dataclass(frozen=True)
class StoredFigure(ReportFigure):
    """A figure that is already drawn."""

    kind = "stored"
    path: Path

    def svg(self, folder: Path) -> bytes:
        """Its SVG."""
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


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def line_style(label: str, place: int) -> dict[str, Any]:
    """A method's style; a reference curve, such as "Adam, α = 0.001", has its method's colour and is dotted."""
    method, _, variant = label.partition(", ")
    style = _drawing.method_style(method, place)
    return {**style, "linestyle": ":"} if variant else style


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
            handles = {label: handle for axes in grid.flat for handle, label in zip(
                *axes.get_legend_handles_labels(), strict=True)}  # fmt: skip
            columns = 4 if len(views) < 3 and len(handles) > 6 else 7
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
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
class StepSizesFigure(ReportFigure):
    """Final test accuracy against step size, the methods side by side."""

    kind = "steps"
    panels: tuple[Panel, ...]

    def draw(self) -> Figure:
        """Draw bars, with the range over seeds."""
        figure = _drawing.new_figure(7.4, 4.2, self.title)
        axes = figure.subplots()
        label_axes(axes, "", "step size α of SGDM, final step size α* of AdaBound", "final test accuracy (%)")
        for place, panel in enumerate(self.panels):
            self._draw_bars(axes, place, panel)
        axes.set_ylim(0, 100.5)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        return figure

    def _draw_bars(self, axes: Axes, place: int, panel: Panel) -> None:
        width = 0.8 / len(self.panels)
        finals = [[seed[-1] for seed in curve.seeds("test")] for curve in panel.curves]
        heights = [mean(values) if values else 0.0 for values in finals]
        low, high = ([abs(edge(values) - height) if values else 0.0 for values, height in zip(
            finals, heights, strict=True)] for edge in (min, max))  # fmt: skip
        positions = [i + (place - (len(self.panels) - 1) / 2) * width for i in range(len(finals))]
        style: dict[str, Any] = dict(color=(GREEN, BLUE, ORANGE)[place], hatch=("", "", "//")[place])
        if any(len(values) > 1 for values in finals):
            style |= dict(yerr=[low, high], capsize=2)
        axes.bar(positions, heights, width, label=panel.name, **style)
        axes.set_xticks(range(len(finals)), [curve.label.split("= ")[-1] for curve in panel.curves])
        for x, values, curve in zip(positions, finals, panel.curves, strict=True):
            if not values:
                word = "diverged" if curve.diverged else "no run"
                axes.text(x, 1, word, rotation=90, ha="center", va="bottom", fontsize=8)


@dataclass(frozen=True)
class HeatmapsFigure(ReportFigure):
    """log₁₀ of sampled rates: nine kernels and a bias of each method; lighter is smaller, as in the paper."""

    kind = "heatmaps"
    methods: dict[str, SampledRates]

    def draw(self) -> Figure:
        """Draw the methods side by side, with one colour scale."""
        figure = _drawing.new_figure(10.4, 6.4, self.title)
        cells = {name: _log_cells(rates) for name, rates in self.methods.items()}
        logs = [log for each in cells.values() for rows in each.values() for row in rows for log in row]
        finite = [log for log in logs if math.isfinite(log)] or [0.0]
        scale = need("matplotlib.colors").Normalize(min(finite), max(*finite, min(finite) + 1e-9))
        parts: Any = figure.subfigures(1, len(self.methods), squeeze=False)
        for part, (name, each) in zip(parts.flat, cells.items(), strict=True):
            part.suptitle(f"{name}, step {self.methods[name].step:,}", fontsize=11)
            grid = part.add_gridspec(4, 3, height_ratios=[1, 1, 1, 0.45])
            places = [*(grid[i // 3, i % 3] for i in range(len(each) - 1)), grid[3, :]]
            for place, (title, rows) in zip(places, each.items(), strict=True):
                axes = part.add_subplot(place)
                axes.set_title(title.replace(".weight", ""), fontsize=7, pad=2)
                image = _drawing.heat_cells(axes, rows, scale)
        bar = part.colorbar(image, ax=part.axes, shrink=0.8)
        bar.set_label("log₁₀ of the learning rate")
        return figure


def _log_cells(rates: SampledRates) -> dict[str, list[list[float]]]:
    cells = {**rates.kernels, **{name: [row] for name, row in rates.bias.items()}}
    return {name: [[math.log10(x) if x > 0 else math.nan for x in row] for row in rows] for name, rows in cells.items()}


@dataclass(frozen=True)
class EvolutionFigure(ReportFigure):
    """Smallest, median and largest rate of two layers, and the bounds, over time."""

    kind = "evolution"
    rates: RateEvolution

    def data(self) -> dict[str, Any]:
        """What is drawn, for JSON."""
        return {"kind": self.kind, "name": self.name, "title": self.title, **asdict(self.rates)}

    def draw(self) -> Figure:
        """Draw a panel per layer."""
        figure = _drawing.new_figure(9.8, 4.4, self.title)
        layers = self.rates.layers
        grid = figure.subplots(1, max(1, len(layers)), squeeze=False, sharey=True)
        for axes, (name, layer) in zip(grid.flat, layers.items(), strict=False):
            label_axes(axes, name, "epoch", "learning rate (log scale)" if axes is grid.flat[0] else "")
            epochs = range(1, len(layer["min"]) + 1)
            _drawing.rates_over_time(axes, epochs, layer, (self.rates.lower, self.rates.upper))
            final = self.rates.final_lr
            axes.axhline(final, color=BLACK, linewidth=0.8, label=f"final step size {final:g}")
        rates = [final, *(rate for layer in layers.values() for series in layer.values() for rate in series)]
        grid.flat[0].set_ylim(min(rates) / 1.5, max(rates) * 1.5)  # shared: one panel's limits would cut off the other
        handles = grid.flat[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
        return figure
