"""Optimizers by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from dynabound._checks import did_you_mean
from dynabound.lab.errors import LabError
from dynabound.optim import AdaBound, AMSBound


class OptimizerError(LabError, ValueError):
    """An optimizer's name or option is wrong."""


@dataclass(frozen=True)
class _Method:
    cls: type[Optimizer]
    lr: float
    options: Mapping[str, Any] = field(default_factory=dict)
    text_lr: float | None = None
    """The rate for language models, if it differs: the paper trains SGD on Penn Treebank at 10."""
    weight_decay: float | None = None
    """The usual weight decay of the method, if it does not depend on the task."""


class CSGD(Optimizer):
    """SGD with averaged momentum and bias correction (Savarese 2019): m = βm + (1 − β)g, then p −= lr/(1 − βᵗ) · m.

    AdaBound with closed bounds is this method, except for the bias correction.
    """

    def __init__(
        self, params: Iterable[Parameter], lr: float = 1.0, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for param in (each for each in group["params"] if each.grad is not None):
                state = self.state[param]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(param))
                state["step"] += 1
                grad = param.grad.add(param, alpha=group["weight_decay"])
                state["exp_avg"].lerp_(grad, 1 - group["momentum"])
                param.sub_(state["exp_avg"], alpha=group["lr"] / (1 - group["momentum"] ** state["step"]))


OPTIMIZERS: dict[str, _Method] = {
    "sgd": _Method(torch.optim.SGD, 0.1, text_lr=10.0),
    "sgdm": _Method(torch.optim.SGD, 0.1, {"momentum": 0.9}, text_lr=1.0),
    # What AdaBound becomes: its first moment is an average, not a sum.
    "sgdm-dampened": _Method(torch.optim.SGD, 0.1, {"momentum": 0.9}, text_lr=10.0),
    "csgd": _Method(CSGD, 1.0, text_lr=10.0),
    "adagrad": _Method(torch.optim.Adagrad, 1e-2),
    "rmsprop": _Method(torch.optim.RMSprop, 1e-3),
    "adam": _Method(torch.optim.Adam, 1e-3),
    "amsgrad": _Method(torch.optim.Adam, 1e-3, {"amsgrad": True}),
    "adamw": _Method(torch.optim.AdamW, 1e-3, weight_decay=1e-2),
    "adabound": _Method(AdaBound, 1e-3),
    "amsbound": _Method(AMSBound, 1e-3),
}
"""The methods of the paper and their relatives."""
BOUNDED = ("adabound", "amsbound")
"""The methods with a lower and an upper bound."""


def default_lr(name: str, text: bool = False) -> float:
    """The default learning rate of a method."""
    method = OPTIMIZERS.get(name)
    if method is None:
        return 1e-3
    return method.text_lr if text and method.text_lr else method.lr


def default_weight_decay(name: str, usual: float) -> float:
    """The default weight decay of a method, on a task whose usual one is ``usual``."""
    method = OPTIMIZERS.get(name)
    return usual if method is None or method.weight_decay is None else method.weight_decay


def build(
    name: str,
    params: Iterable[Parameter],
    lr: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Optimizer:
    """The optimizer ``name``, or an instance of ``module:Class``; OptimizerError if it cannot be built.

    >>> build("sgdm-dampened", [Parameter(torch.zeros(2))], lr=0.1).param_groups[0]["dampening"]
    0.9
    """
    check(name, options or {})
    if ":" in name:
        cls, fixed = _import(name), {}
        _check_options(name, cls, options or {})
    else:
        cls, fixed = OPTIMIZERS[name].cls, dict(OPTIMIZERS[name].options)
    allowed = inspect.signature(cls).parameters
    arguments = {"lr": lr, **fixed, **(options or {})}
    if weight_decay or "weight_decay" in allowed:  # 0 means 0, whatever the default of the class
        arguments["weight_decay"] = weight_decay
    if name == "sgdm-dampened":
        if "dampening" in arguments:
            raise OptimizerError("opt dampening: sgdm-dampened sets it to the momentum; leave it out, or use sgdm")
        arguments["dampening"] = arguments["momentum"]
    try:
        return cls(params, **arguments)
    except Exception as error:  # torch's Adam, for example, raises IndexError for betas=(0.9,)
        kind = "" if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: "
        raise OptimizerError(f"optimizer={name!r}: {kind}{error}; change its options") from error


@cache
def _defaults(name: str) -> dict[str, Any]:
    return {key: value.default for key, value in inspect.signature(OPTIMIZERS[name].cls).parameters.items()}


def canonical(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with every number in one form, so that equal ones have equal names: 1 becomes 1.0.

    An optimizer of another package is not imported to look, and may count with an option: 1.0 becomes 1.

    >>> canonical("adabound", {"final_lr": 1, "amsbound": 1})
    {'final_lr': 1.0, 'amsbound': True}
    >>> canonical("torch.optim:LBFGS", {"max_iter": 5.0})
    {'max_iter': 5}
    """
    if name not in OPTIMIZERS:
        return {key: _as_int(value) for key, value in options.items()}
    defaults = _defaults(name)
    return {key: _like(defaults.get(key), value) for key, value in options.items()}


def _like(default: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_like(None, each) for each in value)
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(default, bool) and value in (0, 1):
        return bool(value)
    counts = isinstance(default, int) and default  # torch writes a default of 0.0 as 0
    return value if counts else float(value) + 0.0  # -0.0 becomes 0.0


def _as_int(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_int, value))
    exact = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if exact else value


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise the errors of :func:`build` that can be found without building or importing anything."""
    if ":" not in name and name not in OPTIMIZERS:
        raise OptimizerError(
            f"optimizer={name!r}: must be {', '.join(OPTIMIZERS)}, or module:Class{did_you_mean(name, OPTIMIZERS)}"
        )
    if ":" not in name:
        _check_options(name, OPTIMIZERS[name].cls, options)
    elif not all(name.partition(":")[::2]):
        raise OptimizerError(f"optimizer={name!r}: must be module:Class, such as torch.optim:RAdam")


def _check_options(name: str, cls: type[Optimizer], options: Mapping[str, Any]) -> None:
    allowed = inspect.signature(cls).parameters
    known = [option for option in allowed if option != "params"]
    unknown = options.keys() - set(known)
    if unknown and not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in allowed.values()):
        key = min(unknown)
        raise OptimizerError(f"opt {key}={options[key]!r}: {name} takes {', '.join(known)}{did_you_mean(key, known)}")


def _import(name: str) -> type[Optimizer]:
    module, _, attribute = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # another package's module may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise OptimizerError(
            f"optimizer={name!r}: cannot be imported ({reason}); must be an importable module:Class"
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise OptimizerError(
            f"optimizer={name!r}: is a {type(cls).__name__}; must be a subclass of torch.optim.Optimizer"
        )
    return cls


def set_mode(optimizer: Optimizer, training: bool) -> None:
    """Call ``train()`` or ``eval()`` of an optimizer that has them: schedule-free ones evaluate at other weights."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if callable(switch):
        switch()
