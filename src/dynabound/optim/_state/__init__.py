"""The state of one parameter: its dtypes, its devices and its first values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dynabound._dtensor import full_tensor
from dynabound.optim._state import eightbit

Lists: TypeAlias = "tuple[list[Tensor], list[Tensor], list[Tensor], list[Any], list[Any], list[Tensor]]"
"""Parameters, gradients, first, second and largest second moments, step counts.

The largest may be an empty list. Released second moments are None; backends other than the kernel get empty lists.
"""


class LossScaling(NamedTuple):
    """What GradScaler tells a fused optimizer: the factor of all gradients, and whether one of them is not finite."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


UNSCALED = LossScaling()


def new_state(group: Mapping[str, Any], param: Tensor) -> dict[str, Tensor]:
    """The state before the first step: a step count and moments of 0."""
    state = {"step": torch.zeros((), dtype=torch.int64, device=step_device(group, param))}
    for name, dtype in zip(("exp_avg", "exp_avg_sq"), state_dtypes(group, param), strict=True):
        state[name] = new_moment(param, dtype)
    return state


def new_moment(param: Tensor, dtype: torch.dtype) -> Tensor:
    """A moment of 0 in the memory order of ``param``, or in 8 bits."""
    if dtype is torch.uint8:
        return eightbit.zeros(param)
    return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)


def state_dtypes(group: Mapping[str, Any], param: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of the first and the second moments: the parameter's and at least float32, if nothing was chosen.

    uint8 stands for 8 bits. AMSBound then has second moments in bfloat16: in 8 bits, noise would raise the maximum.
    """
    chosen = group["state_dtype"]
    pair = (chosen, chosen) if isinstance(chosen, str) else chosen
    default = torch.promote_types(param.dtype, torch.float32)
    if pair is None:
        return default, default
    eight = torch.uint8 if eightbit.applies(param) else default
    first, second = [eight if name == "8bit" else getattr(torch, name) for name in pair]
    if second is torch.uint8 and group["amsbound"]:
        second = torch.bfloat16
    return (first.to_complex(), second.to_complex()) if param.is_complex() else (first, second)


def step_device(group: Mapping[str, Any], param: Tensor) -> torch.device:
    """Where the step count is kept: on the CPU, where reading it is free, unless the step must be capturable."""
    return param.device if group["capturable"] else torch.device("cpu")


def is_probe(param_groups: list[dict[str, Any]]) -> bool:
    """Whether a first step is a probe: every lr and every gradient is 0.

    torch.distributed.checkpoint makes such a step to create the state. AdaBound must not count it, nor add weight decay
    to the moments, because training may continue from that state.
    """
    if any(group["lr"] != 0 for group in param_groups):
        return False
    grads = [param.grad for group in param_groups for param in group["params"] if param.grad is not None]
    return not any([full_tensor((grad != 0).sum()) for grad in grads])
