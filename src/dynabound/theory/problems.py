"""The theorems' problems, the counterexamples, and seeded random convex problems, each with its exact comparator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynabound._checks import check_choice, require
from dynabound.theory.framework import Box, Domain, Floats, Method, Steps, check_betas


@dataclass(frozen=True, eq=False)
class Line:
    """A problem in one dimension: f_t(x) = slopes[t−1]·x, repeated periodically.

    Outside [left, right] the loss is constant: ``plateaus``.

    >>> line = Line(Box(-1, 1), slopes=np.array([3.0, -1.0]))
    >>> line.loss(3, np.array([0.5])), line.best(np.array([1, 2, 3]))
    (1.5, array([-3., -2., -5.]))
    """

    domain: Box
    slopes: Floats
    x1: float = 0.0
    left: float = -math.inf
    right: float = math.inf
    plateaus: tuple[float, float] = (0.0, 0.0)

    @property
    def start(self) -> Floats:
        return np.array([self.x1])

    @property
    def gradient_bound(self) -> float:
        return float(np.abs(self.slopes).max())

    def loss(self, t: int, x: Floats) -> float:
        if x[0] < self.left:
            return self.plateaus[0]
        if x[0] > self.right:
            return self.plateaus[1]
        return float(self.slopes[(t - 1) % self.slopes.size] * x[0])

    def gradient(self, t: int, x: Floats) -> Floats:
        inside = self.left <= x[0] <= self.right
        return np.array([self.slopes[(t - 1) % self.slopes.size] if inside else 0.0])

    def best(self, steps: Steps) -> Floats:
        cycles, rest = np.divmod(steps, self.slopes.size)
        sums = np.concatenate([[0.0], np.cumsum(self.slopes)])
        total = cycles * sums[-1] + sums[rest]
        ends = max(self.left, self.domain.low), min(self.right, self.domain.high)
        best: Floats = np.minimum(total * ends[0], total * ends[1])
        if self.domain.low < self.left:
            best = np.minimum(best, self.plateaus[0] * steps)
        if self.domain.high > self.right:
            best = np.minimum(best, self.plateaus[1] * steps)
        return best


MAX_PERIOD = 10_000_000
"""The largest C: a period is C steps, and a demonstration needs several."""


def _smallest(condition: Callable[[Any], Any], first: int, stride: int, name: str) -> int:
    """The smallest of first, first + stride, … that meets ``condition``, which holds for all large enough numbers."""
    block = 4096 * stride
    for start in range(first, MAX_PERIOD, block):
        candidates = np.arange(start, start + block, stride)
        meets = condition(candidates.astype(np.float64))
        if meets.any():
            return int(candidates[meets.argmax()])
    raise ValueError(
        f"{name}: the theorem allows no C up to {MAX_PERIOD:,}, the largest that is run; give C, or smaller betas"
    )


def _check_period(period: int, least: int, even: bool = False) -> None:
    legal = least <= period <= MAX_PERIOD and not (even and period % 2)
    require(legal, "C", period, f"an{' even' * even} integer >= {least} and <= {MAX_PERIOD:,}")


def theorem_1_condition(period: Any, beta2: float) -> Any:
    """5·β₂^(C−2) ≤ (1−β₂)/(4−β₂)."""
    return 5 * beta2 ** (period - 2) <= (1 - beta2) / (4 - beta2)


def theorem_1_period(beta2: float) -> int:
    """The smallest C that Theorem 1 allows.

    >>> [theorem_1_period(beta2) for beta2 in (0.9, 0.99, 0.999)]
    [50, 730, 9614]
    """
    check_betas(0.0, beta2)
    return _smallest(lambda period: theorem_1_condition(period, beta2), first=3, stride=1, name=f"beta2={beta2!r}")


def theorem_1(period: int) -> Line:
    """Theorem 1: on [−2, 2] the loss is −100 left of 0 and 0 right of 1; between them −x, 2x, then 0 for C − 2 steps.

    x < 0 is optimal. Note that f_t is neither convex nor continuous, although the paper speaks of convex functions.
    """
    _check_period(period, least=3)
    slopes = np.concatenate([[-1.0, 2.0], np.zeros(period - 2)])
    return Line(Box(-2, 2), slopes, left=0.0, right=1.0, plateaus=(-100.0, 0.0))


def theorem_2_condition(period: Any, beta1: float, beta2: float) -> Any:
    """The three inequalities of Theorem 2, with γ = β₁/√β₂."""
    ratio = beta1 / math.sqrt(beta2) if beta2 else 0.0
    first = (1 - beta1) * beta1 ** (period - 1) * period <= 1 - beta1 ** (period - 1)
    second = beta2 ** ((period - 2) / 2) * period**2 <= 1
    series = 1 + ratio * (1 - ratio ** (period - 1)) / (1 - ratio) if ratio < 1 else period  # β₁/√β₂ may round to 1
    third = 3 * (1 - beta1) / (2 * math.sqrt(1 - beta2)) * series + beta1 ** (period / 2 - 1) / (1 - beta1) < period / 3
    return first & second & third


def theorem_2_period(beta1: float, beta2: float) -> int:
    """The smallest even C that Theorem 2 allows.

    >>> theorem_2_period(0.9, 0.999), theorem_2_period(0.9, 0.99), theorem_2_period(0.0, 0.5)
    (42622, 3218, 20)
    """
    check_betas(beta1, beta2)
    name = f"beta1={beta1!r}, beta2={beta2!r}"
    return _smallest(lambda period: theorem_2_condition(period, beta1, beta2), first=2, stride=2, name=name)


def theorem_2(period: int) -> Line:
    """Theorem 2: on [−1, 1] the loss is C·x once every C steps and −x otherwise; x = −1 is optimal."""
    _check_period(period, least=2, even=True)
    return Line(Box(-1, 1), np.concatenate([[float(period)], -np.ones(period - 1)]))


def theorem_3_condition(period: Any, beta1: float, beta2: float, delta: float = 1.0) -> Any:
    """Whether C is so large that Adam's expected step provably points away from x* = −1, at every t.

    The paper asks for "a large constant C" without a formula; this one is sufficient. With p = (1+δ)/(C+1) and
    γ = β₁/√β₂, Jensen's inequality for 1/√v and |β₁ⁱC|/√(β₂ⁱC²) = γⁱ give E[step] ≥ 0 if::

        (1−p)/√(β₂(pC² + 1−p) + 1−β₂) ≥ p/√(1−β₂) + β₁·p/(√(β₂(1−β₂))·(1−γ))
    """
    p = (1 + delta) / (period + 1)
    ratio = beta1 / math.sqrt(beta2) if beta2 else 0.0
    away = (1 - p) / np.sqrt(beta2 * (p * period**2 + 1 - p) + 1 - beta2)
    back = p / math.sqrt(1 - beta2)
    if beta1:
        back = back + beta1 * p / (math.sqrt(beta2 * (1 - beta2)) * max(1 - ratio, 1e-300))
    return (p < 1) & (away >= back)


def theorem_3(period: int, steps: int, seed: int, delta: float = 1.0) -> Line:
    """Theorem 3: on [−1, 1] the loss is C·x with probability (1+δ)/(C+1), and −x otherwise.

    The expected loss is δ·x, so x = −1 is optimal.
    """
    _check_period(period, least=2)
    require(0 < delta < period, "delta", delta, f"in (0, C) = (0, {period}), so that (1+delta)/(C+1) is a probability")
    require(steps >= 1, "steps", steps, "at least 1")
    rare = np.random.default_rng(seed).random(steps) < (1 + delta) / (period + 1)
    return Line(Box(-1, 1), np.where(rare, float(period), -1.0))


def smallest_counterexample(
    steps: int,
    name: str = "AdaBound",
    alpha: float = 1e-6,
    beta2: float = 0.9,
    beta1: float = 0.0,
    beta1_decay: float = 1.0,
) -> tuple[Line, Method]:
    """Theorem 4 is false here: f_t(x) = x on [−1, 1] from x₁ = 1, with η_u = 1 and η_l = 10⁻⁶ for t < T, then 1.

    x hardly moves before T, so R_T ≈ 2T; but the right-hand side depends only on the last rate, and is 4√T − 1.
    """
    require(steps >= 1, "steps", steps, "at least 1")
    bounds = _Open(steps, 1e-6, 1.0)
    method = Method(name, alpha, beta1, beta2, beta1_decay, final_lr=1.0, bounds=bounds)
    return Line(Box(-1, 1), np.ones(1), x1=1.0), method


@dataclass(frozen=True)
class _Open:
    """Bounds that are 1 from step ``until`` on; a value, so that equal ones share their coefficients."""

    until: int
    lower: float
    upper: float

    def __call__(self, t: int) -> tuple[float, float]:
        return (self.lower, self.upper) if t < self.until else (1.0, 1.0)


def savarese(
    steps: int, seed: int, name: str = "AdaBound", alpha: float = 0.266, period: int = 10, beta2: float = 0.5
) -> tuple[Line, Method]:  # fmt: skip
    """Savarese (2019), Corollary 1: Theorem 3's problem with η_l = α/C, and η_u = α/√(1−β₂) until T, then α/C."""
    _check_period(period, least=2)
    check_betas(0.0, beta2)
    bounds = _Open(steps + 1, 1.0, period / math.sqrt(1 - beta2))
    method = Method(name, alpha=alpha, beta2=beta2, final_lr=alpha / period, bounds=bounds)
    return theorem_3(period, steps, seed), method


