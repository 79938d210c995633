"""Regret, the right-hand sides of Theorems 4 and 5, and those of the theorems A, B and C, which hold (docs/theory.md).

All right-hand sides are functions of T and come as an array: entry T − 1 is the claim about the first T steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynabound import bounds as bound_functions
from dynabound._checks import check_positive, require
from dynabound.theory.framework import Box, Floats, Steps, Trajectory, coefficients


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


def savarese_bound(run: Trajectory) -> Floats:
    """The bound of Savarese (2019), Theorem 3, if β₁ₜ never increases.

    ::

        D∞²/(2(1−β₁))·[2dM(√T−1) + Σ_i (1/η_{1,i} + Σ_t β₁ₜ/η_{t,i})] + (2√T−1)·R∞G₂²/(1−β₁)

    with M from :func:`dynabound.bounds.certificate` and R∞ the largest η_u(t), t ≤ T: the paper's η_u(1) would be
    too small for an η_u that rises. Infinite where no M exists.
    """
    inverse, method = _inverse_rates(run), run.method
    m = bound_functions.certificate(method.bounds, method.gamma, method.final_lr, run.steps).m
    # M does not matter at T = 1, where ∞·0 would be NaN.
    growth = np.where(run.at > 1, 2 * inverse.shape[1] * m * np.maximum(np.sqrt(run.at) - 1, 1e-300), 0.0)
    return _total(run, growth + inverse[0].sum() + _momentum_sum(run), _largest_upper(run))


def rho(lower: Floats, upper: Floats, limit: float) -> Floats:
    """ρ_t = max(η_u(t)/α* − 1, 1 − η_l(t)/α*): the largest relative distance of a rate from its ``limit`` α*.

    >>> rho(np.array([0.05, 0.09]), np.array([0.3, 0.11]), limit=0.1).round(12)
    array([2. , 0.1])
    """
    distance: Floats = np.maximum(upper / limit - 1, 1 - lower / limit)
    return distance


def rho_bound(
    rho: Floats,
    *,
    limit: float,
    diameter: float,
    gradient_bound: float,
    dimension: int = 1,
    beta1: float | Floats = 0.0,
    sqrt_decay: bool = True,
) -> Floats:
    """Theorem A, for T = 1 … n: what no regret exceeds if each rate at step t is within a factor 1 ± ρ_t of s_t.

    With P = √d·D·G, s_t = α*/√t (or α*, without ``sqrt_decay``) and b_t = β₁ₜ/(1−β₁ₜ), it is P·T or, if that is less,
    the smallest over t₀ = 0 … T − 1 of::

        P·t₀ + dD²/(2s_T) + 2b_{t₀+1}·P + Σ_{t₀<t≤T} [P·ρ_t + G²·s_t(1+ρ_t)·((1+ρ_t)/2 + b_t)]

    Args:
        rho: ρ_1 … ρ_n, finite; for bound functions :func:`rho` computes them.
        limit: α*.
        diameter: D, the longest side of the box.
        gradient_bound: G, at least as large as the length of every gradient.
        dimension: d.
        beta1: β₁, or β₁₁ … β₁ₙ that never increase.
        sqrt_decay: whether rates are divided by √t.

    >>> t = np.arange(1.0, 1001)
    >>> rho_bound(1 / (0.5 * t), limit=1.0, diameter=2.0, gradient_bound=1.0)[[0, 99, 999]].round(3)
    array([  2.   ,  49.502, 123.82 ])
    """
    check_positive("limit", limit)
    require(bool(np.isfinite(rho).all()), "rho", rho, "finite")
    t = np.arange(1.0, rho.size + 1)
    step = limit / np.sqrt(t) if sqrt_decay else np.full(rho.size, limit)
    b = np.broadcast_to(np.divide(beta1, np.subtract(1.0, beta1)), t.shape)
    most = np.sqrt(dimension) * diameter * gradient_bound
    cost = most * rho + gradient_bound**2 * step * (1 + rho) * ((1 + rho) / 2 + b)
    total = np.cumsum(cost)
    # For every t₀ < T: what the first t₀ steps cost at the full price, less what they cost in ``total``.
    start = np.concatenate([[0.0], (most * t - total)[:-1]]) + 2 * b * most
    bound = dimension * diameter**2 / (2 * step) + total + np.minimum.accumulate(start)
    best: Floats = np.minimum(most * t, bound)
    return best


def theorem_a(run: Trajectory) -> Floats:
    """:func:`rho_bound` for the bound functions of a run on a box."""
    require(isinstance(run.problem.domain, Box), "domain", run.problem.domain, "a Box")
    numbers = coefficients(run.method, run.steps)
    limit = bound_functions.certificate(run.method.bounds, run.method.gamma, run.method.final_lr, run.steps).limit
    return rho_bound(
        rho(numbers.lower, numbers.upper, limit),
        limit=limit,
        diameter=run.problem.domain.diameter,
        gradient_bound=run.problem.gradient_bound,
        dimension=run.x.shape[1],
        beta1=numbers.beta1,
        sqrt_decay=run.method.scheme == "sqrt",
    )


def theorem_b(run: Trajectory) -> Floats:
    """What holds for any rates and any β₁ₜ that never increases, on any convex set; b = β₁/(1−β₁).

    ::

        D²/2·Σ_i (1/η_{T,i} + Σ_{t=2..T} (1/η_{t−1,i} − 1/η_{t,i})₊) + (1/2 + b)(2√T−1)·R∞G² + b·√d·D·G
    """
    return _with_momentum(run, run.problem.domain.diameter**2 / 2 * (_inverse_rates(run) + _falls(run)).sum(1))


def theorem_c(run: Trajectory) -> Floats:
    """Theorem 5 repaired, for AMSBound: Theorem B with √T/min_{t≤T} η̂_{t,i} in place of what stands in brackets."""
    method = run.method
    require(method.name == "AMSBound" and not method.debias, "method", method, "AMSBound without debias")
    root = np.sqrt(run.at)[:, None]
    largest = np.maximum.accumulate(_inverse_rates(run) / root)  # 1/min η̂
    return _with_momentum(run, run.problem.domain.diameter**2 / 2 * (root * largest).sum(1))


def correction(run: Trajectory) -> Floats:
    """D∞²/(2(1−β₁))·Σ_i Σ_{t=2..T} (1/η_{t−1,i} − 1/η_{t,i})₊: added to its right-hand side, Theorem 4 holds."""
    added: Floats = run.problem.domain.diameter**2 / (2 * (1 - run.method.beta1)) * _falls(run).sum(1)
    return added


def _falls(run: Trajectory) -> Floats:
    """Σ_{t≤T} (1/η_{t−1,i} − 1/η_{t,i})₊, one column per coordinate."""
    inverse = _inverse_rates(run)
    falls = np.maximum(-np.diff(inverse, axis=0, prepend=inverse[:1]), 0.0)
    return np.cumsum(falls, axis=0)


def _largest_upper(run: Trajectory) -> Floats:
    """R∞ of the first T steps: the largest η_u(t), which may rise."""
    largest: Floats = np.maximum.accumulate(coefficients(run.method, run.steps).upper)
    return largest


def _with_momentum(run: Trajectory, distance: Floats) -> Floats:
    """``distance`` + (1/2 + b)(2√T−1)·R∞G² + b·√d·D·G."""
    g, b = run.problem.gradient_bound, run.method.beta1 / (1 - run.method.beta1)
    noise = (0.5 + b) * (2 * np.sqrt(run.at) - 1) * _largest_upper(run) * g**2
    total: Floats = distance + noise + b * np.sqrt(run.x.shape[1]) * run.problem.domain.diameter * g
    return total


def that_hold(run: Trajectory) -> dict[str, Floats]:
    """Every right-hand side that holds for a convex problem, if η_l never falls and η_u never rises."""
    found = {
        "Theorem B": theorem_b(run),
        "Theorem 4 with the correction term": theorem_4(run) + correction(run),
        "Savarese's bound": savarese_bound(run),
    }
    if isinstance(run.problem.domain, Box):
        found["Theorem A"] = theorem_a(run)
    if run.method.name == "AMSBound":
        found["Theorem C"] = theorem_c(run)
    return found


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
