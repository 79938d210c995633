"""Checks of the hyper-parameters of the Optax and Keras optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

__all__ = ["check"]

_KINDS: dict[str, tuple[Callable[[float], bool], str]] = {
    "rate": (lambda x: 0 <= x < math.inf, "a finite number >= 0"),
    "positive": (lambda x: 0 < x < math.inf, "a finite number > 0"),
    "beta": (lambda x: 0 <= x < 1, "a number in [0, 1)"),
    "decay": (lambda x: 0 < x <= 1, "a number in (0, 1] (λ of β₁λ^(t−1)), or 'harmonic' (β₁/t)"),
}


def check(kind: str, **numbers: Any) -> None:
    """Raise unless all ``numbers`` are of the kind "rate", "positive", "beta" or "decay".

    Values that are not Python numbers, such as schedules and traced arrays, cannot be checked and pass.

    >>> check("beta", b1=1.0)
    Traceback (most recent call last):
    ...
    ValueError: b1=1.0: must be a number in [0, 1)
    """
    legal, allowed = _KINDS[kind]
    for name, value in numbers.items():
        if kind == "decay" and isinstance(value, str) and value == "harmonic":
            continue
        if value is None or isinstance(value, (bool, str)):
            raise TypeError(f"{name}={value!r}: must be {allowed}")
        if isinstance(value, Real) and not legal(float(value)):
            raise ValueError(f"{name}={value!r}: must be {allowed}")
