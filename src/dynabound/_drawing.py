"""What all figures share: colours, the styles of methods, heat cells, rates over time, logarithmic axes, saving.

Also tables and text in HTML, for notebooks. Saving is deterministic: the same data makes the same bytes, and what is
already drawn is not drawn again.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._extras import need
from dynabound._files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
FILE_KINDS = tuple(_METADATA)
_STYLE = {"font.size": 10, "figure.autolayout": False, "figure.constrained_layout.use": False}
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE, BLACK, GREY = (
    "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#000000", "#999999",
)  # fmt: skip
BAND: dict[str, Any] = dict(color=GREY, alpha=0.25, linewidth=0)
"""The style of the region between the bounds."""
METHOD_STYLES: dict[str, dict[str, Any]] = {
    "SGDM": dict(color=GREEN),
    "SGD": dict(color=GREEN),
    "AdaGrad": dict(color=ORANGE, linestyle="-."),
    "Adam": dict(color=VERMILION),
    "AdamW": dict(color=PURPLE, linestyle="-."),
    "AMSGrad": dict(color=PURPLE, linestyle="--"),
    "AdaBound": dict(color=BLUE, linewidth=2.2),
    "AMSBound": dict(color=SKY, linestyle="--", linewidth=2.2),
}
_CYCLE = [dict(color=c, linestyle=s) for c, s in zip(
    (BLUE, ORANGE, GREEN, VERMILION, PURPLE, BLACK), ("-", "--", "-.", "-", "--", ":"), strict=True)]  # fmt: skip


def method_style(label: str, place: int) -> dict[str, Any]:
    """The line style of a method, or that of the ``place``-th curve for any other label."""
    return METHOD_STYLES.get(label) or _CYCLE[place % len(_CYCLE)]


def new_figure(width: float, height: float, title: str = "", fontsize: float = 12) -> Figure:
    """An empty figure with a title, outside of pyplot: it opens no window and need not be closed.

    A notebook shows it, and ``wandb.Image`` accepts it.
    """
    need("matplotlib.pyplot")  # W&B compares figures with this module, and fails if it was not imported
    figure: Figure = need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    # An attribute instead of a subclass, because W&B recognises figures by the path of their class.
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    if title:
        line = int(115 * width / fontsize)  # characters
        figure.suptitle(textwrap.fill(title, line), fontsize=fontsize, fontweight="bold")
    return figure


def _png(figure: Figure) -> bytes:
    """The figure as IPython shows it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def label_axes(axes: Axes, title: str, x: str, y: str, **settings: Any) -> Axes:
    """A title, labels and a light grid, and no frame at the top and on the right."""
    axes.set(title=title, xlabel=x, ylabel=y, **settings)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def legend_below(figure: Figure, columns: int, **style: Any) -> None:
    """One legend below all axes, with each label once."""
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, **style)


def log_scale(axes: Axes, which: str) -> tuple[float, float]:
    """Make the "x" or "y" axis logarithmic and return its limits.

    It spans at least a factor of 3, and has tick labels even where it spans less than a decade.
    """
    axes.set(**{f"{which}scale": "log"})
    low, high = getattr(axes, f"get_{which}lim")()
    margin = max(1.0, math.sqrt(3 * low / high))
    axes.set(**{f"{which}lim": (low / margin, high * margin)})
    formatter = need("matplotlib.ticker").LogFormatterSciNotation(minor_thresholds=(1.5, 0.5))
    getattr(axes, f"{which}axis").set_minor_formatter(formatter)
    axes.tick_params(axis=which, which="minor", labelsize=7)  # type: ignore[arg-type]
    return low / margin, high * margin


def heat_scale(logs: Iterable[float]) -> Any:
    """The colour scale from the smallest to the largest finite number."""
    finite = [x for x in logs if math.isfinite(x)] or [0.0, 1.0]
    return need("matplotlib.colors").Normalize(min(finite), max(*finite, min(finite) + 1e-9))


