"""Optional packages: import one, or raise an error that names the pip command."""

from __future__ import annotations

import importlib
import json
from importlib import metadata
from typing import Any


def pip_command(extra: str) -> str:
    """The command that installs an extra: from the clone if dynabound was installed from one, else from the index."""
    return f"pip install '{_source()}[{extra}]'"


def rebuild_command() -> str:
    """The command that compiles dynabound's kernel again."""
    source = _source()
    return "pip install --force-reinstall --no-deps " + ("--no-binary dynabound " * (source != ".")) + source


def _source() -> str:
    return "." if "dir_info" in origin() else "dynabound"  # a folder, not a wheel or a repository's address


def origin() -> dict[str, Any]:
    """What pip has recorded of where it installed dynabound from; empty if that is the index."""
    try:
        found: dict[str, Any] = json.loads(metadata.distribution("dynabound").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return found


def missing(error: ModuleNotFoundError, extra: str) -> str:
    """The message for a package that is not installed."""
    return f"{error.name} is not installed: {pip_command(extra)}"


def of_command(name: str | None) -> str:
    """The extra that a command needs; ``name`` may also be an option, such as ``--version``."""
    return "theory" if name in (None, "bounds", "theory") or name.startswith("-") else "lab"


def need(module: str, extra: str = "lens") -> Any:
    """Import ``module``, or raise ModuleNotFoundError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing(error, extra), name=error.name) from error
