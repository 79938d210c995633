"""The last snapshot as a table."""

from __future__ import annotations

from typing import Any

from dynabound._extras import need


def build(summary: dict[str, Any]) -> Any:
    """A rich ``Table`` of a :meth:`~dynabound.lens.History.summary`: a row for each parameter, and one for all."""
    low, high = summary["extremes"]
    shares = {"below": f"< {low:g}", "above": f"> {high:g}"}
    if summary["all"]["clipped_low"] is not None:
        shares = {"clipped_low": "raised to\nlower bound", "clipped_high": "cut to\nupper bound", **shares}
    title = f"Learning rates of {summary['optimizer']} at step {summary['step']:,}"
    table = need("rich.table").Table(title=title, box=need("rich.box").SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("parameter", overflow="fold")
    table.add_column("shape")
    for heading in ("min", "median", "max", *shares.values(), "NaN/inf"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in summary["parameters"].items():
        shape = "×".join(map(str, row["shape"])) or "scalar"
        # A Text, because brackets in a str would be markup.
        cells = _cells(row, shares) if row["updated"] else ["no gradient yet"]
        table.add_row(need("rich.text").Text(name), shape, *cells, style=None if row["updated"] else "dim")
    table.add_section()
    table.add_row("all", f"{summary['all']['elements']:,}", *_cells({"median": None, **summary["all"]}, shares))
    return table


def _cells(row: dict[str, Any], shares: dict[str, str]) -> list[str]:
    rates = ["" if row[key] is None else f"{row[key]:.1e}" for key in ("min", "median", "max")]
    percentages = ["" if row[key] is None else f"{row[key]:.1%}" for key in shares]
    return [*rates, *percentages, f"{row['nan']:.0f}/{row['inf']:.0f}"]
