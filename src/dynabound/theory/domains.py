"""Convex sets that can be projected onto, in the norm of diag(1/η): a box and a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dynabound._checks import check_positive, require

Floats: TypeAlias = NDArray[np.float64]


class Domain(Protocol):
    """A convex set F that can be projected onto."""

    @property
    def diameter(self) -> float:
        """D∞, the largest distance between two points in one coordinate."""

    def project(self, y: Floats, rate: Floats) -> Floats:
        """The point x of F with the smallest Σ (x_i − y_i)²/rate_i."""

    def lowest(self, slope: Floats) -> Floats:
        """The point x of F with the smallest ⟨slope, x⟩."""

    def reach(self, rows: Floats) -> Floats:
        """For every row a, the largest absolute value of ⟨a, x⟩ on F."""


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
        return self.high - self.low

    def project(self, y: Floats, rate: Floats) -> Floats:
        return np.minimum(np.maximum(y, self.low), self.high)  # a third of np.clip's time

    def lowest(self, slope: Floats) -> Floats:
        return np.where(slope > 0, float(self.low), float(self.high))

    def reach(self, rows: Floats) -> Floats:
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
