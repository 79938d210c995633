"""What all figures share: colours, the styles of methods, heat cells, the panel of rates over time, saving.

Saving is deterministic: the same data makes the same bytes, and what is already drawn is not drawn again.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._extras import need
from dynabound._files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE_KINDS = ("png", "svg", "pdf")
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
    "AMSGrad": dict(color=PURPLE, linestyle="--"),
    "AdaBound": dict(color=BLUE, linewidth=2.2),
    "AMSBound": dict(color=SKY, linestyle="--", linewidth=2.2),
}
_CYCLE = [dict(color=c, linestyle=s) for c, s in zip(
    (BLUE, ORANGE, GREEN, VERMILION, PURPLE, BLACK), ("-", "--", "-.", "-", "--", ":"), strict=True)]  # fmt: skip


def method_style(label: str, place: int) -> dict[str, Any]:
    """The line style of a method, or that of the ``place``-th curve for any other label."""
    return METHOD_STYLES.get(label) or _CYCLE[place % len(_CYCLE)]


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure that no window shows, with a title."""
    figure: Figure = need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return figure


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


def rates_over_time(axes: Axes, times: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    """Draw ``max``, ``median`` and ``min`` of ``series``, with a marker where there are too few points for a line."""
    for column, colour, style in (("max", VERMILION, "--"), ("median", BLUE, "-"), ("min", GREEN, ":")):
        axes.plot(times, series[column], style, color=colour, label=column, marker="." if len(times) < 3 else "")


def save(name: str, data: dict[str, Any], folder: Path, draw: Callable[[], Figure], version: int = 1) -> list[Path]:
    """Write NAME.png, NAME.svg and NAME.pdf, with the ``data`` they show in NAME.json, unless they are there.

    Raise ``version`` when a drawing changes, so that old files are drawn again.
    """
    text = json.dumps({"format": version, **data}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    paths, record = [folder / f"{name}.{kind}" for kind in FILE_KINDS], folder / f"{name}.json"
    try:
        known = json.loads(record.read_text())["digest"]
    except (OSError, ValueError, KeyError):
        known = ""
    if known == digest and all(path.is_file() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)  # a kill between here and the last line means: draw again
    with need("matplotlib").rc_context({"svg.hashsalt": name, "font.size": 10}):
        figure = draw()
        _fix_layout(figure)
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None}, {"CreationDate": None}), strict=True):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=130, metadata=metadata)
            write_whole(path, buffer.getvalue(), durable=False)
    write_whole(record, json.dumps({"digest": digest, **data}).encode(), durable=False)
    return paths


def _fix_layout(figure: Figure) -> None:
    """Compute the layout now, and round: the solver's last digits differ from process to process."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))
