"""Regret, the right-hand sides of Theorem 4, its corollary and Theorem 5, and of the guarantee that holds.

All right-hand sides are functions of T and come as an array: entry T − 1 is the claim about the first T steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynabound import bounds as bound_functions
from dynabound._checks import check_positive, require
from dynabound.bounds import Bounds, Certificate
from dynabound.theory.framework import Floats, Steps, Trajectory
from dynabound.theory.methods import Method, coefficients


def regret(run: Trajectory, at: Steps | None = None) -> Floats:
    """R_t = f_1(x_1) + … + f_t(x_t) − min over x of f_1(x) + … + f_t(x), at the recorded steps, or some of them.

    >>> from dynabound.theory.framework import play
    >>> from dynabound.theory.problems import smallest_counterexample
    >>> run = play(*smallest_counterexample(steps=4), steps=4)
    >>> round(float(regret(run)[-1]), 3), float(theorem_4(run)[-1])
    (8.0, 7.0)
    """
    at = run.at if at is None else np.asarray(at)
    missing = np.setdiff1d(at, run.at)
    require(missing.size == 0, "at", missing.tolist(), "steps that the run has recorded")
    result: Floats = run.loss[np.searchsorted(run.at, at)] - run.problem.best(at)
    return result


def theorem_4(run: Trajectory) -> Floats:
    """D∞²√T/(2(1−β₁))·Σ_i 1/η̂_{T,i} + D∞²/(2(1−β₁))·Σ_t Σ_i β₁ₜ/η_{t,i} + (2√T−1)·R∞G₂²/(1−β₁).

    Theorem 5 says the same of AMSBound. (There the paper prints 1/η_{T,i} in the first sum. Without the hat the
    right-hand side would grow like T, and the paper itself calls it the same bound.)
    """
    inverse, momentum = _inverse_rates(run), _momentum_sum(run)
    # The first sum: √T/η̂_T = 1/η_T.
    return _total(run, inverse.sum(1) + momentum, coefficients(run.method, 1).upper[0])


def corollary(run: Trajectory) -> Floats:
    """Theorem 4 for β₁ₜ = β₁λ^(t−1): its middle term becomes β₁dD∞²/(2(1−β₁)(1−λ)²L∞)."""
    beta1, decay = run.method.beta1, run.method.beta1_decay
    legal = beta1 == 0 or (not isinstance(decay, str) and decay < 1)
    require(legal, "beta1_decay", decay, "a number λ < 1: the corollary is about β₁λ^(t−1)")
    inverse = _inverse_rates(run)
    smallest = coefficients(run.method, 1).lower[0]
    middle = beta1 * inverse.shape[1] / ((1 - float(decay)) ** 2 * smallest) if beta1 else 0.0
    return _total(run, inverse.sum(1) + middle, coefficients(run.method, 1).upper[0])


def corrected(run: Trajectory) -> Floats:
    """The guarantee that holds if β₁ₜ never increases (Savarese 2019, Theorem 3).

    ::

        D∞²/(2(1−β₁))·[2dM(√T−1) + Σ_i (1/η_{1,i} + Σ_t β₁ₜ/η_{t,i})] + (2√T−1)·R∞G₂²/(1−β₁)

    with M from :func:`dynabound.bounds.certificate` and R∞ the largest η_u(t), t ≤ T: the paper's η_u(1) would be
    too small for an η_u that rises. Infinite where no M exists.
    """
    inverse, method = _inverse_rates(run), run.method
    m = bound_functions.certificate(method.bounds, method.gamma, method.final_lr, run.steps).m
    # M does not matter at T = 1, where ∞·0 would be NaN.
    growth = np.where(run.at > 1, 2 * inverse.shape[1] * m * np.maximum(np.sqrt(run.at) - 1, 1e-300), 0.0)
    largest = np.maximum.accumulate(coefficients(method, run.steps).upper)
    return _total(run, growth + inverse[0].sum() + _momentum_sum(run), largest)


def decreases(run: Trajectory) -> NDArray[np.bool_]:
    """Where 1/η_{t,i} < 1/η_{t−1,i}, t = 2 … T: each is a place where the proof of Theorem 4 breaks."""
    inverse = _inverse_rates(run)
    # A constant rate must not count as decreasing because of rounding.
    return inverse[1:] < inverse[:-1] * (1 - 1e-14)


def _inverse_rates(run: Trajectory) -> Floats:
    require(
        run.method.components.clipped, "method", run.method.name, "AdaBound or AMSBound: the theorems are about them"
    )
    require(run.method.scheme == "sqrt", "scheme", run.method.scheme, "'sqrt': the theorems are about α/√t")
    require(run.at.size == run.steps, "at", run.at.size, f"a record of all {run.steps} steps (at=None)")
    return 1 / run.rate


def _momentum_sum(run: Trajectory) -> Floats:
    """Σ_{t≤T} Σ_i β₁ₜ/η_{t,i}."""
    return np.cumsum(coefficients(run.method, run.steps).beta1 * (1 / run.rate).sum(1))


def _total(run: Trajectory, inverse: Floats, largest: Any) -> Floats:
    """D∞²/(2(1−β₁))·``inverse`` + (2√T−1)·R∞G₂²/(1−β₁), where R∞ = ``largest``."""
    noise = (2 * np.sqrt(run.at) - 1) * largest * run.problem.gradient_bound**2
    total: Floats = (run.problem.domain.diameter**2 / 2 * inverse + noise) / (1 - run.method.beta1)
    return total


@dataclass(frozen=True)
class RegretCertificate(Certificate):
    """A certificate of bound functions, with the regret that it guarantees; see :func:`certificate`."""

    steps: int
    """T."""
    regret: float
    """No regret after T steps exceeds this, whatever the convex losses and α; infinite where there is no guarantee."""

    @property
    def average(self) -> float:
        """The guaranteed regret per step."""
        return self.regret / self.steps


def certificate(
    bounds: Bounds = "harmonic",
    gamma: float = 1e-3,
    final_lr: float = 0.1,
    *,
    steps: int,
    diameter: float,
    gradient_bound: float,
    dimension: int = 1,
    beta1: float = 0.0,
    beta1_decay: float | str = 1.0,
) -> RegretCertificate:
    """Check any bound functions: Theorem 4's assumptions, M, and the regret that is guaranteed after ``steps`` steps.

    The guarantee is :func:`corrected` with the smallest rates that the bounds allow, η̂_t = η_l(t), so that it needs
    no run and does not depend on α or β₂.

    >>> found = certificate("harmonic", gamma=0.5, final_lr=1.0, steps=10_000, diameter=2.0, gradient_bound=1.0)
    >>> found.m, found.regret
    (5.0, 2583.0)
    >>> certificate(("constant", 0.5, 2.0), steps=100, diameter=2.0, gradient_bound=1.0).regret
    inf
    """
    for name, value in (("diameter", diameter), ("gradient_bound", gradient_bound), ("dimension", dimension)):
        check_positive(name, value)
    require(0 <= beta1 < 1, "beta1", beta1, "in [0, 1)")
    found = bound_functions.certificate(bounds, gamma, final_lr, steps)
    # β₂ does not matter here; the largest float below 1 admits every β₁.
    method = Method("AdaBound", beta1=beta1, beta2=np.nextafter(1.0, 0), beta1_decay=beta1_decay,
                    bounds=bounds, gamma=gamma, final_lr=final_lr)  # fmt: skip
    numbers = coefficients(method, steps)
    if not found.guaranteed:
        return RegretCertificate(**vars(found), steps=steps, regret=np.inf)
    inverse = numbers.root / numbers.lower
    root = float(np.sqrt(steps))
    growth = 2 * found.m * (root - 1) + inverse[0] + (numbers.beta1 * inverse).sum()
    noise = (2 * root - 1) * found.largest_upper * gradient_bound**2 / (1 - beta1)
    bound = float(dimension * diameter**2 / (2 * (1 - beta1)) * growth + noise)
    return RegretCertificate(**vars(found), steps=steps, regret=bound)
