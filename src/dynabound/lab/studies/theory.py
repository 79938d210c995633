"""The theory demonstrations as a part of the reproduction: computed once, kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynabound.lab.errors import LabError

__all__ = ["NAMES", "missing", "play", "read"]

NAMES = ("theorem-1", "theorem-2", "theorem-3", "regret", "counterexample")


def missing(folder: Path) -> list[str]:
    """The demonstrations that have not been computed yet."""
    return [name for name in NAMES if read(folder, name) is None]


def play(name: str, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Compute one, and write its numbers and figures; LabError if they cannot be written."""
    from dynabound.theory.studies import DEMONSTRATIONS, write

    demo = DEMONSTRATIONS[name](progress=progress)
    try:
        write(demo, folder)
    except OSError as error:
        where = error.filename or folder
        raise LabError(f"{where}: cannot be written ({error.strerror}); give another --out") from None


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """The results of a demonstration; None if it was not computed to its end, or has lost its figure."""
    if not (folder / f"{name}.svg").is_file():
        return None
    try:
        found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return found
