"""Bound functions: from the step to (lower, upper), as multiples of the final learning rate.

AdaBound clips every learning rate to [α*·l(t), α*·u(t)]. A family is named by a string, or by a tuple of a
string and numbers, so that it can live in a param group and in a checkpoint:

========================  ==========================================================  ====================
``bounds=``               l(t), u(t)                                                  at the end
========================  ==========================================================  ====================
``"harmonic"``            1 − 1/(γt+1),  1 + 1/(γt)                 (the paper's)     SGD as t → ∞
``"exponential"``         1 − exp(−γt),  1/(1 − exp(−γt))                             SGD as t → ∞
``"linear"``              min(1, γt),    max(1, 1/(γt))                               SGD at step 1/γ
``("constant", l, u)``    l, u                                                        (1, 1) SGD, (0, ∞) Adam
========================  ==========================================================  ====================

>>> from dynabound.bounds import evaluate
>>> evaluate("harmonic", gamma=0.001, step=1000)
(0.5, 2.0)
>>> evaluate(("constant", 0.0, math.inf), gamma=0.001, step=7)
(0.0, inf)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

from dynabound._checks import check_positive, require
from dynabound._drawing import html_table

__all__ = ["FAMILIES", "NEEDS", "Bounds", "Certificate", "RegretBound", "certificate", "check", "evaluate"]

BoundFunction: TypeAlias = "Callable[[Any], tuple[Any, Any]]"
Bounds: TypeAlias = "str | tuple[str, float, float] | BoundFunction"
"""A family's name, ``("constant", lower, upper)``, or a callable ``step -> (lower, upper)``."""


def _harmonic(x: Any) -> tuple[Any, Any]:
    # 1/(1 + 1/x) is 1 − 1/(x+1) without the cancellation that ruins it for small x = γt.
    upper = 1 + 1 / x
    return 1 / upper, upper


def _exponential(x: Any) -> tuple[Any, Any]:
    lower = -_expm1(-x)
    return lower, 1 / lower


def _linear(x: Any) -> tuple[Any, Any]:
    lower = at_most(x, 1.0)
    return lower, 1 / lower


def _expm1(x: Any) -> Any:
    if isinstance(x, Real):
        return math.expm1(x)
    return x.expm1() if hasattr(x, "expm1") else _functions(x).expm1(x)


def at_most(x: Any, limit: float) -> Any:
    """``min(x, limit)`` of numbers, arrays and tensors."""
    if isinstance(x, (float, Real)):  # float is first because the check for Real is slow
        return min(x, limit)
    return x.clamp(max=limit) if hasattr(x, "clamp") else _functions(x).minimum(x, limit)


