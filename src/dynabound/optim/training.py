"""Beside the optimizer: param groups without decay for biases, and a step inside the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from typing_extensions import Self

from dynabound._rule import check
from dynabound.optim.adabound import AdaBound

__all__ = ["StepInBackward", "param_groups", "step_in_backward"]


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two param groups: ``weight_decay`` for matrices and kernels, none for biases and one-dimensional parameters.

    Args:
        model: the module; tied parameters are taken once.
        weight_decay: of the first group.

    Example:
        >>> import torch
        >>> from dynabound import AdaBoundW, param_groups
        >>> model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.LayerNorm(50))
        >>> optimizer = AdaBoundW(param_groups(model, weight_decay=1e-2))
        >>> [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
        [(0.01, 1), (0.0, 3)]
    """
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": check("weight_decay", weight_decay)},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, param in model.named_parameters():
        groups[param.ndim < 2 or name.rpartition(".")[2] == "bias"]["params"].append(param)
    return groups


def step_in_backward(optimizer: AdaBound) -> StepInBackward:
    """Update each parameter as soon as backward has computed its gradient, and free the gradient at once.

    Then never more than one gradient is in memory: with float32 moments the peak of parameters, gradients and state is
    a little over 3 times the parameters instead of 4 times. Leave the training loop as it is: ``step()`` finds nothing
    left to do, except for gradients that were set in another way, and tells schedulers and the lens that a step is
    over. One ``backward()`` per ``step()``.

    Until ``step()`` or ``zero_grad()``, ``p.grad`` has no data, and using it raises RuntimeError. So these raise
    instead of being silently wrong: ``clip_grad_norm_``, gradients accumulated over several backward passes, and
    ``GradScaler``, whose first step by then has used scaled gradients. If backward fails in the middle, the later
    layers are updated and the earlier ones are not.

    Args:
        optimizer: an AdaBound, AMSBound or AdaBoundW with ``differentiable=False``.

    Returns:
        A handle whose ``remove()`` ends this; it is also a context manager.

    Example:
        >>> import torch, dynabound
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = dynabound.AdaBound(model.parameters())
        >>> handle = dynabound.step_in_backward(optimizer)
        >>> for _ in range(10):
        ...     model(torch.ones(3)).backward()     # updates the parameters
        ...     optimizer.step()                    # ends the step
        >>> int(optimizer.state[model.weight]["step"])
        10
        >>> handle.remove()
    """
    if not isinstance(optimizer, AdaBound):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}: must be an AdaBound, AMSBound or AdaBoundW")
    if optimizer.defaults["differentiable"]:
        raise ValueError("differentiable=True: autograd cannot record a step inside backward; use differentiable=False")
    if optimizer._in_backward is not None:
        raise RuntimeError("this optimizer already steps in backward: call remove() of its handle first")
    return StepInBackward(optimizer)


class StepInBackward:
    """The handle of :func:`step_in_backward`: ``remove()`` makes ``step()`` update the parameters again."""

    def __init__(self, optimizer: AdaBound) -> None:
        self._optimizer = optimizer
        self._hooks = [
            param.register_post_accumulate_grad_hook(partial(self._update, i, j))
            for i, group in enumerate(optimizer.param_groups)
            for j, param in enumerate(group["params"])
            if param.requires_grad
        ]
        optimizer._in_backward = self

    @torch.no_grad()
    def _update(self, i: int, j: int, param: Tensor) -> None:
        group = self._optimizer.param_groups[i]  # load_state_dict replaces the groups
        name = group.get("param_names", range(len(group["params"])))[j]  # for error messages
        for backend, arguments in self._optimizer._prepare([{**group, "params": [param], "param_names": [name]}]):
            backend(*arguments)
        param.grad = _FreedGradient(param)

    def end_step(self) -> None:
        """Forget that the gradients were freed, so that the next backward pass can start."""
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                if type(param.grad) is _FreedGradient:
                    param.grad = None

    def remove(self) -> None:
        """Leave the update to ``step()`` again."""
        for hook in self._hooks:
            hook.remove()
        self.end_step()
        self._optimizer._in_backward = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class _FreedGradient(Tensor):
    """What is left of a gradient after the step in backward: no data, and an error for everything that needs it."""

    @staticmethod
    def __new__(cls, param: Tensor) -> _FreedGradient:
        freed: _FreedGradient = Tensor._make_wrapper_subclass(
            cls, param.shape, dtype=param.dtype, device=param.device, strides=param.stride()
        )
        return freed

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{func}: this gradient was used and freed by step_in_backward; clipping, GradScaler and accumulation over "
            "several backward passes need all gradients: call remove() of its handle. If this is the next step, call "
            "optimizer.step() after each backward()"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<gradient of shape {tuple(self.shape)}, freed by step_in_backward>"
