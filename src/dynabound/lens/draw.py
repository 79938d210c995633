"""Pictures of learning rates. Every function returns a matplotlib Figure, and never shows or closes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynabound._extras import need
from dynabound.lens.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bounds_funnel", "evolution", "funnel", "heatmap"]

# Okabe and Ito's palette, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
_BAND: dict[str, Any] = dict(color=GREY, alpha=0.25, linewidth=0)
_LABELS = 40  # more parameter names than this do not fit beside an axis


def _figure(width: float, height: float) -> Figure:
    return need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")  # type: ignore[no-any-return]


def _log_scale(axes: Any, which: str) -> tuple[float, float]:
    """Make an axis logarithmic, at least a factor of 3 long, with numbers on it even below a decade; its limits."""
    axes.set(**{f"{which}scale": "log"})
    low, high = getattr(axes, f"get_{which}lim")()
    margin = max(1.0, math.sqrt(3 * low / high))
    axes.set(**{f"{which}lim": (low / margin, high * margin)})
    formatter = need("matplotlib.ticker").LogFormatterSciNotation(minor_thresholds=(1.5, 0.5))
    getattr(axes, f"{which}axis").set_minor_formatter(formatter)
    axes.tick_params(axis=which, which="minor", labelsize=7)
    return low / margin, high * margin


def heatmap(history: History, layers: Sequence[str] | None = None) -> Figure:
    """See :meth:`dynabound.lens.History.heatmap`."""
    if layers is not None:
        names = history.check_layers(layers)
        waiting = [name for name in names if name not in history.patches]
        if waiting:
            raise ValueError(f"layers={layers!r}: {', '.join(waiting)} has had no gradient, and so no rate")
    else:
        names = _kernels(history)
    logs = {name: history.patches[name].double().log10() for name in names}
    kernels = [name for name in names if logs[name].ndim == 2]
    vectors = [name for name in names if logs[name].ndim == 1]
    # From one extreme to the other, so that the pictures of two runs compare and a small spread looks small.
    ends = torch.cat(
        [torch.tensor(history.extremes, dtype=torch.float64).log10(), *[log.flatten() for log in logs.values()]]
    )
    low, high = ends[ends.isfinite()].aminmax() if ends.isfinite().any() else (torch.zeros(()), torch.ones(()))
    scale = need("matplotlib.colors").Normalize(low.item(), high.item())

    columns = max(1, min(3, len(kernels)))
    rows = math.ceil(len(kernels) / columns)
    figure = _figure(max(4.0, 1.2 + 1.8 * columns), 1.0 + 1.9 * rows + 1.0 * len(vectors))
    grid = figure.add_gridspec(rows + len(vectors), columns, height_ratios=[1.9] * rows + [0.8] * len(vectors))
    places = {name: grid[i // columns, i % columns] for i, name in enumerate(kernels)}
    places |= {name: grid[rows + i, :] for i, name in enumerate(vectors)}
    for name, place in places.items():
        axes = figure.add_subplot(place)
        axes.set_title(name, fontsize=7)
        image = _cells(axes, logs[name].reshape(-1, logs[name].shape[-1]), scale)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.8)
    bar.set_label("log₁₀ of the learning rate")
    figure.suptitle(f"Learning rates of {history.optimizer_name} at step {history.steps[-1]:,}", fontsize=10)
    return figure


def _kernels(history: History) -> list[str]:
    """Nine 3×3 kernels from first to last, or the next best where a model has none, and the last vector (a bias)."""
    history.check_layers(list(history.shapes))
    matrices = [name for name, patch in history.patches.items() if patch.ndim == 2]
    kernels = [name for name in matrices if history.shapes[name][2:] == (3, 3)] or matrices
    vectors = [name for name, patch in history.patches.items() if patch.ndim == 1]
    count = min(9, len(kernels))
    chosen = [kernels[round(i * (len(kernels) - 1) / max(1, count - 1))] for i in range(count)]
    if not chosen + vectors:
        raise RuntimeError("no parameter has had a gradient, and so none has a rate to draw")
    return chosen + vectors[-1:]


def _cells(axes: Any, log: torch.Tensor, scale: Any) -> Any:
    """An image with its numbers; what is not finite (a rate of 0, ∞ or NaN) is vermilion."""
    colours = need("matplotlib").colormaps["viridis_r"].with_extremes(bad=VERMILION)
    image = axes.imshow(log.where(log.isfinite(), math.nan).tolist(), cmap=colours, norm=scale)
    axes.set_xticks([])
    axes.set_yticks([])
    for i, row in enumerate(log.tolist()):
        for j, value in enumerate(row):
            dark = math.isfinite(value) and scale(value) > 0.5
            axes.text(
                j,
                i,
                f"{round(value, 1) + 0.0:.1f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
            )
    return image


def evolution(history: History, layers: Sequence[str] | None = None, steps_per_epoch: int | None = None) -> Figure:
    """See :meth:`dynabound.lens.History.evolution`."""
    if steps_per_epoch is not None and not steps_per_epoch > 0:
        raise ValueError(f"steps_per_epoch={steps_per_epoch!r}: must be a number > 0, or None to count steps")
    names = history.check_layers(_ends(history) if layers is None else layers)
    times = [step / (steps_per_epoch or 1) for step in history.steps]
    figure = _figure(4.4 * min(len(names), 2) + 0.4, 3.4 * math.ceil(len(names) / 2) + 0.4)
    panels = figure.subplots(math.ceil(len(names) / 2), min(len(names), 2), squeeze=False, sharex=True).flatten()
    for axes, name in zip(panels, names, strict=False):
        _evolve(axes, history, name, times)
        axes.set_xlabel("step" if steps_per_epoch is None else "epoch")
        axes.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(8, integer=steps_per_epoch is None))
        axes.set_ylabel("learning rate (log scale)")
    for axes in panels[len(names) :]:
        axes.remove()
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(f"Learning rates of {history.optimizer_name} over time", fontsize=10)
    return figure


def _ends(history: History) -> list[str]:
    """The first and the last parameter that is a matrix or a kernel, of those that have rates."""
    weights = [name for name in history.patches if len(history.shapes[name]) > 1]
    names = weights or list(history.patches) or list(history.shapes)
    return list(dict.fromkeys((*names[:1], *names[-1:])))


def _evolve(axes: Any, history: History, name: str, times: list[float]) -> None:
    values = {column: history.series(name, column) for column in history.columns}
    for column, colour, style in (("max", VERMILION, "--"), ("median", BLUE, "-"), ("min", GREEN, ":")):
        axes.plot(
            times, values[column].tolist(), style, color=colour, label=column, marker="." if len(times) < 3 else ""
        )
    limits = _log_scale(axes, "y")
    if not values["lower"].isnan().all():
        # The bounds begin at almost 0 and almost ∞: they must not flatten the rates.
        axes.fill_between(
            times, values["lower"].tolist(), values["upper"].tolist(), label="between the bounds", **_BAND
        )
        axes.set_ylim(limits)
    if len(times) > 1:
        axes.set_xlim(times[0], times[-1])  # also where the rates are not finite, and nothing is drawn
    notes = [name]
    if values["nan"].isnan().any():
        notes.append("no gradient yet" if values["nan"].isnan().all() else "no gradient at first")
    for key, label in (("nan", "NaN"), ("inf", "infinite")):
        if values[key].nan_to_num().any():
            notes.append(f"{label} rates: up to {values[key].nan_to_num().max():,.0f}")
    axes.set_title("\n".join(notes), fontsize=9, color="black" if len(notes) == 1 else VERMILION)


def funnel(history: History) -> Figure:
    """See :meth:`dynabound.lens.History.funnel`."""
    rows = history.latest()
    low_quantile, high_quantile = history.columns[1], history.columns[len(history.quantiles)]
    drawn = [(i, row) for i, row in enumerate(rows.values()) if row is not None and math.isfinite(row["min"])]
    figure = _figure(7.0, max(3.0, 1.6 + 0.17 * min(len(rows), _LABELS)))
    axes = figure.add_subplot()
    places = [i for i, _ in drawn]

    def span(low: str, high: str, label: str, **style: Any) -> None:
        axes.hlines(places, [row[low] for _, row in drawn], [row[high] for _, row in drawn], label=label, **style)

    span("min", "max", "min to max", color=BLUE, linewidth=1)
    if len(history.quantiles) > 1:
        middle = f"{low_quantile.replace('q', '')} to {high_quantile.replace('q', '')} %"
        span(low_quantile, high_quantile, middle, color=BLUE, linewidth=4, alpha=0.5)
    axes.plot([row["median"] for _, row in drawn], places, "o", color=ORANGE, markersize=4, label="median")
    limits = _log_scale(axes, "x")
    bounded = [(i, row) for i, row in drawn if not math.isnan(row["lower"])]
    for number, (i, row) in enumerate(bounded):
        label = None if number else "between the bounds"
        axes.fill_betweenx([i - 0.5, i + 0.5], row["lower"], row["upper"], label=label, **_BAND)
    axes.set_xlim(limits)
    for number, extreme in enumerate(history.extremes):
        if limits[0] < extreme < limits[1]:
            label = None if number and limits[0] < history.extremes[0] else "extremes"
            axes.axvline(extreme, color=VERMILION, linestyle="--", linewidth=1, label=label)
    every = math.ceil(len(rows) / _LABELS)
    axes.set_yticks(range(0, len(rows), every), [_label(name, rows[name]) for name in list(rows)[::every]], fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("learning rate (log scale)")
    axes.set_ylabel("parameter, from first to last")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(f"Learning rates of {history.optimizer_name} at step {history.steps[-1]:,}", fontsize=10)
    return figure


def _label(name: str, row: dict[str, float] | None) -> str:
    if row is None:
        return f"{name} (no gradient)"
    bad = [f"{row[key]:,.0f} {label}" for key, label in (("nan", "NaN"), ("inf", "infinite")) if row[key]]
    return f"{name} ({', '.join(bad)})" if bad else name


def bounds_funnel(curve: dict[str, list[float]], final_lr: float, marks: dict[str, int], title: str) -> Figure:
    """The bounds over the steps, with vertical lines at the named steps of ``marks``."""
    figure = _figure(7.0, 4.0)
    axes = figure.add_subplot()
    axes.fill_between(curve["step"], curve["lower"], curve["upper"], label="learning rates allowed", **_BAND)
    axes.plot(curve["step"], curve["upper"], "--", color=VERMILION, label="upper bound")
    axes.plot(curve["step"], curve["lower"], ":", color=GREEN, label="lower bound")
    axes.axhline(final_lr, color=BLUE, linewidth=1, label=f"final learning rate {final_lr:g}")
    _log_scale(axes, "x")
    _log_scale(axes, "y")
    axes.set_xlim(curve["step"][0], curve["step"][-1])
    for style, (label, step) in zip(("-.", "-"), marks.items(), strict=False):
        axes.axvline(step, color=ORANGE, linestyle=style, linewidth=1, label=f"{label}: step {step:,}")
    axes.set_xlabel("step (log scale)")
    axes.set_ylabel("learning rate (log scale)")
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure
