"""The paper's search for learning rates: five points, more at an edge, and the lowest final training loss wins.

The search is a function of the stored runs: it returns which runs it needs next. Therefore it resumes without any state
of its own, and no run is repeated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dynabound.lab.spec import RunSpec

Loss: TypeAlias = Callable[[RunSpec], "float | None"]
"""A run's final training loss; infinity if it diverged or failed, None if it has not ended."""


@dataclass(frozen=True)
class Grid:
    """Learning rates in ascending order, and the other options that each of them is tried with."""

    lrs: tuple[float, ...]
    options: tuple[Mapping[str, Any], ...] = ({},)
    fine: tuple[float, ...] = ()
    """Multiples of the best learning rate that a finer pass tries."""


_BETAS = tuple(dict(betas=betas) for betas in itertools.product((0.9, 0.99), (0.999, 0.99)))
_SGD = Grid((0.01, 0.1, 1.0, 10.0, 100.0), fine=(0.2, 0.5, 2.0, 5.0))
_ADAM = Grid((1e-4, 5e-4, 1e-3, 5e-3, 1e-2), _BETAS)

GRIDS: dict[str, Grid] = {
    "sgd": _SGD,
    "sgdm": _SGD,
    "adagrad": Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2)),
    "adam": _ADAM,
    "amsgrad": _ADAM,
}
"""The paper's initial grids. AdaBound and AMSBound have none: in the studies they keep their defaults."""

STEP_SIZE_GRIDS = {name: replace(grid, options=grid.options[:1]) for name, grid in GRIDS.items()}
"""The same learning rates, with β₁ = 0.9 and β₂ = 0.999 only."""

_ADABOUND = Grid(_ADAM.lrs, tuple(dict(final_lr=final_lr) for final_lr in (0.01, 0.1, 1.0, 10.0)))
_HALF_DECADES = Grid((1e-3, 3e-3, 1e-2))
HALF_DECADE_GRIDS: dict[str, Grid] = {
    "sgdm": Grid((0.03, 0.1, 0.3)), "csgd": Grid((0.3, 1.0, 3.0)), "adam": _HALF_DECADES, "adamw": _HALF_DECADES
}  # fmt: skip
"""Three learning rates each, for runs that take long."""

TUNE_GRIDS: dict[str, Grid] = {**GRIDS, "adabound": _ADABOUND, "amsbound": _ADABOUND}
"""The grids of ``dynabound tune``: the paper's, and α and α* of AdaBound and AMSBound."""

_MAX_EXTENSIONS = 8
"""The largest number of new points at an edge: a search ends even if the loss keeps falling."""


@dataclass(frozen=True)
class Search:
    """The state of a search."""

    tried: tuple[tuple[RunSpec, float], ...]
    """The runs that have ended, with their losses."""
    wanted: tuple[RunSpec, ...]
    """The runs whose losses are needed next; none: the search is over."""
    best: RunSpec | None
    """The run with the lowest loss so far; None if no run has finished."""


def search_lr(spec: RunSpec, loss: Loss, grids: Mapping[str, Grid] = GRIDS) -> Search:
    """Search for the learning rate (and options) of ``spec``; a method without a grid keeps its own.

    >>> spec = RunSpec("digits", optimizer="sgdm", lr=0.1)
    >>> valley = lambda tried: abs(math.log10(tried.lr / 300))     # best: 300, beyond the grid
    >>> [run.lr for run, _ in search_lr(spec, valley).tried]
    [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 20.0, 50.0, 200.0, 500.0]
    >>> search_lr(spec, valley).best.lr
    200.0
    """
    grid = grids.get(spec.optimizer)
    if grid is None:
        return Search((), (), spec)
    points = [_at(spec, lr, options) for options in grid.options for lr in grid.lrs]
    state = _judge(points, loss)
    for _ in range(_MAX_EXTENSIONS):
        outside = None if state.wanted or state.best is None else _next_outside(state.best, points)
        if outside is None:
            break
        points.append(outside)
        state = _judge(points, loss)
    if state.wanted or state.best is None:
        return state
    fine = [_at(state.best, float(state.best.lr or 0) * factor, {}) for factor in grid.fine]
    return _judge(list(dict.fromkeys(points + fine)), loss)


def runs_to(best: RunSpec) -> int:
    """The number of runs of a search that ended at ``best``, if the loss rises monotonically away from it.

    >>> runs_to(RunSpec("digits", optimizer="sgdm", lr=0.5)), runs_to(RunSpec("digits", optimizer="adam", lr=0.05))
    (9, 22)
    """

    def loss(spec: RunSpec) -> float:
        return abs(math.log(spec.lr / best.lr)) + 1e-6 * (spec.opt != best.opt)

    return len(search_lr(best, loss).tried)


def _at(spec: RunSpec, lr: float, options: Mapping[str, Any]) -> RunSpec:
    return replace(spec, lr=float(f"{lr:.6g}"), opt={**spec.options, **options})


def _judge(points: list[RunSpec], loss: Loss) -> Search:
    losses = [(point, loss(point)) for point in points]
    tried = tuple((point, value if math.isfinite(value) else math.inf) for point, value in losses if value is not None)
    wanted = tuple(point for point, value in losses if value is None)
    best, least = min(tried, key=lambda pair: pair[1], default=(None, math.inf))
    return Search(tried, wanted, best if math.isfinite(least) else None)


def _next_outside(best: RunSpec, points: list[RunSpec]) -> RunSpec | None:
    """The next point outwards if ``best`` is at an edge of the learning rates tried with its options.

    The grids are 1, 5, 10, 50 … or 1, 10, 100 …: their ratios repeat with period two at most.
    """
    lrs = sorted(float(point.lr or 0) for point in points if point.opt == best.opt)
    if best.lr == lrs[-1]:
        return _at(best, lrs[-1] * lrs[-2] / lrs[-3], {})
    if best.lr == lrs[0]:
        return _at(best, lrs[0] * lrs[1] / lrs[2], {})
    return None
