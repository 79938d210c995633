"""Algorithm 1 of the paper: sets to project onto, a problem, and ``play()``, which runs a method on it readably.

Every method is a choice of φ (what to do with the gradients), ψ (what to scale them by), and whether the rate is
clipped between bounds::

    m_t = φ_t(g_1 … g_t),   v_t = ψ_t(g_1 … g_t)
    η_t = clip(α / √v_t, η_l(t), η_u(t)) / √t             (or without the √t: scheme="constant")
    x_{t+1} = Π_F(x_t − η_t·m_t),  the nearest point of F in the norm of diag(1/η_t)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dynabound._checks import check_positive, require
from dynabound.theory.methods import METHODS, PHI, PSI, Floats, Method, coefficients

__all__ = ["METHODS", "Ball", "Box", "Domain", "Floats", "Method", "Problem", "Steps", "Trajectory", "play"]

Steps: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Box:
    """{x : low ≤ x_i ≤ high}. Its weighted projection is a plain clip, whatever the weights.

    >>> Box(-1, 1).project(np.array([3.0, 0.5]), np.ones(2))
    array([1. , 0.5])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        legal = -math.inf < self.low < self.high < math.inf
        require(legal, "box", (self.low, self.high), "finite, with low < high: otherwise it is empty or a point")

    @property
    def diameter(self) -> float:
        """D∞, the largest distance between two points in one coordinate."""
        return self.high - self.low

    def project(self, y: Floats, rate: Floats) -> Floats:
        """The point x of the set with the smallest Σ (x_i − y_i)²/rate_i."""
        return np.minimum(np.maximum(y, self.low), self.high)  # a third of np.clip's time

    def lowest(self, slope: Floats) -> Floats:
        """The point x of the set with the smallest ⟨slope, x⟩."""
        return np.where(slope > 0, float(self.low), float(self.high))

    def reach(self, rows: Floats) -> Floats:
        """For every row a, the largest absolute value of ⟨a, x⟩ on the set."""
        ends = rows * self.low, rows * self.high
        reach: Floats = np.maximum(np.maximum(*ends).sum(-1), -np.minimum(*ends).sum(-1))
        return reach


@dataclass(frozen=True)
class Ball:
    """{x : ‖x‖ ≤ radius}, in the Euclidean norm.

    The projection in the norm of diag(1/η) is x_i = y_i/(1 + λη_i) with the λ ≥ 0 that puts x on the sphere.

    >>> Ball(1.0).project(np.array([3.0, 4.0]), np.array([1.0, 1.0]))
    array([0.6, 0.8])
    """

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project(self, y: Floats, rate: Floats) -> Floats:
        # A coordinate with rate 0 must not change; it only takes up part of the radius.
        free = rate > 0
        radius = math.sqrt(max(self.radius**2 - float(y[~free] @ y[~free]), 0.0))
        if np.linalg.norm(y[free]) <= radius:
            return y
        x = y.copy()
        x[free] = _shrink(y[free], rate[free] / rate.max(), radius)
        return x

    def lowest(self, slope: Floats) -> Floats:
        length = float(np.linalg.norm(slope))
        return -self.radius * slope / length if length > 0 else np.zeros_like(slope)

    def reach(self, rows: Floats) -> Floats:
        reach: Floats = self.radius * np.linalg.norm(rows, axis=-1)
        return reach


Domain: TypeAlias = Box | Ball
"""The sets F: convex, and with a projection."""


def _shrink(y: Floats, rate: Floats, radius: float) -> Floats:
    """Solve ‖y/(1 + λ·rate)‖ = radius < ‖y‖ for λ: Newton on 1/‖x‖ − 1/radius, kept inside a bracket."""
    if radius == 0:
        return np.zeros_like(y)
    excess = float(np.linalg.norm(y)) / radius - 1
    low, high = excess / rate.max(), excess / rate.min()
    multiplier = low
    for _ in range(200):
        x = y / (1 + multiplier * rate)
        norm = float(np.linalg.norm(x))
        if abs(norm - radius) <= 1e-15 * radius or high - low <= 1e-16 * high:
            break
        low, high = (multiplier, high) if norm > radius else (low, multiplier)
        multiplier += (norm / radius - 1) * norm**2 / float(x * x @ (rate / (1 + multiplier * rate)))
        if not low < multiplier < high:
            multiplier = math.sqrt(low) * math.sqrt(high)  # the bracket may span many powers of ten
    result: Floats = x * min(1.0, radius / norm)
    return result


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
    phi, psi = PHI[method.components.phi], method.components.psi
    x = problem.start.astype(np.float64)
    m = v = top = np.zeros_like(x)
    xs, rates, losses = np.empty((steps, x.size)), np.empty((steps, x.size)), np.empty(steps)
    for i in range(steps):
        t = i + 1
        g = problem.gradient(t, x)
        m = phi(m, g, float(numbers.beta1[i]))
        v = v + g * g if psi == "mean" else method.beta2 * v + (1 - method.beta2) * (g * g)
        top = np.maximum(top, v)
        with np.errstate(divide="ignore"):
            rate = method.alpha * numbers.correction[i] / (np.sqrt(PSI[psi](v, top, t)) + method.eps)
        rate = np.minimum(np.maximum(rate, numbers.lower[i]), numbers.upper[i])
        rate = np.where(np.isinf(rate), 0.0, rate / numbers.root[i])  # 0/0 := 0 before the first nonzero gradient
        xs[i], losses[i], rates[i] = x, problem.loss(t, x), rate
        x = problem.domain.project(x - rate * m, rate)
    at = np.arange(1, steps + 1)
    lowest = float(min(xs.min(), x.min()))
    return Trajectory(problem, method, steps, at, xs, np.cumsum(losses), rates, x, lowest)
