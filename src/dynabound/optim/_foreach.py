"""The update rule on lists of tensors: for accelerators, tensor subclasses and torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynabound.optim._scalars import Scalars
from dynabound.optim._state import Lists, eightbit
from dynabound.optim._state.rounding import write_back


def update(lists: Lists, s: Scalars, dtype: torch.dtype) -> None:
    """Update every parameter and its state in place, computing in ``dtype``; scalars may be one per parameter."""
    params, grads, *moments, steps = lists
    stored = [params, *moments]
    working = [
        [eightbit.unpack(tensor, param, k > 1).to(dtype) for tensor, param in zip(tensors, params, strict=False)]
        for k, tensors in enumerate(stored)
    ]
    _update_lists(working, [grad.to(dtype) for grad in grads], s)
    for i, step in enumerate(steps):  # one by one: DTensor has no rule for _foreach_copy_
        one, results = [[tensors[i] for tensors in some if tensors] for some in (stored, working)]
        write_back(one, results, step, s.stochastic > 0)
    torch._foreach_add_(steps, 1)


def _update_lists(lists: list[list[Tensor]], grads: list[Tensor], s: Scalars) -> None:
    params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = lists
    if s.sign != 1:
        grads = list(torch._foreach_mul(grads, s.sign))
    if s.l2 != 0:
        grads = list(torch._foreach_add(grads, params, alpha=s.l2))
    boxed = s.low > float("-inf") or s.high < float("inf")
    if boxed:  # after an infinite gradient, which a box survives, lerp would compute ∞ − ∞
        torch._foreach_mul_(exp_avgs, _per_param(s.beta1))
        torch._foreach_add_(exp_avgs, torch._foreach_mul(grads, _per_param(1 - s.beta1)))
    else:
        torch._foreach_lerp_(exp_avgs, grads, _per_param(1 - s.beta1))
    if exp_avg_sqs:
        torch._foreach_mul_(exp_avg_sqs, s.beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1 - s.beta2)
        if max_exp_avg_sqs:
            torch._foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs)
        rates = _clip_rates(max_exp_avg_sqs or exp_avg_sqs, s)
    else:  # released
        rates = [torch.full_like(exp_avg, s.lower) for exp_avg in exp_avgs]
    if isinstance(s.shrink, Tensor) or s.shrink != 1:
        torch._foreach_mul_(params, _per_param(s.shrink))
    torch._foreach_addcmul_(params, rates, exp_avgs, value=-1)
    if boxed:
        torch._foreach_clamp_min_(params, s.low)
        torch._foreach_clamp_max_(params, s.high)


def _clip_rates(squares: list[Tensor], s: Scalars) -> list[Tensor]:
    rates = list(torch._foreach_sqrt(squares))
    torch._foreach_add_(rates, s.eps)
    torch._foreach_reciprocal_(rates)
    torch._foreach_mul_(rates, _per_param(s.step_size))
    torch._foreach_clamp_min_(rates, _per_param(s.lower))
    torch._foreach_clamp_max_(rates, _per_param(s.upper))
    return rates


def _per_param(scalar: Any) -> Any:
    """A vector of one scalar per parameter as the list of tensors that foreach functions take."""
    return list(scalar.unbind()) if isinstance(scalar, Tensor) and scalar.dim() else scalar
