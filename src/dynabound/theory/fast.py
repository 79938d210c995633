"""Algorithm 1 for one-dimensional problems, compiled: many trajectories of millions of steps each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from dynabound._checks import require
from dynabound._extras import need
from dynabound.theory.framework import Method, Steps, Trajectory, coefficients
from dynabound.theory.problems import Line

numba = need("numba", "theory")

ProgressCallback: TypeAlias = "Callable[[int, int], None]"
"""Called with the number of finished trajectories and their total number."""

_PHI = {"gradient": 0, "sum": 1, "average": 2}
_PSI = {"identity": 0, "mean": 1, "average": 2, "maximum": 3}


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no writable directory for its cache
        return numba.njit(nogil=True)(function)


def simulate(
    lanes: Sequence[tuple[Line, Method]],
    steps: int,
    at: Steps | None = None,
    progress: ProgressCallback | None = None,
) -> list[Trajectory]:
    """Run every (problem, method) of ``lanes`` for ``steps`` steps, recording the steps ``at`` (None: all of them).

    >>> from dynabound.theory.problems import theorem_1
    >>> adam, sgd = simulate([(theorem_1(period=50), Method(name)) for name in ("Adam", "SGD")], steps=10_000)
    >>> adam.lowest >= 0, sgd.lowest >= 0
    (True, False)
    """
    require(steps >= 1, "steps", steps, "at least 1")
    at = np.arange(1, steps + 1) if at is None else np.unique(at)
    require(at.size == 0 or (at[0] >= 1 and at[-1] <= steps), "at", at, f"steps between 1 and {steps}")
    pool = ThreadPoolExecutor(os.cpu_count())
    runs = []
    try:
        for run in pool.map(lambda lane: _run(lane[0], lane[1], steps, at), lanes):
            runs.append(run)
            if progress is not None:
                progress(len(runs), len(lanes))
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt, do not start what is still queued
    return runs


def _run(problem: Line, method: Method, steps: int, at: Steps) -> Trajectory:
    x, loss, rate = np.empty((at.size, 1)), np.empty(at.size), np.empty((at.size, 1))
    last, lowest = _walk(
        problem.slopes,
        np.array([problem.left, problem.right, *problem.plateaus, problem.domain.low, problem.domain.high]),
        problem.x1,
        (_PHI[method.components.phi], _PSI[method.components.psi]),
        (method.alpha, method.beta2, method.eps),
        tuple(coefficients(method, steps)),
        at,
        x.ravel(),
        loss,
        rate.ravel(),
    )
    return Trajectory(problem, method, steps, at, x, loss, rate, np.array([last]), lowest)


@_compiled
def _walk(slopes, shape, x, rule, numbers, by_step, at, xs, losses, rates):  # type: ignore[no-untyped-def]
    left, right, value_left, value_right, low, high = shape
    phi, psi = rule
    alpha, beta2, eps = numbers
    beta1, correction, lower, upper, root = by_step
    m = v = top = total = 0.0
    lowest, recorded, phase = x, 0, 0
    for i in range(beta1.size):
        g = slopes[phase] if left <= x <= right else 0.0
        total += g * x if left <= x <= right else (value_left if x < left else value_right)
        phase = phase + 1 if phase + 1 < slopes.size else 0
        m = g if phi == 0 else beta1[i] * m + (g if phi == 1 else (1 - beta1[i]) * g)
        v = v + g * g if psi == 1 else beta2 * v + (1 - beta2) * (g * g)
        top = max(top, v)
        scale = 1.0 if psi == 0 else v / (i + 1) if psi == 1 else v if psi == 2 else top
        divisor = np.sqrt(scale) + eps
        rate = alpha * correction[i] / divisor if divisor > 0 else np.inf
        rate = min(max(rate, lower[i]), upper[i])
        rate = rate / root[i] if rate < np.inf else 0.0
        if recorded < at.size and at[recorded] == i + 1:
            xs[recorded], losses[recorded], rates[recorded] = x, total, rate
            recorded += 1
        x = min(max(x - rate * m, low), high)
        lowest = min(lowest, x)
    return x, lowest
