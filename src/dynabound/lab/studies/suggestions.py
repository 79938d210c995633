"""Suggested step sizes of AdaBound and AMSBound: computed once for each workload, stored beside the runs.

Adam can use the initial step size, and SGD the final one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from dynabound._files import read_regular, write_whole
from dynabound.lab.engines.base import threads
from dynabound.lab.errors import DamagedError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, parse_json, signed, verified
from dynabound.lab.studies.recipes import Row, Study
from dynabound.lab.tasks.download import obtain
from dynabound.lab.training.suggested import suggest_rates, with_rates
from dynabound.tuning import Suggestion

__all__ = ["apply", "compute", "missing", "needed", "read", "stand_in", "write"]

_OLD = frozenset({"spec", "suggestion"})  # the keys of files that have no checksum
_UNKNOWN = 0.0101  # a γ, or a step size, that no recipe has: the run must differ from the one at the defaults


def _path(spec: RunSpec, store: Store) -> Path:
    """The file, named after the run with the default step sizes: the suggestion depends on nothing else."""
    return store.root.parent / "suggestions" / f"{spec.name}.json"


def read(spec: RunSpec, store: Store) -> Suggestion | None:
    """The suggestion for ``spec``; None if it does not exist yet, or is damaged."""
    try:
        stored = verified(parse_json(read_regular(_path(spec, store)), dict), _OLD)
        found = Suggestion.from_dict(stored["suggestion"])
        with_rates(spec, found)  # raises if the numbers cannot be rates
        if RunSpec.from_dict(stored["spec"]) != spec:
            return None
    except (OSError, DamagedError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return found


def apply(row: Row, scale: str, found: Suggestion | None) -> RunSpec | None:
    """The run of ``row`` with the suggested step sizes; None if there are none yet."""
    spec, bounded = row.spec(scale), row.bounded(scale)
    if found is None:
        return None
    suggested = with_rates(bounded, found)
    if spec.optimizer == bounded.optimizer:
        return suggested
    return replace(spec, lr=suggested.lr if spec.optimizer == "adam" else suggested.options["final_lr"])


def stand_in(spec: RunSpec) -> RunSpec:
    """A placeholder for the run whose step sizes are not known yet, so that it is counted."""
    if "gamma" in spec.options:
        return replace(spec, opt={**spec.options, "gamma": _UNKNOWN})
    return replace(spec, lr=_UNKNOWN)


def needed(studies: Iterable[Study], scale: str) -> list[RunSpec]:
    """The specs whose step sizes are suggested."""
    rows = [row for study in studies for row in study.rows if row.included(scale) and row.suggested(scale)]
    return list(dict.fromkeys(row.bounded(scale) for row in rows))


def missing(studies: Iterable[Study], scale: str, store: Store) -> list[RunSpec]:
    """The specs whose step sizes are still to be suggested."""
    return [spec for spec in needed(studies, scale) if read(spec, store) is None]


def compute(
    spec: RunSpec, store: Store, data_dir: str | Path | None = None, device: str = "cpu", jobs: int = 1
) -> Suggestion:
    """Suggest the step sizes of ``spec`` with its own model and batches, as one of ``jobs`` processes; store them."""
    torch.set_num_threads(threads(spec, jobs))
    obtain(spec.task, data_dir)  # with Ray, this machine may not have the data yet
    found = suggest_rates(spec, data_dir=data_dir, device=device)
    write(spec, found, store)
    return found


def write(spec: RunSpec, found: Suggestion, store: Store) -> None:
    """Store the suggestion for ``spec`` beside the runs."""
    path = _path(spec, store)
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = signed({"spec": spec.to_dict(), "suggestion": found.to_dict()})
    write_whole(path, (json.dumps(contents, indent=1, allow_nan=False) + "\n").encode())
