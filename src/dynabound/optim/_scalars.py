"""From a param group and a step to the numbers that a backend needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dynabound import bounds
from dynabound._rule import coefficients


class Scalars(NamedTuple):
    """The numbers of one update, in the order of the C kernel's arguments.

    Floats, or 0-dimensional tensors where the step must be capturable or differentiable, or in the foreach backend
    vectors with one element per parameter.
    """

    step_size: Any  # α, with the bias corrections, over √t under sqrt_decay
    lower: Any  # η_l(t)
    upper: Any  # η_u(t)
    beta1: Any  # β₁ₜ
    beta2: float
    eps: float
    shrink: Any  # the factor of decoupled weight decay, 1 without
    l2: float
    sign: float  # the factor of the gradient: −1 to maximize, divided by the scale of the loss
    low: float  # the box
    high: float
    stochastic: float = 0.0  # 1 to round bfloat16 parameters stochastically


class CurrentBounds(NamedTuple):
    """The bounds of a param group's next step; see :meth:`AdaBound.bounds_now`."""

    step: int
    """The next step; where the group's parameters have made different numbers of steps, the largest."""
    lower: float
    """Lower bound of the learning rates, η_l."""
    upper: float
    """Upper bound of the learning rates, η_u."""
    lr: float
    """α, the current learning rate."""
    base_lr: float
    """The learning rate with which the group was added; the bounds scale with ``lr / base_lr``."""
    final_lr: float
    """α*, scaled by ``lr / base_lr``: what both bounds converge to."""
    sgd_share: float
    """√(lower/upper): from 0, where nothing is clipped (Adam), to 1, where the bounds have met (SGD)."""


def current_bounds(group: Mapping[str, Any], step: int) -> CurrentBounds:
    """The bounds of ``group`` in the ``step``-th update (counted from 1)."""
    lr = float(group["lr"])
    final_lr = group["final_lr"] * schedule_factor(lr, group["base_lr"])
    lower, upper = map(float, bounds.evaluate(group["bounds"], group["gamma"], step))
    share = 1.0 if lower == upper else math.sqrt(lower / upper)
    scale = final_lr / math.sqrt(step) if group["sqrt_decay"] else final_lr
    upper = upper * scale if scale else 0.0  # ∞ · 0 is NaN
    return CurrentBounds(step, lower * scale, upper, lr, group["base_lr"], final_lr, share)


def read_lr(group: Mapping[str, Any]) -> float | Tensor:
    """The learning rate as a float, or as a tensor where the step is captured, compiled or differentiated."""
    lr: float | Tensor = group["lr"]
    if isinstance(lr, Tensor):
        if group["capturable"] or group["differentiable"] or torch.compiler.is_compiling():
            return to_float64(lr.squeeze())
        lr = lr.item()
    if not torch.compiler.is_compiling() and not 0 <= lr < math.inf:
        raise ValueError(f"lr={lr!r}: must be a finite number >= 0; it was changed after construction")
    return lr


def to_float64(scalar: Tensor) -> Tensor:
    """A captured number in float64, in which step counts are exact; some accelerators have float32 only."""
    return scalar.to(torch.float64 if scalar.device.type in ("cpu", "cuda") else torch.float32)


def scalars(group: Mapping[str, Any], lr: float | Tensor, step: int | Tensor, dtype: torch.dtype) -> Scalars:
    """The scalars of the ``step``-th update (counted from 1) of parameters computed in ``dtype``."""
    lib: Any = torch if isinstance(step, Tensor) else math
    limits = torch.finfo(dtype)
    final_lr = group["final_lr"] * schedule_factor(lr, group["base_lr"])
    low, high = group["box"] or (-math.inf, math.inf)
    if not isinstance(lr, Tensor) and lr == 0:
        low, high = -math.inf, math.inf  # a step at lr = 0 changes no parameter
    l2 = 0.0 if group["decoupled_weight_decay"] else group["weight_decay"]
    values = Scalars(
        *coefficients(lib, step, lr, final_lr, group, limits.max),
        beta2=group["betas"][1],
        # The smallest normal number vanishes beside any √v > 0; it only prevents 0/0.
        eps=min(max(group["eps"], limits.tiny), limits.max),
        shrink=_shrink(group, lr),
        l2=min(l2, limits.max),
        sign=-1.0 if group["maximize"] else 1.0,
        low=low if low >= -limits.max else -math.inf,
        high=high if high <= limits.max else math.inf,
        stochastic=float(group["rounding"] == "stochastic"),
    )
    return Scalars._make([value.to(dtype) if isinstance(value, Tensor) else value for value in values])


def _shrink(group: Mapping[str, Any], lr: float | Tensor) -> Any:
    decoupled = group["decoupled_weight_decay"]
    if not decoupled:
        return 1.0
    return 1 - group["weight_decay"] * (schedule_factor(lr, group["base_lr"]) if decoupled == "fully" else lr)


def schedule_factor(lr: Any, base_lr: float) -> Any:
    """The factor by which a scheduler has changed the learning rate; the bounds scale with it."""
    if base_lr > 0:
        return lr / base_lr
    # Constructed with lr = 0 and raised later: there is no ratio, so final_lr is used unscaled.
    return (lr > 0).to(lr.dtype) if isinstance(lr, Tensor) else float(lr > 0)
