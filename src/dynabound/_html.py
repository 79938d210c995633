"""HTML for notebooks: a table, or text in a fixed-width font."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


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
