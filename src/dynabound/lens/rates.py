"""The effective learning rate of every parameter, for AdaBound and for torch's own optimizers.

An update of any of these optimizers is −rate · direction, element by element, apart from decoupled weight decay.
The direction carries the gradient's sign and history, the rate is the rest:

===================  ================================================  ==========================================
optimizer            direction                                         rate
===================  ================================================  ==========================================
AdaBound, AMSBound   exp_avg                                           clip(α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v + ε), η_l, η_u)
Adam, AdamW          exp_avg                                           α/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)
RAdam                exp_avg                                           α/(1−β₁ᵗ) · r·√(1−β₂ᵗ)/(√v + ε); α/(1−β₁ᵗ) while
                                                                       the rectification r is not defined
NAdam                (1−μₜ)/(1−Πμ)·g + μₜ₊₁/(1−μₜ₊₁Πμ)·exp_avg         α / (√(v/(1−β₂ᵗ)) + ε)
RMSprop              g; with momentum, g + (√v + ε)·μ·buffer           α / (√v + ε); v minus squared mean if centered
Adagrad              g                                                 α/(1 + (t−1)·lr_decay) / (√sum + ε)
SGD                  g; with momentum, buffer; Nesterov, g + μ·buffer  α
===================  ================================================  ==========================================

g is the gradient with the sign of ``maximize`` and the L2 penalty; v is ``exp_avg_sq``, or its maximum so far with
``amsgrad`` and ``amsbound``. NAdam's bias corrections of the first moment are in the direction, because it has two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from dynabound.optim import AdaBound
from dynabound.optim._scalars import read_lr, scalars

__all__ = ["Rates", "Rule", "effective_lr", "register"]


class Rates(NamedTuple):
    """Learning rates before clipping, and the bounds they are clipped to, if there are any."""

    unclipped: Tensor
    bounds: tuple[float, float] | None = None

    def clip(self, rates: Tensor) -> Tensor:
        """``rates`` within the bounds."""
        return rates if self.bounds is None else rates.clamp(*self.bounds)


Rule: TypeAlias = "Callable[[Mapping[str, Any], Mapping[str, Any], Tensor], Rates]"
"""From a param group, a parameter's state and the parameter to the rates of its last step."""


def effective_lr(optimizer: Optimizer, param: Tensor) -> Tensor:
    """The learning rate of every element of ``param`` in the optimizer's last step.

    The rate is the factor of the update direction (see the table at the top of the module), bias corrections
    included. The result has the parameter's shape and at least float32; a complex parameter has the rates of its
    ``torch.view_as_real``. It is computed from the stored moments, so with a ``state_dtype`` below float32 it is as
    exact as they are, and from the group's current ``lr``: call it before the scheduler's step, or use a
    :class:`~dynabound.lens.LearningRateLens`. The rates of a DTensor are a DTensor with the same placement; nothing
    is communicated until all processes call ``full_tensor()``.

    Raises TypeError for an optimizer without a rule (see :func:`register`), and ValueError for a parameter that
    belongs to another optimizer or was never updated.

    Example:
        >>> import torch
        >>> from dynabound.lens import effective_lr
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        >>> optimizer = torch.optim.Adagrad([weight], lr=0.1)
        >>> weight.grad = torch.tensor([10.0, 0.001])
        >>> optimizer.step()
        >>> effective_lr(optimizer, weight)                 # 0.1 / |gradient|
        tensor([1.0000e-02, 1.0000e+02])
    """
    group = next((group for group in optimizer.param_groups if any(param is other for other in group["params"])), None)
    if group is None:
        raise ValueError(f"param of shape {tuple(param.shape)}: must be one of the optimizer's parameters")
    rates = last_rates(optimizer, group, param)
    if rates is None:
        raise ValueError(
            f"param of shape {tuple(param.shape)} was never updated: it has rates after a step() in which it has a "
            "gradient"
        )
    return rates.clip(rates.unclipped)