@dataclass(frozen=True)
class _Slow:
    """1 ± t^−decay/2; a value, so that equal ones share their coefficients."""

    decay: float

    def __call__(self, t: int) -> tuple[float, float]:
        half = 0.5 * t**-self.decay
        return 1 - half, 1 + half


def slow_bounds(steps: int, decay: float, name: str = "AdaBound") -> tuple[Line, Method]:
    """AdaBound's regret grows like T^(1−a) here, a = ``decay``; the bounds 1 ± t^−a/2 meet Theorem 4's conditions.

    On [−1, 1], every sixth gradient is 1 and has the rate η_l. The five between are −2η_l/(5(η_l + η_u)) and have the
    rate η_u: each period leads back to x = 1, but its gradients add up to (η_u − η_l)/(η_u + η_l) > 0.
    """
    half = 0.5 * np.arange(1.0, steps + 1) ** -decay
    slopes = (half - 1) / 5  # 2η_l/(η_l + η_u) = 1 − half
    slopes[::6] = 1.0
    method = Method(name, alpha=0.5 * math.sqrt(0.9), beta2=0.1, final_lr=1.0, bounds=_Slow(decay))
    return Line(Box(-1, 1), slopes, x1=1.0), method


def random_game(rng: np.random.Generator, steps: int) -> tuple[Line, dict[str, Any]]:
    """A line with gradients up to 1, and numbers for a method whose guarantee there is not trivial."""
    period = int(rng.integers(1, 21))
    slopes = (
        rng.normal(size=steps),
        np.resize(rng.normal(size=period), steps),
        np.where(np.arange(steps) % period == 0, 1.0, -rng.random() / period),
        np.where(rng.random(steps) < 0.1, 1.0, -0.1 * rng.random()),
    )[rng.integers(4)]
    decays: tuple[float | str, ...] = (1.0, 0.9, "harmonic")
    numbers: dict[str, Any] = dict(
        alpha=10 ** rng.uniform(-3, 1),
        beta1=float(rng.choice([0.0, 0.5, 0.9])),
        beta2=float(rng.choice([0.9, 0.99, 0.999])),
        beta1_decay=decays[rng.integers(3)],
        gamma=10 ** rng.uniform(-1, 1),
        final_lr=10 ** rng.uniform(-1, 0.5),
        bounds=("harmonic", "exponential", "linear")[rng.integers(3)],
    )
    return Line(Box(-1, 1), slopes / np.abs(slopes).max(), x1=float(rng.choice([-1, 0, 1]))), numbers


