"""Short descriptions of runs, and what makes two of them take equally long."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from dynabound.lab.spec import DEFAULT, RunSpec

__all__ = ["describe", "workload_key", "workload_title"]


def describe(spec: RunSpec) -> str:
    """A run in a few words.

    >>> describe(RunSpec("digits", optimizer="adam", seed=2))
    'digits perceptron adam lr 0.001 seed 2'
    """
    options = "".join(f" {key} {_short(value)}" for key, value in spec.options.items())
    return f"{workload_title(spec)} {spec.optimizer} lr {spec.lr:g}{options} seed {spec.seed}"


def workload_title(spec: RunSpec) -> str:
    """The data set and the model.

    >>> workload_title(RunSpec("ptb", layers=2))
    'ptb lstm-2'
    """
    return f"{spec.task} {spec.model}" + (f"-{spec.layers}" if spec.layers else "")


@cache
def workload_key(spec: RunSpec) -> RunSpec:
    """Equal for two runs whose epochs take equally long: everything except method, seed and number of epochs.

    >>> workload_key(RunSpec("mnist", optimizer="sgdm", seed=1)) == workload_key(RunSpec("mnist", epochs=3))
    True
    """
    plain = dict(optimizer="adam", lr=DEFAULT, opt={}, seed=0, epochs=1, decay_after=None, rates=False, scale="paper")
    return replace(spec, **plain)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join([_short(each) for each in value])
    return f"{value:g}" if isinstance(value, float) else str(value)