def _functions(x: Any) -> Any:
    """The array functions of the library of ``x``: NumPy, JAX or TensorFlow. A torch tensor has them as methods."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    libraries = [cls.__module__.partition(".")[0] for cls in type(x).__mro__]
    if "tensorflow" in libraries:
        return sys.modules["tensorflow"].math
    return next(sys.modules[name] for name in libraries if hasattr(sys.modules[name], "expm1"))  # NumPy before 2


_GAMMA_FAMILIES = {"harmonic": _harmonic, "exponential": _exponential, "linear": _linear}
FAMILIES: tuple[str, ...] = (*_GAMMA_FAMILIES, "constant")
"""The names of the built-in families."""


def check(bounds: Any) -> None:
    """Raise unless ``bounds`` has one of the forms that this module knows.

    >>> check("cubic")
    Traceback (most recent call last):
    ...
    ValueError: bounds='cubic': must be 'harmonic', 'exponential', 'linear', ('constant', lower, upper) ...
    """
    allowed = (
        f"{', '.join(map(repr, _GAMMA_FAMILIES))}, ('constant', lower, upper) with 0 <= lower <= upper, "
        "or a callable step -> (lower, upper)"
    )
    if callable(bounds):
        return
    if not isinstance(bounds, (str, tuple, list)):
        raise TypeError(f"bounds={bounds!r}: must be {allowed}")
    if isinstance(bounds, str):
        legal = bounds in _GAMMA_FAMILIES
    else:
        numbers = bounds[1:]
        pair = len(bounds) == 3 and bounds[0] == "constant" and all(isinstance(n, Real) for n in numbers)
        legal = pair and 0 <= numbers[0] <= numbers[1] and math.isfinite(numbers[0])
    require(legal, "bounds", bounds, allowed)


def evaluate(bounds: Bounds, gamma: Any, step: Any) -> tuple[Any, Any]:
    """The lower and upper bound at ``step`` (counted from 1), as multiples of the final learning rate.

    ``gamma`` and ``step`` are numbers, or arrays or tensors of torch, JAX, TensorFlow or NumPy; the result is of the
    same kind, so that it can be captured in a graph. They are not checked, because every optimizer step calls this.

    >>> evaluate("linear", gamma=0.1, step=20)
    (1.0, 1.0)
    >>> evaluate(lambda t: (0.5, 1.0 + 1.0 / t), gamma=0.1, step=4)
    (0.5, 1.25)
    """
    if isinstance(bounds, str):
        if bounds not in _GAMMA_FAMILIES:
            check(bounds)
        return _GAMMA_FAMILIES[bounds](gamma * step)
    if not callable(bounds):
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 3 or bounds[0] != "constant":
            check(bounds)
        return bounds[1], bounds[2]
    lower, upper = bounds(step)
    # Values that are traced, or on an accelerator, cannot be checked.
    known = isinstance(step, Real) and isinstance(lower, Real) and isinstance(upper, Real)
    if known and not 0 <= lower <= upper:
        raise ValueError(
            f"bounds({step}) returned ({lower}, {upper}): a bound function must return 0 <= lower <= upper"
        )
    return lower, upper


NEEDS = (
    "convex losses on a bounded set (box)",
    "the step size α/√t (sqrt_decay=True), not the default constant one",
    "a β₁ₜ that never increases, such as a constant one",
)
"""What the regret guarantee needs besides the bounds."""

THEOREM_A, SAVARESE, THEOREM_C, TRIVIAL = "Theorem A", "Savarese 2019", "Theorem C", "trivial"
"""The regret bounds by name; docs/theory.md proves them."""


class RegretBound(NamedTuple):
    """What no regret exceeds, and which bound says so."""

    value: float
    name: str


@dataclass(frozen=True)
class Certificate:
    """What the theory says about a pair of bound functions; see :func:`certificate`."""

    lower_positive: bool
    """η_l(t) > 0 for every t."""
    lower_never_decreases: bool
    upper_never_increases: bool
    limits_agree: bool
    """η_l and η_u converge to the same final learning rate."""
    m: float
    """M = sup_t t/η_l(t) − (t−1)/η_u(t−1); infinite where no such constant exists."""
    checked_until: float
    """The last step checked: infinite for the built-in families, whose answer is exact."""
    largest_upper: float
    """R∞, the largest η_u(t)."""
    smallest_lower: float
    """L∞, the smallest η_l(t)."""
    limit: float
    """α*, the rate that both bounds approach."""
    kappa: float
    """κ = sup_t t·ρ_t, where no rate at step t differs from α* by more than ρ_t·α*; infinite where there is none."""

    @property
    def meets_theorem_4(self) -> bool:
        """Whether the assumptions that the paper's Theorem 4 makes on the bounds hold."""
        return self.lower_positive and self.lower_never_decreases and self.upper_never_increases and self.limits_agree

    @property
    def guaranteed(self) -> bool:
        """Whether AdaBound's and AMSBound's regret is O(√T): κ is finite, or M and R∞ are, and so the limits agree.

        It is about convex losses on a box, the step size α/√t (``sqrt_decay=True``) and a β₁ₜ that never increases,
        not about a constant step. Of a callable it says something about the first ``checked_until`` steps only: if its
        bounds do not converge fast enough, κ and M grow with that number.
        """
        by_m = self.lower_positive and math.isfinite(self.m) and math.isfinite(self.largest_upper)
        return self.limits_agree and (math.isfinite(self.kappa) or by_m)

    @property
    def guaranteed_amsbound(self) -> bool:
        """Whether AMSBound's regret is O(√T): also where Theorem C applies, however slowly the bounds close.

        Theorem C needs monotone bounds, and no bias corrections (``debias=False``).
        """
        return self.guaranteed or self._has_theorem_c

    @property
    def _has_theorem_c(self) -> bool:
        monotone = self.lower_never_decreases and self.upper_never_increases
        return monotone and self.smallest_lower > 0 and math.isfinite(self.largest_upper)

    def regret(
        self,
        steps: float,
        diameter: float = 2.0,
        gradient_bound: float = 1.0,
        *,
        dimension: int = 1,
        beta1: float = 0.0,
        amsbound: bool = False,
    ) -> RegretBound:
        """The best bound on the regret after ``steps`` steps, on a box with sides up to ``diameter``.

        ``amsbound`` adds Theorem C, which is about AMSBound without bias corrections.

        >>> certificate("harmonic", gamma=0.5, final_lr=1.0).regret(10_000)
        RegretBound(value=339.4..., name='Theorem A')
        """
        require(1 <= steps <= self.checked_until, "steps", steps, f"at least 1 and at most {self.checked_until:g}")
        problem = _Problem(dimension, diameter, gradient_bound, beta1 / (1 - beta1))
        bounds = [RegretBound(value(steps), name) for name, value in self._bounds(problem, amsbound).items()]
        return min([*bounds, RegretBound(problem.most * steps, TRIVIAL)])

    def useful_from(
        self,
        diameter: float = 2.0,
        gradient_bound: float = 1.0,
        *,
        dimension: int = 1,
        beta1: float = 0.0,
        amsbound: bool = False,
    ) -> float:
        """The T from which :meth:`regret` is better than the trivial √d·D·G·T; infinite if none was checked.

        >>> f"{certificate('harmonic', gamma=1e-3, final_lr=0.1).useful_from():,.0f}"
        '2,...'
        """
        problem = _Problem(dimension, diameter, gradient_bound, beta1 / (1 - beta1))
        first = min(_first_below(value, problem.most) for value in self._bounds(problem, amsbound).values())
        return first if first <= self.checked_until else math.inf

    def _bounds(self, problem: _Problem, amsbound: bool) -> dict[str, Callable[[float], float]]:
        """The bounds by name, as functions of T."""
        found = {THEOREM_A: problem.theorem_a(self.limit, self.kappa)}
        if self.lower_positive:
            found[SAVARESE] = problem.theorem_b(self.m, self.m / 2, self.largest_upper)
        if amsbound and self._has_theorem_c:
            found[THEOREM_C] = problem.theorem_b(1 / (2 * self.smallest_lower), 0.0, self.largest_upper)
        return found

    def _repr_html_(self) -> str:
        values = {**asdict(self), "meets_theorem_4": self.meets_theorem_4, "guaranteed": self.guaranteed}
        words = {True: "yes", False: "no"}
        rows = [[name, words[value] if isinstance(value, bool) else str(value)] for name, value in values.items()]
        if self.guaranteed:
            rows.append(["but only for", "; ".join(NEEDS)])
        return html_table("Certificate of the bounds", ["", ""], rows)