def register(optimizer_class: type[Optimizer], rule: Rule) -> None:
    """Add the rule of another optimizer class; its subclasses use it too, unless they have their own.

    Example:
        >>> import torch
        >>> from dynabound.lens import Rates, register
        >>> class Sign(torch.optim.SGD):
        ...     "SGD whose direction is the gradient's sign."
        >>> register(Sign, lambda group, state, param: Rates(torch.full_like(param, group["lr"])))
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise TypeError(f"optimizer_class={optimizer_class!r}: must be a subclass of torch.optim.Optimizer")
    if not callable(rule):
        raise TypeError(f"rule={rule!r}: must be a callable (group, state, param) -> Rates")
    _RULES[optimizer_class] = rule


def rule_of(optimizer: Optimizer) -> Rule:
    """The rule of the optimizer's class, or of its nearest base class that has one."""
    for cls in type(optimizer).__mro__:
        if cls in _RULES:
            return _RULES[cls]
    known = ", ".join(sorted(cls.__name__ for cls in _RULES))
    raise TypeError(
        f"optimizer of type {type(optimizer).__name__}: the rates of {known} and of their subclasses are known; "
        "dynabound.lens.register(OptimizerClass, rule) adds another"
    )


@torch.no_grad()
def last_rates(optimizer: Optimizer, group: Mapping[str, Any], param: Tensor) -> Rates | None:
    """The rates of ``param`` in the last step, or None if it was never updated; ``group`` is its group or a copy."""
    rule, stored = rule_of(optimizer), optimizer.state.get(param, {})
    if stored.get("step", 1) == 0:  # Adagrad creates its state in the constructor
        return None
    state = {name: _real(value) if isinstance(value, Tensor) else value for name, value in stored.items()}
    try:
        return rule(group, state, _real(param))
    except KeyError:
        if stored:
            raise
        return None  # the rule reads a state that does not exist yet


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _over_root(step_size: float, square: Tensor, scale: float, eps: float) -> Tensor:
    """step_size / (√square · scale + eps), one temporary at a time."""
    return square.to(_wide(square)).sqrt().mul_(scale).add_(eps).reciprocal_().mul_(step_size)


def _adabound(group: Mapping[str, Any], state: Mapping[str, Any], param: Tensor) -> Rates:
    square = state["max_exp_avg_sq" if group["amsbound"] else "exp_avg_sq"]
    dtype = torch.promote_types(_wide(param), square.dtype)
    s = scalars(group, float(read_lr(group)), int(state["step"]), dtype)
    return Rates(_over_root(s.step_size, square.to(dtype), 1.0, s.eps), (s.lower, s.upper))


def _corrections(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, float]:
    """1 − β₁ᵗ and 1 − β₂ᵗ."""
    step = float(state["step"])
    beta1, beta2 = map(float, group["betas"])
    return 1 - beta1**step, 1 - beta2**step


def _adam(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    correction1, correction2 = _corrections(group, state)
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    return Rates(_over_root(float(group["lr"]) / correction1, square, correction2**-0.5, group["eps"]))


def _nadam(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    _, correction2 = _corrections(group, state)
    return Rates(_over_root(float(group["lr"]), state["exp_avg_sq"], correction2**-0.5, group["eps"]))


def _radam(group: Mapping[str, Any], state: Mapping[str, Any], param: Tensor) -> Rates:
    correction1, correction2 = _corrections(group, state)
    step_size = float(group["lr"]) / correction1
    longest = 2 / (1 - group["betas"][1]) - 1  # ρ_∞, the limit of ρ_t
    length = longest - 2 * float(state["step"]) * (1 - correction2) / correction2  # ρ_t
    if length <= 5:
        return Rates(torch.full_like(param, step_size, dtype=_wide(param)))
    rectification = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    step_size *= rectification * math.sqrt(correction2)
    return Rates(_over_root(step_size, state["exp_avg_sq"], 1.0, group["eps"]))


def _rmsprop(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    square = state["square_avg"]
    if group["centered"]:
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    return Rates(_over_root(float(group["lr"]), square, 1.0, group["eps"]))


def _adagrad(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    lr = float(group["lr"]) / (1 + (float(state["step"]) - 1) * group["lr_decay"])
    return Rates(_over_root(lr, state["sum"], 1.0, group["eps"]))


def _sgd(group: Mapping[str, Any], _: Mapping[str, Any], param: Tensor) -> Rates:
    return Rates(torch.full_like(param, float(group["lr"]), dtype=_wide(param)))


_RULES: dict[type[Optimizer], Rule] = {
    AdaBound: _adabound,
    Adam: _adam,
    AdamW: _adam,
    NAdam: _nadam,
    RAdam: _radam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
    SGD: _sgd,
}