@dataclass(frozen=True, eq=False)
class Stream:
    """A convex problem in d dimensions: f_t(x) = h(⟨a_t, x⟩, b_t) for the rows a_t and targets b_t.

    ``kind`` is "linear" (h = z), "least squares" (h = (z−b)²/2) or "logistic" (h = log(1 + exp(−bz))).
    """

    kind: str
    domain: Domain
    rows: Floats
    targets: Floats

    @property
    def start(self) -> Floats:
        return np.zeros(self.rows.shape[1])

    @property
    def gradient_bound(self) -> float:
        """G₂: ‖a_t‖ times the largest slope that h can have on the domain."""
        slope = self.domain.reach(self.rows) + np.abs(self.targets) if self.kind == "least squares" else 1.0
        return float((slope * np.linalg.norm(self.rows, axis=1)).max())

    def loss(self, t: int, x: Floats) -> float:
        return float(_value(self.kind, self.rows[t - 1] @ x, self.targets[t - 1]))

    def gradient(self, t: int, x: Floats) -> Floats:
        a = self.rows[t - 1]
        gradient: Floats = a * _slope(self.kind, a @ x, self.targets[t - 1])
        return gradient

    def best(self, steps: Steps) -> Floats:
        return np.array([self._total(int(t), self.comparator(int(t))) for t in steps])

    def _total(self, t: int, x: Floats) -> float:
        return float(_value(self.kind, self.rows[:t] @ x, self.targets[:t]).sum())

    def comparator(self, t: int) -> Floats:
        """x*, the best point of the domain for f_1 + … + f_t.

        Exact for linear losses. Otherwise accelerated projected gradients, until the duality gap
        max over s of ⟨∇F(x), x − s⟩ ≥ F(x) − F(x*) proves the value right to 1e-10 of the losses' scale.
        """
        rows, targets = self.rows[:t], self.targets[:t]
        if self.kind == "linear":
            return self.domain.lowest(rows.sum(0))
        curvature = float(np.linalg.eigvalsh(rows.T @ rows)[-1]) * (1.0 if self.kind == "least squares" else 0.25)
        ones = np.ones(rows.shape[1])
        x = ahead = self.start
        momentum = 1.0
        for _ in range(100_000):
            slope = rows.T @ _slope(self.kind, rows @ ahead, targets)
            if slope @ (ahead - self.domain.lowest(slope)) <= 1e-10 * t:
                return ahead
            new = self.domain.project(ahead - slope / curvature, ones)
            if slope @ (new - x) > 0:  # the momentum points uphill: restart it
                momentum = 1.0
            grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = self.domain.project(new + (momentum - 1) / grown * (new - x), ones)
            x, momentum = new, grown
        raise ArithmeticError(f"no comparator for {self.kind} at t={t} within 100,000 iterations")


