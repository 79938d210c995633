"""The theory demonstrations as a part of the reproduction: computed once, stored in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynabound._files import digest, write_whole
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.store import parse_json

NAMES = ("theorem-1", "theorem-2", "theorem-3", "regret", "counterexample", "guarantees", "slow-bounds")


def missing(folder: Path) -> list[str]:
    """The demonstrations that have not been computed yet."""
    return [name for name in NAMES if read(folder, name) is None]


def compute(name: str, folder: Path) -> None:
    """Compute one, and write its numbers and figures; LabError if they cannot be written."""
    from dynabound.theory.studies import DEMONSTRATIONS, write

    demo = DEMONSTRATIONS[name]()
    try:
        write(demo, folder)
        sums = [f"{digest(folder / file)}  {file}\n" for file in _files(name)]
        write_whole(folder / f"{name}.sha256", "".join(sums).encode())
    except OSError as error:
        where = error.filename or folder
        raise LabError(f"{where}: cannot be written ({error.strerror}); give another --out") from None


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """The results of a demonstration; None if it is incomplete, or its files are damaged."""
    try:
        digests = [digest(folder / file) for file in _files(name)]
        found: dict[str, Any] = parse_json((folder / f"{name}.json").read_bytes(), dict)
        known = (folder / f"{name}.sha256").read_text(errors="replace").split()[::2]
    except (OSError, DamagedError):
        return None
    return found if known == digests else None


def _files(name: str) -> list[str]:
    return [f"{name}.json", f"{name}.svg"]