class _Problem(NamedTuple):
    """What a regret bound depends on besides the bound functions: d, D, G and b = β₁/(1−β₁)."""

    dimension: int
    diameter: float
    gradient_bound: float
    b: float

    @property
    def most(self) -> float:
        """P = √d·D·G, the most that a step can cost."""
        return math.sqrt(self.dimension) * self.diameter * self.gradient_bound

    def theorem_a(self, limit: float, kappa: float) -> Callable[[float], float]:
        """Theorem A with ρ_t = κ/t, its sums bounded by integrals from t₀ ≥ 1 to T."""
        b, most, noise = self.b, self.most, self.gradient_bound**2 * limit

        def cost(t: float) -> float:
            ratio = kappa / t
            return most * ratio + noise * (1 + ratio) * ((1 + ratio) / 2 + b) / math.sqrt(t)

        def integral(t: float) -> float:
            ratio = kappa / t
            return most * kappa * math.log(t) + noise * math.sqrt(t) * (1 + 2 * b - ratio * (2 + 2 * b + ratio / 3))

        start = _first(lambda t: cost(t) <= most)  # the best t₀
        if start == math.inf:
            return lambda steps: math.inf
        fixed = most * (start + 2 * b) - integral(start)
        weight = self.dimension * self.diameter**2 / (2 * limit)
        return lambda steps: weight * math.sqrt(steps) + fixed + integral(steps) if steps >= start else math.inf

    def theorem_b(self, slope: float, offset: float, largest_upper: float) -> Callable[[float], float]:
        """dD²·(``slope``·√T − ``offset``) + (1/2 + b)(2√T−1)·R∞G² + b·√d·D·G."""
        area, noise = self.dimension * self.diameter**2, (0.5 + self.b) * largest_upper * self.gradient_bound**2

        def value(steps: float) -> float:
            root = math.sqrt(steps)
            return area * (slope * root - offset) + noise * (2 * root - 1) + self.b * self.most

        return value if math.isfinite(slope + largest_upper) else lambda steps: math.inf


def _first_below(value: Callable[[float], float], most: float) -> float:
    """The T from which ``value(T)`` is below ``most``·T."""
    return _first(lambda steps: value(steps) < most * steps)


