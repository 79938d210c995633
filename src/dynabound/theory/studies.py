"""The demonstrations by name: choose some, run them, write their results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynabound import _drawing
from dynabound._checks import did_you_mean, require
from dynabound.theory import theorems_1_to_3, theorems_4_and_5, what_holds
from dynabound.theory.demonstration import Demonstration
from dynabound.theory.draw import VERSION, draw

DEMONSTRATIONS: dict[str, Callable[..., Demonstration]] = {
    "theorem-1": theorems_1_to_3.theorem_1,
    "theorem-2": theorems_1_to_3.theorem_2,
    "theorem-3": theorems_1_to_3.theorem_3,
    "regret": theorems_4_and_5.regret_bounds,
    "counterexample": theorems_4_and_5.counterexample,
    "guarantees": what_holds.guarantees,
    "slow-bounds": what_holds.slow_bounds,
}


def choose(names: list[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The demonstrations to run, each with those of the ``options`` that it takes; "all" selects all of them.

    >>> choose(["theorem-3", "regret"], {"period": 50, "seeds": 3})
    {'theorem-3': {'period': 50, 'seeds': 3}, 'regret': {'seeds': 3}}
    """
    names = list(DEMONSTRATIONS) if "all" in names else list(dict.fromkeys(names))
    for name in names:
        allowed = f"one of {', '.join(DEMONSTRATIONS)}, or all{did_you_mean(name, DEMONSTRATIONS)}"
        require(name in DEMONSTRATIONS, "study", name, allowed)
    takes = {name: set(inspect.signature(DEMONSTRATIONS[name]).parameters) for name in names}
    for option, value in options.items():
        if not any(option in known for known in takes.values()):
            letter = {"period": "C", "steps": "T"}.get(option, option)
            raise ValueError(f"{letter}={value!r}: {', '.join(names)} does not use it; leave it out")
    return {name: {key: value for key, value in options.items() if key in takes[name]} for name in names}


def write(demo: Demonstration, folder: Path) -> list[Path]:
    """Write NAME.png, NAME.svg, NAME.pdf and NAME.json into ``folder``, each complete or not at all."""
    paths = _drawing.save(demo.name, demo.as_dict(), folder, lambda: draw(demo), VERSION)
    return [folder / f"{demo.name}.json", *paths]
