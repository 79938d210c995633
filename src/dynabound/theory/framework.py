"""Algorithm 1 of the paper: a problem, and ``play()``, which runs a method on it readably.

Every method is a choice of φ (what to do with the gradients), ψ (what to scale them by), and whether the rate is
clipped between bounds::

    m_t = φ_t(g_1 … g_t),   v_t = ψ_t(g_1 … g_t)
    η_t = clip(α / √v_t, η_l(t), η_u(t)) / √t             (or without the √t: scheme="constant")
    x_{t+1} = Π_F(x_t − η_t·m_t),  the nearest point of F in the norm of diag(1/η_t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dynabound.theory.domains import Ball, Box, Domain, Floats
from dynabound.theory.methods import METHODS, PHI, PSI, Coefficients, Method, coefficients

__all__ = ["METHODS", "Ball", "Box", "Domain", "Method", "Problem", "Steps", "Trajectory", "play", "step_size"]

Steps: TypeAlias = NDArray[np.int64]


class Problem(Protocol):
    """A sequence of losses f_1, f_2, … on a domain; steps count from 1."""

    @property
    def domain(self) -> Domain: ...

    @property
    def start(self) -> Floats:
        """x_1."""

    @property
    def gradient_bound(self) -> float:
        """G₂, at least as large as ‖∇f_t(x)‖ for every t and every x of the domain."""

    def loss(self, t: int, x: Floats) -> float: ...

    def gradient(self, t: int, x: Floats) -> Floats: ...

    def best(self, steps: Steps) -> Floats:
        """The smallest f_1(x) + … + f_t(x) of any x in the domain, for every t in ``steps``."""


@dataclass(frozen=True)
class Trajectory:
    """What was recorded of a method on a problem at the steps ``at``; arrays have one row per recorded step."""

    problem: Problem
    method: Method
    steps: int
    """T."""
    at: Steps
    x: Floats
    """x_t, shape (n, d)."""
    loss: Floats
    """f_1(x_1) + … + f_t(x_t), shape (n,)."""
    rate: Floats
    """η_t, shape (n, d)."""
    last: Floats
    """x_{T+1}."""
    lowest: float
    """The smallest coordinate of all x_1 … x_{T+1}, recorded or not."""


def play(problem: Problem, method: Method, steps: int) -> Trajectory:
    """Run Algorithm 1 for ``steps`` steps and record all of them: the reference, in any dimension.

    >>> from dynabound.theory.problems import theorem_1
    >>> play(theorem_1(period=50), Method("SGD", alpha=0.1), steps=2).x.ravel()       # x₁, x₂
    array([0. , 0.1])
    """
    numbers = coefficients(method, steps)
    phi, psi = PHI[method.rule.phi], method.rule.psi
    x = problem.start.astype(np.float64)
    m = v = top = np.zeros_like(x)
    xs, rates, losses = np.empty((steps, x.size)), np.empty((steps, x.size)), np.empty(steps)
    for i in range(steps):
        t = i + 1
        g = problem.gradient(t, x)
        m = phi(m, g, float(numbers.beta1[i]))
        v = v + g * g if psi == "mean" else method.beta2 * v + (1 - method.beta2) * (g * g)
        top = np.maximum(top, v)
        rate = step_size(method, numbers, i, PSI[psi](v, top, t))
        xs[i], losses[i], rates[i] = x, problem.loss(t, x), rate
        x = problem.domain.project(x - rate * m, rate)
    at = np.arange(1, steps + 1)
    lowest = float(min(xs.min(), x.min()))
    return Trajectory(problem, method, steps, at, xs, np.cumsum(losses), rates, x, lowest)


def step_size(method: Method, numbers: Coefficients, i: int, scale: Floats) -> Floats:
    """η_t = clip(α/(√v_t + ε), η_l(t), η_u(t))/√t at t = i + 1, with 0/0 := 0 before the first nonzero gradient."""
    with np.errstate(divide="ignore"):
        rate = method.alpha * numbers.correction[i] / (np.sqrt(scale) + method.eps)
    rate = np.minimum(np.maximum(rate, numbers.lower[i]), numbers.upper[i])
    return np.where(np.isinf(rate), 0.0, rate / numbers.root[i])
