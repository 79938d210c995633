"""The peak of a learning-rate schedule, found by evaluating it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["peak"]


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
