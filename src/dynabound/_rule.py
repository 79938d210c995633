"""What torch, Optax, Keras and the theory share: the table of hyper-parameters, and the numbers of one update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from dynabound import bounds
from dynabound._checks import check_number

__all__ = ["DEFAULTS", "Coefficients", "check", "check_arguments", "coefficients", "peak"]


class _Legal(NamedTuple):
    test: Callable[[float], bool]
    allowed: str


_RATE = _Legal(lambda x: 0 <= x < math.inf, "a finite number >= 0")
_POSITIVE = _Legal(lambda x: 0 < x < math.inf, "a finite number > 0")
_BETA = _Legal(lambda x: 0 <= x < 1, "a number in [0, 1)")
_DECAY = _Legal(lambda x: 0 < x <= 1, "a number in (0, 1] (λ of β₁λ^(t−1)), or 'harmonic' (β₁/t)")

_LEGAL = {
    # torch's name, and the names in Optax and Keras
    **dict.fromkeys(("lr", "learning_rate"), _RATE),
    **dict.fromkeys(("final_lr", "final_learning_rate"), _RATE),
    **dict.fromkeys(("base_lr", "base_learning_rate"), _POSITIVE),
    **dict.fromkeys(("beta1", "b1", "beta_1"), _BETA),
    **dict.fromkeys(("beta2", "b2", "beta_2"), _BETA),
    **dict.fromkeys(("beta1_decay", "beta_1_decay"), _DECAY),
    **dict.fromkeys(("eps", "epsilon"), _RATE),
    "gamma": _POSITIVE,
    "weight_decay": _RATE,
    "release": _RATE,
}
DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "final_lr": 0.1,
    "gamma": 1e-3,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsbound": False,
    "bounds": "harmonic",
    "decoupled_weight_decay": False,
    "maximize": False,
    "foreach": None,
    "fused": None,
    "capturable": False,
    "differentiable": False,
    "debias": True,
    "sqrt_decay": False,
    "beta1_decay": 1.0,
    "box": None,
    "state_dtype": None,
    "rounding": "nearest",
    "release": None,
}
"""The hyper-parameters under torch's names. Optax and Keras have the same defaults for those that they share."""


def check(name: str, value: Any) -> Any:
    """``value`` as a float ("harmonic" stays as it is); raises unless it is legal for this hyper-parameter.

    >>> check("beta1", 1.0)
    Traceback (most recent call last):
    ...
    ValueError: beta1=1.0: must be a number in [0, 1)
    """
    if _LEGAL[name] is _DECAY and isinstance(value, str) and value == "harmonic":
        return value
    return check_number(name, value, *_LEGAL[name])


def check_arguments(**values: Any) -> None:
    """Check hyper-parameters of Optax and Keras; schedules and traced arrays cannot be checked, and pass."""
    for name, value in values.items():
        if value is None or isinstance(value, (bool, str, Real)):
            check(name, value)


class Coefficients(NamedTuple):
    """The numbers that distinguish one update from another."""

    step_size: Any  # α, with the bias corrections, over √t under sqrt_decay
    lower: Any  # η_l(t)
    upper: Any  # η_u(t)
    beta1: Any  # β₁ₜ


def coefficients(
    xp: Any, t: Any, lr: Any, final_lr: Any, group: Mapping[str, Any], largest: float = math.inf
) -> Coefficients:
    """The numbers of the ``t``-th update, counted from 1.

    Args:
        xp: the functions sqrt, exp, expm1, log and lgamma of the library of ``t``: math, torch or a namespace.
        t: a number or an array.
        lr: α.
        final_lr: α*, scaled by the schedule.
        group: ``betas``, ``gamma``, ``bounds``, ``debias``, ``sqrt_decay`` and ``beta1_decay``. They may be traced.
        largest: the largest finite number of the dtype. An upper bound of infinity (Adam) becomes this, because
            ∞ · 0 is NaN.
    """
    beta1, beta2 = group["betas"]
    beta1_t, correction1 = _first_moment(xp, t, beta1, group["beta1_decay"])
    step_size = lr
    if group["debias"]:
        step_size = lr * xp.sqrt(_one_minus_power(xp, beta2, t)) / correction1
    lower, upper = bounds.evaluate(group["bounds"], group["gamma"], t)
    lower, upper = lower * final_lr, bounds.at_most(upper, largest) * final_lr
    if group["sqrt_decay"]:
        root = xp.sqrt(t)
        step_size, lower, upper = step_size / root, lower / root, upper / root
    step_size, lower, upper = [bounds.at_most(rate, largest) for rate in (step_size, lower, upper)]
    return Coefficients(step_size, lower, upper, beta1_t)


def _first_moment(xp: Any, t: Any, beta1: Any, decay: Any) -> tuple[Any, Any]:
    """β₁ₜ, and the bias correction 1 − β₁₁·…·β₁ₜ of the first moment."""
    if isinstance(decay, str):  # "harmonic"
        return beta1 / t, _one_minus_power(xp, beta1, t, -xp.lgamma(t + 1.0))
    if isinstance(decay, (int, float)) and decay == 1:
        return beta1, _one_minus_power(xp, beta1, t)
    return beta1 * decay ** (t - 1), _one_minus_power(xp, beta1, t, _log(xp, decay) * t * (t - 1) / 2)


def _one_minus_power(xp: Any, base: Any, t: Any, log_factor: Any = None) -> Any:
    """1 − baseᵗ·exp(log_factor)."""
    if not isinstance(t, int) and "float32" in str(t.dtype):  # where the difference would lose four digits
        exponent = t * _log(xp, base)
        return -xp.expm1(exponent if log_factor is None else exponent + log_factor)
    power = base**t
    return 1 - (power if log_factor is None else power * xp.exp(log_factor))


def _log(xp: Any, x: Any) -> Any:
    # In float64 for a Python number: 0.999 in float32 has an error of a hundred-thousandth of 1 − 0.999.
    if isinstance(x, Real):
        return math.log(x) if x else -math.inf
    return xp.log(x)


def peak(schedule: Callable[[int], Any]) -> float:
    """The largest value of a schedule in its first 2²¹ steps, counted from 0.

    Exact for a schedule that rises at every step up to its peak and never again: warm-ups, decays, one cycle. If there
    are several maxima, it may miss the largest.

    >>> peak(lambda step: min(step / 300, 1.0) * 0.999**step)
    0.740...
    """
    values = {step: float(schedule(step)) for step in (0, *(2**k for k in range(22)))}
    best = max(values, key=values.__getitem__)
    low, high = best // 2, 2 * best
    while high - low > 1:  # ternary search between the neighbours of the best step
        left = low + (high - low) // 3
        right = high - (high - low) // 3
        for step in (left, right):
            values[step] = float(schedule(step))
        low, high = (left + 1, high) if values[left] < values[right] else (low, right - 1)
    return max(*values.values(), *(float(schedule(step)) for step in range(low, high + 1)))
