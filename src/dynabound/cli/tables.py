"""What commands print: lines, JSON, tables, times and sizes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dynabound.cli.errors import printable, short

__all__ = ["echo", "echo_json", "print_table", "show", "size_text", "time_text"]


def echo(text: object, err: bool = False) -> None:
    """Print a line; terminal escapes in it are shown, not executed."""
    # Not typer.echo, which writes UTF-8 where the encoding is ASCII.
    print(printable(text, lines=True), file=sys.stderr if err else sys.stdout, flush=True)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    echo(json.dumps(value))


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], wrap: str = "", width: int = 120) -> None:
    """Print rows without interpreting markup; only the column ``wrap`` may be broken into lines."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=bool(wrap) and column != wrap)
    for row in rows:
        table.add_row(*(Text(short(cell)) for cell in row))
    show(table, width)


def show(renderable: RenderableType, width: int = 120) -> None:
    """Print in the width of the terminal, or in ``width`` if there is none."""
    Console(highlight=False, width=None if sys.stdout.isatty() else width).print(renderable)


def time_text(seconds: float) -> str:
    """A duration in the largest unit that fits.

    >>> time_text(90), time_text(7200), time_text(0.5)
    ('1.5 min', '2.0 h', '0.5 s')
    """
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "min"), (0, "s")) if seconds >= unit)
    return f"{seconds / (unit or 1):,.1f} {name}"


def size_text(count: float) -> str:
    """A number of bytes.

    >>> size_text(2.5e6), size_text(4e12)
    ('2.5 MB', '4,000.0 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
