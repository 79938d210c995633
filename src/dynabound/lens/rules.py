"""The rules of the lens: from an optimizer's state to the learning rates of its last step.

An update of any of these optimizers is −rate · direction, element by element, apart from decoupled weight decay.
The direction carries the gradient's sign and history, the rate is the rest:

===================  ================================================  ==========================================
optimizer            direction                                         rate
===================  ================================================  ==========================================
AdaBound, AMSBound   exp_avg                                           clip(α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v + ε), η_l, η_u)
Adam, AdamW          exp_avg                                           α/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)
Adamax               exp_avg                                           α/(1−β₁ᵗ) / exp_inf
RAdam                exp_avg                                           α/(1−β₁ᵗ) · r·√(1−β₂ᵗ)/(√v + ε); α/(1−β₁ᵗ) while
                                                                       the rectification r is not defined
NAdam                (1−μₜ)/(1−Πμ)·g + μₜ₊₁/(1−μₜ₊₁Πμ)·exp_avg         α / (√(v/(1−β₂ᵗ)) + ε)
RMSprop              g; with momentum, g + (√v + ε)·μ·buffer           α / (√v + ε); v minus squared mean if centered
Adagrad              g                                                 α/(1 + (t−1)·lr_decay) / (√sum + ε)
Adadelta             g · √((Δₜ₋₁ + ε)/(Δₜ + ε))                         α·√(Δₜ + ε) / √(v + ε), Δ the mean of squared
                                                                       updates
Adafactor            g · RMS(θₜ₋₁)/RMS(θₜ) / the update's clipping     min(α, 1/√t) · max(ε₂, RMS(θₜ)) / √v
Rprop                sign(g), 0 where the sign has just changed        step_size
ASGD                 g · ηₜ/ηₜ₊₁                                        ηₜ₊₁, which it stores
SGD                  g; with momentum, buffer; Nesterov, g + μ·buffer  α
===================  ================================================  ==========================================

g is the gradient with the sign of ``maximize`` and the L2 penalty; v is ``exp_avg_sq``, or its maximum so far with
``amsgrad`` and ``amsbound``. NAdam's bias corrections of the first moment are in the direction, because it has two.
Adadelta, Adafactor and ASGD do not keep all that their last step used: the rate takes the stored value, and the
ratio to the one used, which is close to 1, is in the direction. The AdaBounds of the packages adabound,
torch_optimizer and pytorch_optimizer have AdaBound's rule, each with its own details.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, optim

from dynabound.optim import AdaBound
from dynabound.optim._scalars import read_lr, scalars
from dynabound.optim._state.eightbit import unpack
from dynabound.optim._state.release import close_bounds


class Rates(NamedTuple):
    """Learning rates before clipping, the bounds they are clipped to, and the direction, if there are any."""

    unclipped: Tensor
    bounds: tuple[float, float] | None = None
    direction: Tensor | None = None
    """What the rates are multiplied by in an update, if the state has it."""

    def clip(self, rates: Tensor) -> Tensor:
        """``rates`` within the bounds."""
        return rates if self.bounds is None else rates.clamp(*self.bounds)


Rule: TypeAlias = "Callable[[Mapping[str, Any], Mapping[str, Any], Tensor], Rates]"
"""From a param group, a parameter's state and the parameter to the rates of its last step."""


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _over_root(step_size: float, square: Tensor, scale: float, eps: float) -> Tensor:
    """step_size / (√square · scale + eps), one temporary at a time."""
    return square.to(_wide(square)).sqrt().mul_(scale).add_(eps).reciprocal_().mul_(step_size)


def _adabound(group: Mapping[str, Any], state: Mapping[str, Any], param: Tensor) -> Rates:
    if "exp_avg_sq" not in state:  # released
        s = close_bounds(scalars(group, float(read_lr(group)), int(state["step"]), _wide(param)))
        return Rates(torch.full_like(param, s.lower, dtype=_wide(param)), (s.lower, s.upper))
    square = unpack(state["max_exp_avg_sq" if group["amsbound"] else "exp_avg_sq"], param, second=True)
    dtype = torch.promote_types(_wide(param), square.dtype)
    s = scalars(group, float(read_lr(group)), int(state["step"]), dtype)
    return Rates(
        _over_root(s.step_size, square.to(dtype), 1.0, s.eps),
        (s.lower, s.upper),
        unpack(state["exp_avg"], param, second=False),
    )


