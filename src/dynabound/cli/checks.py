"""Checks of a command's options before its first process and its first write."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch.nn import Parameter

from dynabound._files import total_memory
from dynabound.cli.errors import CommandError, check_folder, exists
from dynabound.cli.tables import size_text
from dynabound.lab.spec import TASKS, RunSpec
from dynabound.lab.tasks import optimizers
from dynabound.lab.training import distributed
from dynabound.lens.rates import rule_of

__all__ = [
    "check_device",
    "check_finite",
    "check_local_runs",
    "check_memory",
    "check_optimizer",
    "check_readable",
    "check_threads",
    "check_unused",
]

MAX_LAYERS = 10_000


def check_local_runs(specs: Iterable[RunSpec], device: str, out: Path) -> None:
    """Raise unless this machine can train ``specs`` on ``device`` and store them in ``out``."""
    check_folder(out)
    distributed.local_device(device)
    for spec in specs:
        check_memory(spec, device)


def check_optimizer(spec: RunSpec, device: str) -> None:
    """Raise OptimizerError unless the lab can make a step with the optimizer, and read its rates if asked to."""
    param = Parameter(torch.zeros(2, 2, device=distributed.local_device(device)))
    optimizer = optimizers.build(spec.optimizer, [param], spec.lr, spec.weight_decay, spec.options)
    if spec.rates:
        try:
            rule_of(optimizer)
        except TypeError as error:
            raise optimizers.OptimizerError(f"--rates with --optimizer {spec.optimizer}: {error}") from None
    if ":" not in spec.optimizer and not spec.opt:
        return
    param.grad = torch.ones_like(param)
    optimizers.set_mode(optimizer, training=True)
    try:
        optimizer.step()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise optimizers.OptimizerError(
            f"--optimizer {spec.optimizer}: cannot make a step on {device} ({reason}); the lab calls step() without a "
            "closure, after a plain backward(); use another optimizer or other --opt"
        ) from None


def check_memory(spec: RunSpec, device: str = "cpu") -> None:
    """Raise CommandError if the model cannot fit into this machine's memory."""
    if spec.layers is not None and spec.layers > MAX_LAYERS:
        raise CommandError(f"layers={spec.layers}: must be at most {MAX_LAYERS}")
    copies = 2 if device == "cpu" else 1  # weights and gradients; for another device the model is only built here
    needed, present = 4 * copies * _least_parameters(spec), total_memory()
    if needed > present:
        shape = {"hidden": spec.hidden, "layers": spec.layers, "width": spec.width}
        named = ", ".join(f"{name}={value}" for name, value in shape.items() if value is not None)
        raise CommandError(
            f"{named}: the {spec.model} needs at least {size_text(needed)} of memory, and this machine has "
            f"{size_text(present)}; make it smaller"
        )


def _least_parameters(spec: RunSpec) -> float:
    """A lower bound of the model's number of parameters, known without its data."""
    if spec.model == "lstm":
        return 8.0 * (spec.layers or 1) * (spec.hidden or 1) ** 2
    if spec.model == "perceptron":
        source = TASKS[spec.task].source
        inputs = source.channels * math.prod(source.shape[2:]) if source else 64
        return (inputs + 11.0) * (spec.hidden or 1)  # weights of inputs and 10 outputs, biases
    return {"resnet34": 21.2e6, "densenet121": 6.9e6}[spec.model] * (spec.width or 1) ** 2


def check_threads(threads: int | None) -> None:
    """Raise CommandError if there are too many threads for this machine."""
    most = max(64, 4 * (os.cpu_count() or 1))
    if threads is not None and threads > most:
        raise CommandError(f"threads={threads}: this machine has {os.cpu_count()} cores; must be at most {most}")


def check_finite(option: str, value: float | None) -> None:
    """Raise CommandError if a number is infinite or NaN."""
    if value is not None and not math.isfinite(value):
        raise CommandError(f"{option} {value}: must be a finite number")


def check_unused(option: str, others: Mapping[str, object]) -> None:
    """Raise CommandError if one of ``others`` was given, all of which ``option`` would ignore."""
    for other, value in others.items():
        if value:
            raise CommandError(f"{other}: has no effect with {option}; leave one of them out")


def check_device(device: str) -> None:
    """Raise CommandError unless torch knows the device, which this machine need not have."""
    try:
        torch.device(device)
    except RuntimeError:
        raise CommandError(f"--device {device}: is not a device; try cpu or cuda") from None


def check_readable(folder: Path | None, option: str) -> None:
    """Raise CommandError if the folder was given and nobody can say whether it exists; typer checks its permissions."""
    try:
        if folder is not None:
            exists(folder)
    except OSError as error:
        raise CommandError(f"{option} {folder}: cannot be read ({error.strerror}); give another one") from None
