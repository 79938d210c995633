"""The update rule, one tensor at a time: the readable version."""

from __future__ import annotations

import torch
from torch import Tensor

from dynabound.optim._scalars import Scalars
from dynabound.optim._state import Lists, eightbit
from dynabound.optim._state.rounding import write_back


def update(lists: Lists, s: Scalars, dtype: torch.dtype) -> None:
    """Update every parameter and its state in place, computing in ``dtype``."""
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps = lists
    for i, param in enumerate(params):
        stored = [param, exp_avgs[i], *exp_avg_sqs[i : i + 1], *max_exp_avg_sqs[i : i + 1]]
        # Autograd saves its inputs, and the next step would overwrite them: with differentiable=True they are copies.
        working = [
            eightbit.unpack(tensor, param, k > 1).to(dtype, copy=torch.is_grad_enabled())
            for k, tensor in enumerate(stored)
        ]
        _update_one(working, grads[i].to(dtype), s)
        write_back(stored, working, steps[i], s.stochastic > 0)
        steps[i].add_(1)


def _update_one(tensors: list[Tensor], grad: Tensor, s: Scalars) -> None:
    param, exp_avg, *squares = tensors
    if s.sign != 1:
        grad = grad * s.sign
    if s.l2 != 0:
        grad = grad.add(param, alpha=s.l2)
    boxed = s.low > float("-inf") or s.high < float("inf")
    if boxed:  # after an infinite gradient, which a box survives, lerp_ would compute ∞ − ∞
        exp_avg.mul_(s.beta1).add_(grad * (1 - s.beta1))
    else:
        exp_avg.lerp_(grad, 1 - s.beta1)
    if not squares:  # released
        rate = torch.full_like(exp_avg, s.lower)
    else:
        squares[0].mul_(s.beta2).addcmul_(grad, grad, value=1 - s.beta2)
        del grad  # at most two temporaries are alive at a time
        if len(squares) > 1:
            out = None if torch.is_grad_enabled() else squares[1]
            tensors[3] = torch.maximum(squares[1], squares[0], out=out)
        # Out of place, because autograd also saves the results of sqrt and reciprocal.
        rate = tensors[-1].sqrt().add(s.eps).reciprocal().mul(s.step_size).clamp(s.lower, s.upper)
    if isinstance(s.shrink, Tensor) or s.shrink != 1:
        param.mul_(s.shrink)
    param.addcmul_(rate, exp_avg, value=-1)
    if boxed:
        param.clamp_(s.low, s.high)
