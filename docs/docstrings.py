"""Render the docstrings' reStructuredText as Markdown, for the API reference."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Roles become code, ``::`` a colon, and examples a section that mkdocstrings knows."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with ``:func:`~dynabound.suggest``` as `suggest`, and ``Example:`` as ``Examples:``."""
    text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
