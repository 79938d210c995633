"""effective_lr: the learning rate of every element of a parameter, for AdaBound and for many other optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynabound.lens.rules import NAMED_RULES, RULES, Rates, Rule


def effective_lr(optimizer: Optimizer, param: Tensor) -> Tensor:
    """The learning rate of every element of ``param`` in the optimizer's last step.

    The rate is the factor of the update direction (:mod:`dynabound.lens.rules` has a table), bias corrections
    included. The result has the parameter's shape and at least float32; a complex parameter has the rates of its
    ``torch.view_as_real``. It is computed from the stored moments, so with a ``state_dtype`` below float32 it is as
    exact as they are, and from the group's current ``lr``: call it before the scheduler's step, or use a
    :class:`~dynabound.lens.LearningRateLens`. The rates of a DTensor are a DTensor with the same placement; nothing
    is communicated until all processes call ``full_tensor()``.

    Raises TypeError for an optimizer without a rule (see :func:`register`), and ValueError for a parameter that
    belongs to another optimizer or was never updated. Wrappers such as Accelerate's optimizer and timm's Lookahead are
    unwrapped.

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
    optimizer = unwrap(optimizer)
    group = next((group for group in optimizer.param_groups if any(param is other for other in group["params"])), None)
    if group is None:
        raise ValueError(f"param of shape {tuple(param.shape)}: must be one of the optimizer's parameters")
    rates = last_rates(optimizer, group, param)
    if rates is None:
        when = "it has rates after a step() in which it has a gradient"
        raise ValueError(f"param of shape {tuple(param.shape)} was never updated: {when}")
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
    RULES[optimizer_class] = rule


def unwrap(optimizer: Optimizer) -> Optimizer:
    """The innermost optimizer of wrappers (Accelerate, Lightning, Fabric, timm's Lookahead): the one with the state."""
    for name in ("optimizer", "_base_optimizer", "base_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, Optimizer):
            return unwrap(inner)
    return optimizer


def rule_of(optimizer: Optimizer) -> Rule:
    """The rule of the optimizer's class, or of its nearest base class that has one."""
    for cls in type(optimizer).__mro__:
        rule = RULES.get(cls) or NAMED_RULES.get(f"{cls.__module__}.{cls.__qualname__}")
        if rule is not None:
            return rule
    known = ", ".join(sorted(cls.__name__ for cls in RULES))
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
    if hasattr(optimizer, "base_lrs"):  # other packages keep a group's first learning rate outside of the group
        base_lrs = zip(optimizer.param_groups, optimizer.base_lrs, strict=False)
        base_lr = next((lr for other, lr in base_lrs if other["params"] is group["params"]), None)
        if base_lr is None:  # their step() leaves out a group that was added after the constructor
            return None
        group = {**group, "base_lr": base_lr}
    state = {name: real_view(value) if isinstance(value, Tensor) else value for name, value in stored.items()}
    try:
        return rule(group, state, real_view(param))
    except KeyError:
        if stored:
            raise
        return None  # the rule reads a state that does not exist yet


def real_view(tensor: Tensor) -> Tensor:
    """A detached tensor; a complex one as a real one with a last dimension of 2."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
