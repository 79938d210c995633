"""The theory study's part of the report: the results of the demonstrations, and the verdict on the theorems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynabound.lab.report.figures import StoredFigure
from dynabound.lab.report.verdicts import FAILS, HOLDS, UNDECIDED, Check, overall
from dynabound.lab.studies import theory
from dynabound.theory.verdict import REFUTED, SUPPORTED
from dynabound.theory.verdict import UNDECIDED as OPEN

__all__ = ["headline", "read_checks", "read_figures", "read_settings", "read_studies"]

Found = Mapping[str, Mapping[str, Any]]
"""From a demonstration's name to its file's contents."""


def read_studies(folder: Path) -> tuple[Found, list[str]]:
    """The demonstrations in ``folder``, and the names of those that are missing."""
    found = {name: theory.read(folder, name) for name in theory.NAMES}
    return {name: part for name, part in found.items() if part}, [name for name, part in found.items() if not part]


def read_checks(found: Found) -> list[Check]:
    """All verdicts; a file of an older version does not say whose claim it is: it counts as ours."""
    checks = []
    for name, part in found.items():
        for verdict in part["verdicts"]:
            where = f" ({verdict['settings']})" if verdict["settings"] else ""
            word = {SUPPORTED: HOLDS, REFUTED: FAILS}.get(verdict["verdict"], UNDECIDED)
            source = verdict.get("source", "ours")
            checks.append(Check(f"{name}: {verdict['claim']}{where}", verdict["measured"], word, source))
    return checks


def read_settings(found: Found) -> list[str]:
    """The settings of each demonstration, in a line."""
    return [f"{name}: " + ", ".join(f"{key} {value}" for key, value in part["settings"].items())
            for name, part in found.items()]  # fmt: skip


def read_figures(found: Found, folder: Path) -> list[StoredFigure]:
    """The pictures that the demonstrations wrote."""
    return [StoredFigure(name, part["title"], folder / f"{name}.svg") for name, part in found.items()]


def headline(found: Found, missing: Sequence[str], checks: Sequence[Check]) -> str:
    """The verdict on the theorems, such as "Theorems 1 to 3 hold; 4, its corollary and 5 are refuted"."""
    words: dict[str, set[str]] = {}
    for part in found.values():
        for verdict in part["verdicts"]:
            if verdict.get("kind") == "theorem" and not verdict["statement"].startswith("Lemma"):
                words.setdefault(verdict["statement"], set()).add(verdict["verdict"])
    if not words:
        return UNDECIDED if missing else overall(checks)
    refuted = [name for name, seen in words.items() if REFUTED in seen]
    open_ones = [name for name, seen in words.items() if OPEN in seen and name not in refuted]
    hold = [name for name in words if name not in refuted and name not in open_ones]
    parts = [(hold, ("holds", "hold")), (refuted, ("is refuted", "are refuted")),
             (open_ones, ("is not decided", "are not decided"))]  # fmt: skip
    sentence = "; ".join(f"{_names(names)} {verbs[len(names) > 1]}" for names, verbs in parts if names)
    plural = "Theorems" if len(parts[0][0] or parts[1][0]) > 1 else "Theorem"
    return f"{plural} {sentence}"


def _names(statements: Sequence[str]) -> str:
    """Numbers in words, such as "1 to 3" or "4, its corollary and 5"."""
    items: list[str] = []
    for statement in sorted(statements, key=lambda name: re.findall(r"[\d.]+", name)):
        number = re.findall(r"\d+", statement)[0]
        items.append("its corollary" if statement.startswith("Corollary") and number in items else
                     "the corollary" if statement.startswith("Corollary") else number)  # fmt: skip
    numbers = [int(item) for item in items if item.isdigit()]
    if len(items) > 2 and numbers == list(range(numbers[0], numbers[0] + len(items))):
        return f"{items[0]} to {items[-1]}"
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))
