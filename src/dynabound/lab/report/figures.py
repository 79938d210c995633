"""The paper's figures, drawn from plain data: the same data makes the same file."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._files import write_whole
from dynabound.lab.studies.recipes import REFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "draw", "save"]

KINDS = ("png", "svg", "pdf")
_FORMAT = 6  # to be raised when a drawing changes, so that old files are drawn anew
# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _SKY, _GREEN, _ORANGE, _RED, _PURPLE, _BLACK, _GREY = (
    "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#000000", "#999999",
)  # fmt: skip
_STYLES: dict[str, dict[str, Any]] = {
    "SGDM": dict(color=_GREEN),
    "SGD": dict(color=_GREEN),
    "AdaGrad": dict(color=_ORANGE, linestyle="-."),
    "Adam": dict(color=_RED),
    REFERENCE: dict(color=_RED, linestyle=":"),
    "AMSGrad": dict(color=_PURPLE, linestyle="--"),
    "AdaBound": dict(color=_BLUE, linewidth=2.2),
    "AMSBound": dict(color=_SKY, linestyle="--", linewidth=2.2),
}
_CYCLE = [dict(color=c, linestyle=s) for c, s in zip(
    (_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BLACK), ("-", "--", "-.", "-", "--", ":"), strict=True)]  # fmt: skip


def save(name: str, data: dict[str, Any], folder: Path) -> list[Path]:
    """Draw ``data`` to NAME.png, NAME.svg and NAME.pdf, with the data itself in NAME.json, unless they are there."""
    return save_figure(name, data, folder, lambda: draw(data))


def save_figure(name: str, data: dict[str, Any], folder: Path, make: Callable[[], Figure]) -> list[Path]:
    """The same for a figure that someone else draws."""
    text = json.dumps({"format": _FORMAT, **data}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    paths, record = [folder / f"{name}.{kind}" for kind in KINDS], folder / f"{name}.json"
    try:
        known = json.loads(record.read_text())["digest"]
    except (OSError, ValueError, KeyError):
        known = ""
    if known == digest and all(path.is_file() for path in paths):
        return paths
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)  # a kill between here and the last line means: draw again
    with matplotlib.rc_context({"svg.hashsalt": name, "font.size": 10}):
        figure = make()
        _settle(figure)
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None}, {"CreationDate": None}), strict=True):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=130, metadata=metadata)
            write_whole(path, buffer.getvalue(), durable=False)
    write_whole(record, json.dumps({"digest": digest, **data}).encode(), durable=False)
    return paths


def _settle(figure: Figure) -> None:
    """Lay the figure out now, and round: the solver's last digits differ from process to process."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def draw(data: dict[str, Any]) -> Figure:
    """The figure of ``data``, whose ``kind`` says how it is drawn."""
    return _KINDS[data["kind"]](data)


