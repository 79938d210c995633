"""The demonstrations by name."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

from dynabound._files import write_whole
from dynabound.theory import theorems_1_to_3 as failures
from dynabound.theory import theorems_4_and_5 as guarantees
from dynabound.theory.draw import draw
from dynabound.theory.study import Study

STUDIES: dict[str, Callable[..., Study]] = {
    "theorem-1": failures.theorem_1,
    "theorem-2": failures.theorem_2,
    "theorem-3": failures.theorem_3,
    "regret": guarantees.regret_study,
    "counterexample": guarantees.counterexample,
}


def choose(names: list[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The studies to run, each with those of the ``options`` that it takes; "all" stands for every study.

    >>> choose(["theorem-3", "regret"], {"period": 50, "seeds": 3})
    {'theorem-3': {'period': 50, 'seeds': 3}, 'regret': {'seeds': 3}}
    """
    names = list(STUDIES) if "all" in names else list(dict.fromkeys(names))
    for name in names:
        if name not in STUDIES:
            raise ValueError(f"study={name!r}: must be one of {', '.join(STUDIES)}, or all")
    takes = {name: set(inspect.signature(STUDIES[name]).parameters) for name in names}
    for option in options:
        if not any(option in known for known in takes.values()):
            letter = {"period": "C", "steps": "T"}.get(option, option)
            raise ValueError(f"{letter}={options[option]!r}: no use for it in {', '.join(names)}; leave it out")
    return {name: {key: value for key, value in options.items() if key in takes[name]} for name in names}


def write(study: Study, folder: Path) -> list[Path]:
    """Write NAME.json, NAME.png and NAME.svg into ``folder``, each complete or not at all."""
    contents = {"json": json.dumps(study.as_dict(), indent=1, allow_nan=False, ensure_ascii=False).encode()}
    # A fixed salt and no date: the same numbers make the same file.
    with matplotlib.rc_context({"svg.hashsalt": study.name}):
        figure = draw(study)
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
            contents[kind] = buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind, content in contents.items():
        path = folder / f"{study.name}.{kind}"
        write_whole(path, content, durable=False)
        paths.append(path)
    return paths
