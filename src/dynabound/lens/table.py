"""The last snapshot as a table, for a terminal of 80 columns and for a notebook."""

from __future__ import annotations

from typing import Any

from dynabound._drawing import html_table
from dynabound._extras import need

_SHAPE = 1  # the column that a narrow terminal does not show
_CAPTIONS = {
    "raised": "raised to the lower bound",
    "cut": "cut to the upper bound",
    "lost": "lost: the update rounds to 0",
}


def build(summary: dict[str, Any], width: int = 80) -> Any:
    """A rich ``Table`` of a :meth:`~dynabound.lens.History.summary`: a row for each parameter, and one for all."""
    text = need("rich.text").Text
    lines = _cells(summary)
    if sum(_widths(lines)) > width:
        lines = [line[:_SHAPE] + line[_SHAPE + 1 :] for line in lines]
    space = width - sum(_widths(lines)[1:]) - 3
    headings, *rows, total = lines
    table = need("rich.table").Table(
        title=_title(summary), caption=_caption(headings), box=need("rich.box").SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="left" if heading == "shape" else "right", no_wrap=True)
    for (name, *row), statistics in zip(rows, summary["parameters"].values(), strict=True):
        # Text, because brackets in a str would be markup.
        table.add_row(text(shorten(name, space)), *map(text, row), style=None if statistics["updated"] else "dim")
    table.add_section()
    table.add_row(*total)
    return table


def html(summary: dict[str, Any]) -> str:
    """The same table for a notebook."""
    headings, *rows = _cells(summary)
    return html_table("; ".join(filter(None, (_title(summary), _caption(headings)))), headings, rows)


def _widths(lines: list[list[str]]) -> list[int]:
    """The widths of the columns, with the space between them."""
    return [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]


def shorten(name: str, width: int) -> str:
    """``name`` in at most ``width`` characters: parts of it become an ellipsis, numbers (of layers) last of all.

    >>> shorten("bert.encoder.layer.11.attention.output.LayerNorm.weight", 28)
    '…11.…output.LayerNorm.weight'
    """
    parts = name.split(".")
    kept = dict(enumerate(parts))
    # Whole parts go first, from the left, and the last one stays.
    for place in sorted(range(len(parts) - 1), key=lambda place: parts[place].isdigit()):
        if len(_joined(kept, len(parts))) <= width:
            break
        del kept[place]
    short = _joined(kept, len(parts))
    half = (width - 1) // 2
    return short if len(short) <= width else f"{short[: width - 1 - half]}…{short[-half:]}"


def _joined(kept: dict[int, str], count: int) -> str:
    text = ""
    for place in range(count):
        if place in kept:
            text += kept[place] + "." * (place < count - 1)
        elif not text.endswith("…"):
            text += "…"
    return text


def _title(summary: dict[str, Any]) -> str:
    return f"Learning rates of {summary['optimizer']} at step {summary['step']:,}"


def _caption(headings: list[str]) -> str:
    return ", ".join(text for heading, text in _CAPTIONS.items() if heading in headings)


def _cells(summary: dict[str, Any]) -> list[list[str]]:
    """The headings, a row for each parameter and one for all, without columns that are zero for every parameter."""
    low, high = summary["extremes"]
    shares = {"clipped_low": "raised", "clipped_high": "cut", "below": f"<{low:g}", "above": f">{high:g}"}
    shares["lost"] = "lost"
    counts = {"nan": "NaN", "inf": "inf"}
    updated = [row for row in summary["parameters"].values() if row["updated"]]
    shares, counts = ({k: v for k, v in d.items() if any(row[k] for row in updated)} for d in (shares, counts))

    def cells(row: dict[str, Any]) -> list[str]:
        rates = [_rate(row.get(key)) for key in ("min", "median", "max")]
        return [*rates, *(_share(row[key]) for key in shares), *(f"{row[key]:.0f}" for key in counts)]

    lines = [["parameter", "shape", "min", "median", "max", *shares.values(), *counts.values()]]
    for name, row in summary["parameters"].items():
        numbers = cells(row) if row["updated"] else ["no", "grad", "yet", *[""] * (len(lines[0]) - 5)]
        lines.append([name, "×".join(map(str, row["shape"])) or "scalar", *numbers])
    return [*lines, ["all", f"{summary['all']['elements']:,}", *cells(summary["all"])]]


def _rate(value: float | None) -> str:
    """Two digits, with a short exponent: 9.1e-3."""
    if value is None:
        return ""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits


def _share(value: float | None) -> str:
    if value is None:
        return ""
    if 0 < value < 5e-4:
        return "<0.1%"  # not 0.0%: it is above zero
    return "100%" if value == 1 else f"{value:.1%}"