def _corrections(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, float]:
    """1 − β₁ᵗ and 1 − β₂ᵗ."""
    step = float(state["step"])
    beta1, beta2 = map(float, group["betas"])
    return 1 - beta1**step, 1 - beta2**step


def _adam(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    correction1, correction2 = _corrections(group, state)
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    rates = _over_root(float(group["lr"]) / correction1, square, correction2**-0.5, group["eps"])
    return Rates(rates, direction=state["exp_avg"])


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


def _adamax(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    step_size = float(group["lr"]) / (1 - float(group["betas"][0]) ** float(state["step"]))
    largest = state["exp_inf"]  # includes ε
    return Rates(largest.to(_wide(largest)).reciprocal().mul_(step_size))


def _adadelta(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    square, update = (state[name].to(_wide(state[name])) + group["eps"] for name in ("square_avg", "acc_delta"))
    return Rates(update.div_(square).sqrt_().mul_(float(group["lr"])))


def _adafactor(group: Mapping[str, Any], state: Mapping[str, Any], param: Tensor) -> Rates:
    param_eps, scale_eps = group["eps"]
    eps = torch.finfo(param.dtype).eps if param_eps is None else param_eps
    dtype = _wide(param)
    if "variance" in state:
        variance = state["variance"].to(dtype)
    else:
        row, column = state["row_var"].to(dtype), state["col_var"].to(dtype)
        variance = (row @ column).div_(row.mean(dim=-2, keepdim=True).clamp_(min=eps))
    size = param.to(dtype).square().mean().sqrt().item()
    step_size = min(float(group["lr"]), float(state["step"]) ** -0.5) * max(scale_eps, size)
    return Rates(variance.clamp(min=eps * eps).rsqrt_().mul_(step_size))


def _rprop(_: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    return Rates(state["step_size"].to(_wide(state["step_size"]), copy=True))


def _asgd(_: Mapping[str, Any], state: Mapping[str, Any], param: Tensor) -> Rates:
    return Rates(torch.full_like(param, float(state["eta"]), dtype=_wide(param)))


def _other_adabound(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    """The authors' package, and torch_optimizer's copy of it; ``base_lr`` is the group's first learning rate."""
    return _bounded(group, int(state["step"]), state["max_exp_avg_sq" if group["amsbound"] else "exp_avg_sq"])


def _pytorch_optimizer_adabound(group: Mapping[str, Any], state: Mapping[str, Any], _param: Tensor) -> Rates:
    square = state["max_exp_avg_sq" if group["ams_bound"] else "exp_avg_sq"]
    return _bounded(group, group["step"], square + 1e-15)  # it adds this before the root, and eps after


def _bounded(group: Mapping[str, Any], step: int, square: Tensor) -> Rates:
    lr, base_lr, gamma = float(group["lr"]), float(group["base_lr"]), group["gamma"]
    correction1, correction2 = _corrections(group, {"step": step})
    if group.get("adam_debias", False):
        correction1 = 1.0
    final_lr = group["final_lr"] * lr / base_lr if base_lr else 0.0
    bounds = (final_lr * (1 - 1 / (gamma * step + 1)), final_lr * (1 + 1 / (gamma * step)))
    return Rates(_over_root(lr * math.sqrt(correction2) / correction1, square, 1.0, group["eps"]), bounds)


def _sgd(group: Mapping[str, Any], _: Mapping[str, Any], param: Tensor) -> Rates:
    return Rates(torch.full_like(param, float(group["lr"]), dtype=_wide(param)))


RULES: dict[type[optim.Optimizer], Rule] = {
    AdaBound: _adabound,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.Adamax: _adamax,
    optim.NAdam: _nadam,
    optim.RAdam: _radam,
    optim.RMSprop: _rmsprop,
    optim.Adagrad: _adagrad,
    optim.Adadelta: _adadelta,
    optim.Adafactor: _adafactor,
    optim.Rprop: _rprop,
    optim.ASGD: _asgd,
    optim.SGD: _sgd,
}
NAMED_RULES: dict[str, Rule] = {
    "adabound.adabound.AdaBound": _other_adabound,
    "torch_optimizer.adabound.AdaBound": _other_adabound,
    "pytorch_optimizer.optimizer.adabound.AdaBound": _pytorch_optimizer_adabound,
}
"""Rules of classes in packages that are not imported here, by the path of the class."""
