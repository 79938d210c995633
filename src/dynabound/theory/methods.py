"""Table 1's methods, AMSGrad, AdaBound and AMSBound as choices of φ, ψ and a clip; their coefficients at every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dynabound import _rule as rule
from dynabound import bounds as bound_functions
from dynabound._checks import check_choice, check_positive, require
from dynabound.bounds import Bounds

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
