"""When bounds are so close that the second moment is superfluous, and the learning rate that then replaces it."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dynabound import bounds
from dynabound.optim._scalars import Scalars
from dynabound.optim._state import state_dtypes


@lru_cache(maxsize=64)
def _have_met(family: Any, gamma: float, step: int, release: float, single: bool) -> bool:
    lower, upper = bounds.evaluate(family, gamma, step)
    if lower * (1 + release) ** 2 >= upper:
        return True
    return single and math.isfinite(upper) and struct.pack("f", lower) == struct.pack("f", upper)


def is_released(group: Mapping[str, Any], param: Tensor, state: Mapping[str, Any]) -> bool:
    """Whether the next step of ``param`` needs no second moment.

    That is so if the geometric mean of the bounds differs from each of them by at most ``release``, and from the rate
    between them by no more; or if the bounds are equal in the dtype of the step. Raises if it is needed and was freed.
    """
    freed = "exp_avg_sq" not in state
    if torch.compiler.is_compiling():  # where the step count cannot be read
        return freed
    if group["release"] is not None and not callable(group["bounds"]):
        single = torch.float64 not in (param.dtype.to_real(), *state_dtypes(group, param))
        if _have_met(group["bounds"], group["gamma"], int(state["step"]) + 1, group["release"], single):
            return True
    if freed:
        raise RuntimeError(
            f"release={group['release']!r}, bounds={group['bounds']!r}, gamma={group['gamma']!r}: the second moment of "
            f"a parameter (shape {tuple(param.shape)}) was freed, and these bounds need it; restore the values with "
            "which it was freed. Nothing was updated"
        )
    return False


def close_bounds(s: Scalars) -> Scalars:
    """Scalars with both bounds at their geometric mean, final_lr for the built-in families."""
    rate = s.lower if s.lower == s.upper else math.sqrt(s.lower * s.upper)
    return s._replace(lower=rate, upper=rate)