def _new(width: float, height: float, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold")
    return figure


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _style(label: str, place: int) -> dict[str, Any]:
    return _STYLES.get(label) or _CYCLE[place % len(_CYCLE)]


def _curves(data: dict[str, Any]) -> Figure:
    """A row per panel and a column per view, or all panels in one row if there is one view: the paper's layout.

    The views are the splits; before that of training are its first epochs, which the limits of the other leave out.
    """
    panels, splits = data["panels"], data["splits"]
    views = ["start", *splits] if "train" in splits else splits
    rows, columns = (len(panels), len(views)) if len(views) > 1 else (1, len(panels))
    ratios = [0.6 if view == "start" else 1.0 for view in views] if len(views) > 1 else [1.0] * columns
    figure = _new(4.6 * sum(ratios) + 0.6, 3.4 * rows + 1.0, data["title"])
    grid = figure.subplots(rows, columns, squeeze=False, width_ratios=ratios)
    for axes, (panel, view) in zip(grid.flat, [(panel, view) for panel in panels for view in views], strict=True):
        _panel(axes, panel, view, data, panel["name"] if len(views) == 1 else f"{panel['name']}: {_VIEWS[view]}")
    if data["shared_legend"]:
        handles = {label: handle for axes in grid.flat for handle, label in zip(
            *axes.get_legend_handles_labels(), strict=True)}  # fmt: skip
        columns = 4 if len(views) < 3 and len(handles) > 6 else 7
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _panel(axes: Axes, panel: dict[str, Any], view: str, data: dict[str, Any], title: str) -> None:
    split = "train" if view == "start" else view
    _dress(axes, title, "epoch", f"{_VIEWS[split]} {data['metric']}")
    for place, curve in enumerate(panel["curves"]):
        seeds = [seed[: max(3, len(seed) // 6)] for seed in curve[split]] if view == "start" else curve[split]
        _band(axes, seeds, curve["label"], _style(curve["label"], place))
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True)
    if view != "start":
        _limits(axes, [curve[split] for curve in panel["curves"]], data["metric"])
    if not data["shared_legend"]:
        for line in axes.get_lines():
            values: Any = line.get_ydata()
            if len(values) and max(values) < axes.get_ylim()[0]:
                line.set_label(f"{line.get_label()} (below)")
        axes.legend(fontsize=8, loc="best")


_VIEWS = {"start": "first epochs", "train": "training", "test": "test"}


def _band(axes: Axes, seeds: list[list[float]], label: str, style: dict[str, Any]) -> None:
    """The mean over seeds, and one standard deviation on either side."""
    if not seeds:
        axes.plot([], [], label=f"{label} (no run)", **style)
        return
    epochs = range(1, len(seeds[0]) + 1)
    columns = list(zip(*seeds, strict=True))
    means = [sum(column) / len(column) for column in columns]
    axes.plot(epochs, means, label=label, **style)
    if len(seeds) > 1:
        spreads = [math.sqrt(sum((x - m) ** 2 for x in column) / (len(seeds) - 1))
                   for column, m in zip(columns, means, strict=True)]  # fmt: skip
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _limits(axes: Axes, curves: list[list[list[float]]], metric: str) -> None:
    """Leave the first epochs out of the picture where they would flatten all that comes after."""
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


def _steps(data: dict[str, Any]) -> Figure:
    """Final test metric against step size, the methods side by side."""
    figure = _new(7.4, 4.2, data["title"])
    axes = figure.subplots()
    _dress(axes, "", "step size α of SGDM, final step size α* of AdaBound", "final test accuracy (%)")
    count = len(data["panels"])
    for place, panel in enumerate(data["panels"]):
        bars = [(curve["label"].split("= ")[-1], curve["test"]) for curve in panel["curves"]]
        finals = [[seed[-1] for seed in seeds] for _, seeds in bars]
        heights = [sum(values) / len(values) if values else 0.0 for values in finals]
        spread = any(len(values) > 1 for values in finals)
        low, high = ([abs(edge(values) - height) if values else 0.0 for values, height in zip(
            finals, heights, strict=True)] for edge in (min, max))  # fmt: skip
        positions = [i + (place - (count - 1) / 2) * 0.8 / count for i in range(len(bars))]
        style: dict[str, Any] = dict(color=(_GREEN, _BLUE, _ORANGE)[place], hatch=("", "", "//")[place])
        error: dict[str, Any] = dict(yerr=[low, high], capsize=2) if spread else {}
        axes.bar(positions, heights, 0.8 / count, label=panel["name"], **error, **style)
        axes.set_xticks(range(len(bars)), [label for label, _ in bars])
        for x, values, curve in zip(positions, finals, panel["curves"], strict=True):
            if not values:
                word = "diverged" if curve["diverged"] else "no run"
                axes.text(x, 1, word, rotation=90, ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 100.5)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _heatmaps(data: dict[str, Any]) -> Figure:
    """log₁₀ of sampled rates: nine kernels and a bias of each method; lighter is smaller, as in the paper."""
    figure = _new(10.4, 6.4, data["title"])
    methods = data["methods"]
    logs = [math.log10(x) for method in methods.values() for x in _values(method) if x > 0]
    from matplotlib.colors import Normalize

    scale = Normalize(min(logs, default=0), max([*logs, min(logs, default=0) + 1e-9]))
    image = None
    parts: Any = figure.subfigures(1, len(methods), squeeze=False)
    for part, (name, method) in zip(parts.flat, methods.items(), strict=True):
        part.suptitle(f"{name}, step {method['step']:,}", fontsize=11)
        grid = part.add_gridspec(4, 3, height_ratios=[1, 1, 1, 0.45])
        cells = [(grid[i // 3, i % 3], item) for i, item in enumerate(method["kernels"].items())]
        bias, row = next(iter(method["bias"].items()))
        for place, (title, values) in [*cells, (grid[3, :], (bias, [row]))]:
            axes = part.add_subplot(place)
            axes.set_title(title.replace(".weight", ""), fontsize=7, pad=2)
            image = _cells(axes, values, scale)
        if name == list(methods)[-1] and image is not None:
            bar = part.colorbar(image, ax=part.axes, shrink=0.8)
            bar.set_label("log₁₀ of the learning rate")
    return figure


def _values(method: dict[str, Any]) -> list[float]:
    kernels = [value for kernel in method["kernels"].values() for row in kernel for value in row]
    return kernels + [value for row in method["bias"].values() for value in row]


def _cells(axes: Axes, values: list[list[float]], scale: Any) -> Any:
    logs = [[math.log10(x) if x > 0 else math.nan for x in row] for row in values]
    image = axes.imshow(logs, cmap="viridis_r", norm=scale)
    axes.set_xticks([])
    axes.set_yticks([])
    for i, row in enumerate(logs):
        for j, value in enumerate(row):
            colour = "white" if scale(value) > 0.5 else "black"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def _evolution(data: dict[str, Any]) -> Figure:
    figure = _new(9.8, 4.4, data["title"])
    grid = figure.subplots(1, max(1, len(data["layers"])), squeeze=False, sharey=True)
    for axes, (name, layer) in zip(grid.flat, data["layers"].items(), strict=False):
        _dress(axes, name, "epoch", "learning rate (log scale)" if axes is grid.flat[0] else "")
        epochs = range(1, len(layer["min"]) + 1)
        for key, colour, style in (("max", _RED, "--"), ("median", _BLUE, "-"), ("min", _GREEN, ":")):
            axes.plot(epochs, layer[key], style, color=colour, label=key)
        axes.set_yscale("log")
        axes.fill_between(epochs, data["lower"], data["upper"], color=_GREY, alpha=0.25, linewidth=0,
                          label="between the bounds")  # fmt: skip
        axes.axhline(data["final_lr"], color=_BLACK, linewidth=0.8, label=f"final step size {data['final_lr']:g}")
    # The bounds begin at almost 0 and almost ∞: they must not flatten the rates.
    rates = [rate for layer in data["layers"].values() for series in layer.values() for rate in series if rate > 0]
    grid.flat[0].set_ylim(min(rates) / 1.3, max(rates) * 1.3)
    handles = grid.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


_KINDS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "curves": _curves,
    "steps": _steps,
    "heatmaps": _heatmaps,
    "evolution": _evolution,
}
