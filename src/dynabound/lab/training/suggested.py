"""AdaBound's step sizes for a run, found on its own model and batches before it is trained."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.tasks import datasets
from dynabound.lab.tasks.optimizers import BOUNDED
from dynabound.lab.training import distributed
from dynabound.lab.training.loop import Training, random_states_kept
from dynabound.tuning import SuggestError, Suggestion, suggest

__all__ = ["suggest_rates", "with_rates"]

_FOUND = ("final_lr", "gamma")
_OPTIONS = ("betas", "eps", "decoupled_weight_decay")


def suggest_rates(
    spec: RunSpec,
    *,
    steps: int | None = None,
    repeats: int = 1,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], object] | None = None,
) -> Suggestion:
    """Suggest lr, final_lr and gamma for ``spec``, or for a training of ``steps`` steps; LabError if it fails."""
    if spec.optimizer not in BOUNDED:
        raise LabError(f"optimizer={spec.optimizer!r}: suggestions are for {' and '.join(BOUNDED)}")
    options = {name: value for name, value in spec.options.items() if name not in _FOUND}
    for name in options.keys() - set(_OPTIONS):
        raise LabError(f"opt {name}: suggestions are made with {', '.join(_OPTIONS)} alone; leave it out")
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
                reset=training.forget,
                repeats=repeats,
                seed=spec.seed,
                progress=progress,
                weight_decay=spec.weight_decay,
                amsbound=spec.optimizer == "amsbound",
                **options,
            )
        except (SuggestError, ValueError) as error:
            raise LabError(f"no step sizes for {spec.task} {spec.model} {spec.optimizer}: {error}") from error


def with_rates(spec: RunSpec, found: Suggestion) -> RunSpec:
    """``spec`` with the suggested step sizes, rounded to three digits, which exceeds their accuracy."""
    lr, final_lr, gamma = (float(f"{value:.3g}") for value in (found.lr, found.final_lr, found.gamma))
    return replace(spec, lr=lr, opt={**spec.options, "final_lr": final_lr, "gamma": gamma})
