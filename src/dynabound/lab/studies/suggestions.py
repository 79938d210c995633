"""Suggested learning rates of AdaBound and AMSBound: found on a run's own model and batches, stored beside the runs.

Adam can use the initial learning rate, and SGD the final one.
"""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from dynabound._files import write_whole
from dynabound.lab.engines.base import threads
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, parse_json, verified, with_checksum
from dynabound.lab.studies.recipes import Row, Study
from dynabound.lab.tasks import datasets
from dynabound.lab.tasks.download import ensure_downloaded
from dynabound.lab.tasks.optimizers import BOUNDED
from dynabound.lab.training import distributed
from dynabound.lab.training.loop import Training, random_states_kept
from dynabound.tuning import SuggestError, Suggestion, suggest

_FOUND = ("final_lr", "gamma")
_OPTIONS = ("betas", "eps", "decoupled_weight_decay")


def _path(spec: RunSpec, store: Store) -> Path:
    """The file, named after the run with the default learning rates: the suggestion depends on nothing else."""
    return store.root.parent / "suggestions" / f"{spec.name}.json"


def read(spec: RunSpec, store: Store) -> Suggestion | None:
    """The suggestion for ``spec``; None if it does not exist yet, or is damaged."""
    try:
        stored = verified(parse_json(_path(spec, store).read_bytes(), dict))
        RunSpec.stored(stored["spec"], spec.name)  # raises if it is another one
        return Suggestion.from_dict(stored["suggestion"])
    except (OSError, DamagedError, LookupError, TypeError, ValueError):
        return None


def apply(row: Row, scale: str, found: Suggestion | None) -> RunSpec | None:
    """The run of ``row`` with the suggested learning rates; None if there are none yet."""
    spec, bounded = row.spec(scale), row.bounded(scale)
    if found is None:
        return None
    suggested = with_rates(bounded, found)
    if spec.optimizer == bounded.optimizer:
        return suggested
    return replace(spec, lr=suggested.lr if spec.optimizer == "adam" else suggested.options["final_lr"])


class PendingSpec(RunSpec):
    """A run whose learning rates have not been suggested yet: it can be counted, and is never trained or stored."""

    @functools.cached_property
    def name(self) -> str:
        """Unlike the name of any run."""
        return f"pending-{RunSpec(**self.to_dict()).name}"


def needed(studies: Iterable[Study], scale: str) -> list[RunSpec]:
    """The specs whose learning rates are suggested."""
    rows = [row for study in studies for row in study.rows if row.included(scale) and row.suggested(scale)]
    return list(dict.fromkeys(row.bounded(scale) for row in rows))


def missing(studies: Iterable[Study], scale: str, store: Store) -> list[RunSpec]:
    """The specs whose learning rates are still to be suggested."""
    return [spec for spec in needed(studies, scale) if read(spec, store) is None]


def compute(
    spec: RunSpec, store: Store, data_dir: str | Path | None = None, device: str = "cpu", jobs: int = 1
) -> Suggestion:
    """Suggest learning rates for ``spec`` with its own model and batches, as one of ``jobs`` processes; store them."""
    torch.set_num_threads(threads(spec, jobs))
    ensure_downloaded(spec.task, data_dir)  # with Ray, this machine may not have the data yet
    found = suggest_rates(spec, data_dir=data_dir, device=device)
    write(spec, found, store)
    return found


def write(spec: RunSpec, found: Suggestion, store: Store) -> None:
    """Store the suggestion for ``spec`` beside the runs."""
    path = _path(spec, store)
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = with_checksum({"spec": spec.to_dict(), "suggestion": found.to_dict()})
    write_whole(path, (json.dumps(contents, indent=1, allow_nan=False) + "\n").encode())


def suggest_rates(
    spec: RunSpec,
    *,
    steps: int | None = None,
    repeats: int = 1,
    finish: Literal["auto", "adam", "sgd"] = "auto",
    data_dir: str | Path | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], object] | None = None,
) -> Suggestion:
    """Suggest lr, final_lr and gamma for ``spec``, or for a run of ``steps`` steps; LabError if it fails."""
    if spec.optimizer not in BOUNDED:
        raise LabError(f"optimizer={spec.optimizer!r}: suggestions are for {' and '.join(BOUNDED)}")
    options = {name: value for name, value in spec.options.items() if name not in _FOUND}
    for name in options.keys() - set(_OPTIONS):
        raise LabError(f"opt {name}: suggestions are made with {', '.join(_OPTIONS)} only; leave it out")
    where = distributed.local_device(device)
    data = datasets.load(spec.task, data_dir)
    with random_states_kept(where), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suggestion has the warnings as notes
        training = Training(spec, data, where)
        epochs = (training.batches.epoch(epoch, 0) for epoch in itertools.count(1))
        try:
            return suggest(
                training.model,
                training.loss,
                itertools.chain.from_iterable(epochs),
                spec.epochs * training.batches.steps if steps is None else steps,
                clip=spec.clip or None,
                reset=training.reset_hidden_state,
                repeats=repeats,
                finish=finish,
                seed=spec.seed,
                progress=progress,
                weight_decay=spec.weight_decay,
                amsbound=spec.optimizer == "amsbound",
                **options,
            )
        except (SuggestError, ValueError) as error:
            raise LabError(f"no learning rates for {spec.task} {spec.model} {spec.optimizer}: {error}") from error


def with_rates(spec: RunSpec, found: Suggestion) -> RunSpec:
    """``spec`` with the suggested learning rates, rounded to three digits, which exceeds their accuracy."""
    lr, final_lr, gamma = (float(f"{value:.3g}") for value in (found.lr, found.final_lr, found.gamma))
    return replace(spec, lr=lr, opt={**spec.options, "final_lr": final_lr, "gamma": gamma})
