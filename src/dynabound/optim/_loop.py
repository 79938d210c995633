"""The update rule, tensor by tensor: the readable one."""

from __future__ import annotations

import torch
from torch import Tensor

from dynabound.optim._scalars import Scalars


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    s: Scalars,
    dtype: torch.dtype,
) -> None:
    """Update every parameter and its state in place, computing in ``dtype``."""
    for i, param in enumerate(params):
        stored = [param, exp_avgs[i], exp_avg_sqs[i], *max_exp_avg_sqs[i : i + 1]]
        working = [tensor.to(dtype) for tensor in stored]
        _update_one(working, grads[i].to(dtype), s)
        for tensor, result in zip(stored, working, strict=True):
            if result is not tensor:
                tensor.copy_(result)
        steps[i].add_(1)


def _update_one(tensors: list[Tensor], grad: Tensor, s: Scalars) -> None:
    param, exp_avg, exp_avg_sq, *max_exp_avg_sq = tensors
    if s.sign < 0:
        grad = -grad
    if s.l2 != 0:
        grad = grad.add(param, alpha=s.l2)
    exp_avg.lerp_(grad, 1 - s.beta1)
    exp_avg_sq.mul_(s.beta2).addcmul_(grad, grad, value=1 - s.beta2)
    del grad  # so that no more than two temporaries live at a time
    for largest in max_exp_avg_sq:
        exp_avg_sq = largest.copy_(torch.maximum(largest, exp_avg_sq))
    # Out of place, because autograd keeps the results of sqrt and reciprocal under differentiable=True.
    rate = exp_avg_sq.sqrt().add(s.eps).reciprocal().mul(s.step_size).clamp(s.lower, s.upper)
    if isinstance(s.shrink, Tensor) or s.shrink != 1:
        param.mul_(s.shrink)
    # Autograd would also keep exp_avg itself, which the next step overwrites.
    param.addcmul_(rate, exp_avg.clone() if torch.is_grad_enabled() else exp_avg, value=-1)
    if s.low > float("-inf") or s.high < float("inf"):
        param.clamp_(s.low, s.high)