def _value(kind: str, z: Any, b: Any) -> Any:
    if kind == "linear":
        return z
    return (z - b) ** 2 / 2 if kind == "least squares" else np.logaddexp(0.0, -b * z)


def _slope(kind: str, z: Any, b: Any) -> Any:
    if kind == "linear":
        return np.ones_like(z)
    return z - b if kind == "least squares" else -b / (1 + np.exp(np.minimum(b * z, 700.0)))


KINDS = ("linear", "sparse", "least squares", "logistic")
"""The random problems; "sparse" is linear with nine of ten gradient entries zero."""


def random_problem(kind: str, seed: int, steps: int, dimension: int = 5, domain: Domain | None = None) -> Stream:
    """A seeded random convex problem of one of the :data:`KINDS`, on [−1, 1]^d unless ``domain`` is given.

    The coordinates' scales are spread over two powers of ten, so that adaptive rates differ between them.

    >>> problem = random_problem("least squares", seed=0, steps=50)
    >>> problem.domain, problem.rows.shape
    (Box(low=-1, high=1), (50, 5))
    """
    check_choice("kind", kind, KINDS)
    require(steps >= 1, "steps", steps, "at least 1")
    require(dimension >= 1, "dimension", dimension, "at least 1")
    rng = np.random.default_rng(seed)
    rows = rng.normal(rng.normal(size=dimension) / 3, 1.0, (steps, dimension)) * 10 ** rng.uniform(-2, 0, dimension)
    if kind == "sparse":
        rows *= rng.random(rows.shape) < 0.1
    targets = rows @ rng.normal(size=dimension) + 0.1 * rng.normal(size=steps)
    if kind == "logistic":
        targets = np.where(targets > 0, 1.0, -1.0)
    name = "linear" if kind == "sparse" else kind
    return Stream(name, domain or Box(-1, 1), rows, targets)