def heat_cells(axes: Axes, logs: Sequence[Sequence[float]], scale: Any) -> Any:
    """An image of log₁₀ rates with their numbers; what is not finite (a rate of 0, ∞ or NaN) is vermilion."""
    colours = need("matplotlib").colormaps["viridis_r"].with_extremes(bad=VERMILION)
    image = axes.imshow([[x if math.isfinite(x) else math.nan for x in row] for row in logs], cmap=colours, norm=scale)
    axes.set_xticks([])
    axes.set_yticks([])
    for i, row in enumerate(logs):
        for j, value in enumerate(row):
            colour = "white" if math.isfinite(value) and scale(value) > 0.5 else "black"
            text = f"{round(value, 1) + 0.0:.1f}"  # + 0.0: no negative zero
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    return image


def heat_bar(figure: Any, image: Any) -> None:
    """The colour bar of all heat cells of a figure or subfigure."""
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("log₁₀ of the learning rate")


def rates_over_time(
    axes: Axes,
    times: Sequence[float],
    series: Mapping[str, Sequence[float]],
    bounds: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Draw ``max``, ``median`` and ``min`` of ``series`` on a logarithmic axis, and the band between the bounds.

    Points get a marker where there are too few for a line. The axis shows the rates and the lower bound; of the upper
    bound, which begins at almost ∞, what is below the largest rate.
    """
    for column, colour, style in (("max", VERMILION, "--"), ("median", BLUE, "-"), ("min", GREEN, ":")):
        axes.plot(times, series[column], style, color=colour, label=column, marker="." if len(times) < 3 else "")
    limits = log_scale(axes, "y")
    if bounds is not None:
        axes.fill_between(times, *bounds, label="between the bounds", **BAND)
        axes.set_ylim(min([limits[0], *(lower / 1.2 for lower in bounds[0] if lower > 0)]), limits[1])


def save(name: str, data: dict[str, Any], folder: Path, draw: Callable[[], Figure], version: int = 1) -> list[Path]:
    """Write NAME.png, NAME.svg and NAME.pdf, with the ``data`` they show in NAME.json, unless they exist.

    Raise ``version`` when a drawing changes, so that old files are drawn again.
    """
    digest = hashlib.sha256(json.dumps({"format": version, **data}, sort_keys=True).encode()).hexdigest()
    paths, record = [folder / f"{name}.{kind}" for kind in FILE_KINDS], folder / f"{name}.json"
    try:
        if json.loads(record.read_bytes())["digest"] == digest and all(path.is_file() for path in paths):
            return paths
    except (OSError, ValueError, KeyError, TypeError):
        pass  # damaged or missing
    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)  # if the process is killed before the last line, the figure is drawn again
    for path, file in zip(paths, render(name, draw, FILE_KINDS).values(), strict=True):
        write_whole(path, file, durable=False)
    write_whole(record, json.dumps({"digest": digest, **data}).encode(), durable=False)
    return paths


def render(name: str, draw: Callable[[], Figure], kinds: Iterable[str]) -> dict[str, bytes]:
    """The contents of a figure's files, by kind; the same figure makes the same bytes."""
    files = {}
    with need("matplotlib").rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = draw()
        _fix_layout(figure)
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=130, metadata=_METADATA[kind])
            files[kind] = buffer.getvalue()
    return files


def _fix_layout(figure: Figure) -> None:
    """Compute the layout now, and round: the solver's last digits differ from process to process."""
    layout = figure.get_layout_engine()
    if layout is None:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # too much text is not an error
        layout.execute(figure)
    figure.set_layout_engine(None)  # "none" would leave a placeholder, with which every file is drawn twice
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a caption; the first column is left-aligned, the others are right-aligned.

    >>> html_table("a < b", ["x"], [["1"]])
    '<table><caption>a &lt; b</caption><thead><tr><th style="text-align:left">x</th></tr></thead><tbody>...</table>'
    """

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        parts = (
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    head = f"<caption>{escape(title)}</caption><thead>{line(headings, 'th')}</thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Text in a fixed-width font, unchanged.

    >>> html_text("x < 1")
    '<pre>x &lt; 1</pre>'
    """
    return f"<pre>{escape(text)}</pre>"
