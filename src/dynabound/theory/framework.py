"""Algorithm 1 of the paper: methods, sets to project onto, problems, and ``play()``, which runs a method readably.

Every method is a choice of φ (what to do with the gradients), ψ (what to scale them by), and whether the rate is
clipped between bounds::

    m_t = φ_t(g_1 … g_t),   v_t = ψ_t(g_1 … g_t)
    η_t = clip(α / √v_t, η_l(t), η_u(t)) / √t             (or without the √t: scheme="constant")
    x_{t+1} = Π_F(x_t − η_t·m_t),  the nearest point of F in the norm of diag(1/η_t)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dynabound import _rule as rule
from dynabound import bounds as bound_functions
from dynabound._checks import check_choice, check_positive, require
from dynabound.bounds import Bounds

Steps: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Components(NamedTuple):
    """One column of Table 1."""

    phi: str
    psi: str
    clipped: bool = False


METHODS: dict[str, Components] = {
    "SGD": Components("gradient", "identity"),
    "SGDM": Components("sum", "identity"),
    "AdaGrad": Components("gradient", "mean"),
    "RMSprop": Components("gradient", "average"),
    "Adam": Components("average", "average"),
    "AMSGrad": Components("average", "maximum"),
    "AdaBound": Components("average", "average", clipped=True),
    "AMSBound": Components("average", "maximum", clipped=True),
}
"""The methods by name: φ, ψ, and whether the learning rate is clipped."""

PHI: dict[str, Callable[[Any, Any, float], Any]] = {
    "gradient": lambda m, g, beta1: g,
    "sum": lambda m, g, beta1: beta1 * m + g,
    "average": lambda m, g, beta1: beta1 * m + (1 - beta1) * g,
}
# From the sum (for "mean") or moving average v of the squares, the largest v so far, and t.
PSI: dict[str, Callable[[Any, Any, int], Any]] = {
    "identity": lambda v, top, t: np.ones_like(v),
    "mean": lambda v, top, t: v / t,
    "average": lambda v, top, t: v,
    "maximum": lambda v, top, t: top,
}
SCHEMES = ("sqrt", "constant")


@dataclass(frozen=True)
class Method:
    """A method with its numbers; ``name`` is a key of :data:`METHODS`.

    Args:
        name: "SGD", "SGDM", "AdaGrad", "RMSprop", "Adam", "AMSGrad", "AdaBound" or "AMSBound".
        alpha: α, the initial step size.
        beta1: β₁ (the momentum, for SGDM).
        beta2: β₂.
        beta1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        scheme: "sqrt" for α_t = α/√t, "constant" for α_t = α.
        final_lr: α*, where the bounds of AdaBound and AMSBound meet.
        gamma: γ, the speed at which they converge.
        bounds: a family of :mod:`dynabound.bounds`, or a callable, as in :class:`dynabound.AdaBound`.
        eps: added to √v_t.
        debias: apply Adam's bias corrections.

    >>> Method("AdaBound", alpha=0.1, final_lr=0.1, gamma=0.2).components
    Components(phi='average', psi='average', clipped=True)
    >>> Method("Adam", beta1=0.95, beta2=0.9)
    Traceback (most recent call last):
    ...
    ValueError: beta1=0.95: must be in [0, sqrt(beta2)) = [0, 0.948683) for beta2=0.9
    """

    name: str
    alpha: float = 0.1
    beta1: float = 0.0
    beta2: float = 0.9
    beta1_decay: float | str = 1.0
    scheme: str = "sqrt"
    final_lr: float = 0.1
    gamma: float = 1e-3
    bounds: Bounds = "harmonic"
    eps: float = 0.0
    debias: bool = False

    def __post_init__(self) -> None:
        check_choice("method", self.name, METHODS)
        for name in ("alpha", "final_lr", "gamma"):
            check_positive(name, getattr(self, name))
        rule.check("eps", self.eps)
        require(self.scheme in SCHEMES, "scheme", self.scheme, "'sqrt' (α/√t) or 'constant' (α)")
        check_betas(self.beta1, self.beta2, coupled=self.components.phi == "average")
        rule.check("beta1_decay", self.beta1_decay)
        bound_functions.check(self.bounds)
        if self.components.clipped and isinstance(self.bounds, str):
            bound_functions.certificate(self.bounds, self.gamma, self.final_lr)  # refuses those that overflow

    @property
    def components(self) -> Components:
        return METHODS[self.name]


def check_betas(beta1: float, beta2: float, coupled: bool = True) -> None:
    """Raise unless both are in [0, 1) and, if ``coupled``, β₁ < √β₂ (which β₁ = 0 always passes)."""
    require(0 <= beta2 < 1, "beta2", beta2, "in [0, 1)")
    require(0 <= beta1 < 1, "beta1", beta1, "in [0, 1)")
    root = math.sqrt(beta2)
    allowed = f"in [0, sqrt(beta2)) = [0, {root:g}) for beta2={beta2!r}"
    require(not coupled or beta1 == 0 or beta1 < root, "beta1", beta1, allowed)


class Coefficients(NamedTuple):
    """The coefficients of a method at t = 1 … T: everything that does not depend on the gradients."""

    beta1: Floats
    correction: Floats  # what debiasing multiplies α by
    lower: Floats  # η_l(t)
    upper: Floats  # η_u(t)
    root: Floats  # √t, or 1


def coefficients(method: Method, steps: int) -> Coefficients:
    """The coefficients of ``method`` for t = 1 … ``steps``; shared by all methods that differ in α, ε, φ or ψ only."""
    require(steps >= 1, "steps", steps, "at least 1")
    # Irrelevant fields are set to one value for the cache, which is small: a million steps take 40 MB.
    name = "AdaBound" if method.components.clipped else "SGD"
    return _coefficients(replace(method, name=name, alpha=1.0, eps=0.0), steps)


@lru_cache(maxsize=4)
def _coefficients(method: Method, steps: int) -> Coefficients:
    t = np.arange(1.0, steps + 1)
    ones = np.ones(steps)
    group = {**vars(method), "betas": (method.beta1, method.beta2), "sqrt_decay": False}
    lower, upper = bound_arrays(method, steps) if method.components.clipped else (0 * ones, np.inf * ones)
    numbers = rule.coefficients(_NUMPY, t, 1.0, 1.0, {**group, "bounds": ("constant", 0.0, 1.0)})
    root = np.sqrt(t) if method.scheme == "sqrt" else ones
    return Coefficients(ones * numbers.beta1, ones * numbers.step_size, lower, upper, root)


_NUMPY = SimpleNamespace(sqrt=np.sqrt, exp=np.exp, lgamma=np.vectorize(math.lgamma))


def bound_arrays(method: Method, steps: int) -> tuple[Floats, Floats]:
    """η_l(t) and η_u(t) for t = 1 … ``steps``."""
    if callable(method.bounds):
        pairs = [bound_functions.evaluate(method.bounds, method.gamma, t) for t in range(1, steps + 1)]
        lower, upper = np.array(pairs, dtype=np.float64).T
    else:
        t = np.arange(1.0, steps + 1)
        lower, upper = (
            np.broadcast_to(bound, (steps,)) for bound in bound_functions.evaluate(method.bounds, method.gamma, t)
        )
    return np.ascontiguousarray(method.final_lr * lower), np.ascontiguousarray(method.final_lr * upper)


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