def _first(holds: Callable[[float], bool]) -> float:
    """The first step, up to rounding, at which ``holds`` is true and stays true; infinite if there is none."""
    high = 1.0
    while not holds(high):
        high *= 2
        if high > 1e300:
            return math.inf
    low = high / 2
    while high - low > max(1.0, 1e-15 * high):
        middle = low + (high - low) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def certificate(
    bounds: Bounds = "harmonic", gamma: float = 1e-3, final_lr: float = 0.1, steps: int = 100_000
) -> Certificate:
    """Check bound functions against the theory.

    The paper's Theorem 4 asks that η_l is positive and never decreases, that η_u never increases, and that both
    converge to the same rate. That is not enough: its proof needs 1/η_t to never decrease, which does not follow.
    The regret is O(√T) if both bounds are within a factor 1 ± κ/t of their limit (docs/theory.md, Theorem A), or if
    t/η_l(t) − (t−1)/η_u(t−1) ≤ M for every t and η_u ≤ R∞ (Savarese 2019, Theorem 3).

    For the built-in families the answer is exact and covers every t; a callable is examined at t = 1 … ``steps``
    and ``limits_agree`` then asks that the bounds are finite and within 1% of each other at the end.

    >>> found = certificate("harmonic", gamma=0.5, final_lr=1.0)
    >>> found.kappa, found.m                                         # 1/γ and 1 + 2/γ
    (2.0, 5.0)
    >>> certificate(("constant", 0.5, 2.0)).guaranteed
    False
    """
    check(bounds)
    check_positive("gamma", gamma)
    check_positive("final_lr", final_lr)
    if callable(bounds):
        return _examine(bounds, final_lr, steps)
    if isinstance(bounds, str):
        if not math.isfinite(final_lr * (1 + 2 / gamma) + (1 + 2 / gamma) / final_lr):
            message = f"gamma={gamma!r}, final_lr={final_lr!r}: the bounds overflow"
            raise ValueError(f"{message}; choose a larger gamma, or a final_lr nearer to 1")
        m, (lower, upper) = _FAMILY_M[bounds](gamma), evaluate(bounds, gamma, 1)
        # κ: t·ρ_t = t·(u(t) − 1) never rises in any of the families.
        ends = final_lr * upper, final_lr * lower, final_lr, upper - 1
        return Certificate(True, True, True, True, m / final_lr, math.inf, *ends)
    _, lower, upper = bounds
    positive, agree = lower > 0, lower == upper
    m, kappa = (1 / lower, 0.0) if positive and agree else (math.inf, math.inf)
    low, high = final_lr * lower, final_lr * upper
    return Certificate(positive, True, True, agree, m / final_lr, math.inf, high, low, low, kappa)


def _gap(bounds: Bounds, gamma: float, t: int) -> float:
    """t/l(t) − (t−1)/u(t−1)."""
    before = (t - 1) / evaluate(bounds, gamma, t - 1)[1] if t > 1 else 0.0
    lower = evaluate(bounds, gamma, t)[0]
    return float(t / lower - before) if lower > 0 else math.inf


def _linear_m(gamma: float) -> float:
    # The gap falls until the bounds meet at step 1/γ, has another form there, and is 1 from the next step on.
    meet = math.ceil(1 / gamma)
    return max(_gap("linear", gamma, t) for t in (1, meet, meet + 1, meet + 2))


def _exponential_m(gamma: float) -> float:
    # The gap 1 + t/(exp(γt)−1) + (t−1)·exp(−γ(t−1)) rises to a single peak before t = 1 + 1/γ, and then falls.
    low, high = 1, 2 + math.ceil(1 / gamma)
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        if _gap("exponential", gamma, left) < _gap("exponential", gamma, right):
            low = left
        else:
            high = right
    return max(_gap("exponential", gamma, t) for t in range(low, high + 1))


_FAMILY_M: dict[str, Callable[[float], float]] = {
    "harmonic": lambda gamma: 1 + 2 / gamma,
    "exponential": _exponential_m,
    "linear": _linear_m,
}


def _examine(bounds: BoundFunction, final_lr: float, steps: int) -> Certificate:
    require(steps >= 1, "steps", steps, ">= 1")
    pairs = [evaluate(bounds, 1.0, t) for t in range(1, steps + 1)]
    lowers, uppers = zip(*pairs, strict=True)
    before = [0.0, *(t / upper if upper > 0 else math.inf for t, upper in enumerate(uppers, 1))]
    m = max(t / lower - before[t - 1] if lower > 0 else math.inf for t, lower in enumerate(lowers, 1))
    limit = (lowers[-1] + uppers[-1]) / 2
    kappa = math.inf
    if 0 < limit < math.inf:
        kappa = max(t * max(upper / limit - 1, 1 - lower / limit) for t, (lower, upper) in enumerate(pairs, 1))
    return Certificate(
        lower_positive=min(lowers) > 0,
        lower_never_decreases=all(a <= b for a, b in pairwise(lowers)),
        upper_never_increases=all(a >= b for a, b in pairwise(uppers)),
        limits_agree=math.isfinite(limit) and uppers[-1] - lowers[-1] <= 0.01 * uppers[-1],
        m=m / final_lr,
        checked_until=steps,
        largest_upper=final_lr * max(uppers),
        smallest_lower=final_lr * min(lowers),
        limit=final_lr * limit,
        kappa=kappa,
    )
