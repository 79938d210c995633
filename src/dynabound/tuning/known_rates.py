"""``final_lr`` from a known learning rate of SGD or of Adam. Loads torch and NumPy only where they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dynabound._checks import check_number, check_positive
from dynabound.tuning.trials import SuggestError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class AdamsRates(NamedTuple):
    """The rates lr/√v of Adam, and a rate for SGD."""

    sgd: float
    """:func:`final_lr_from_adam`."""
    mean: float
    """lr/mean(√v): the harmonic mean of the rates."""
    uneven: bool
    """Whether more than half of the rates are above twice the mean."""


def final_lr_from_sgd(lr: float, momentum: float = 0.0, dampening: float = 0.0) -> float:
    """The ``final_lr`` that takes the same steps as ``torch.optim.SGD(lr, momentum, dampening)``.

    SGD sums gradients, AdaBound averages them: with a constant gradient g, the momentum buffer of SGD becomes
    g·(1 − dampening)/(1 − momentum), and AdaBound's first moment becomes g. So::

        α* = lr · (1 − dampening) / (1 − momentum)

    >>> final_lr_from_sgd(0.1, momentum=0.9)
    1.0
    >>> final_lr_from_sgd(0.1)
    0.1
    """
    check_positive("lr", lr)
    for name, value in (("momentum", momentum), ("dampening", dampening)):
        check_number(name, value, lambda x: 0 <= x < 1, "in [0, 1)")
    return float(f"{lr * (1 - dampening) / (1 - momentum):.12g}")  # 0.1 / (1 - 0.9) is 1, and not 1 + 2e-16


def final_lr_from_adam(optimizer: Optimizer) -> float:
    """The ``final_lr`` whose SGD lowers the loss as fast as this Adam, to first order, from only Adam's state.

    Adam divides the learning rate of element i by √v_i. One step lowers the loss by Σ α/(√v_i + ε)·g_i², one step of
    SGD by α*·Σ g_i². With v as the mean of g², both are equal at::

        α* = Σ α·v_i/(√v_i + ε) / Σ v_i

    Call it after some tens of steps at the learning rate that you know. Measured on eight networks, the best
    ``final_lr`` is one to ten times as large: a starting point where :func:`~dynabound.tuning.suggest` cannot be run.

    Args:
        optimizer: ``torch.optim.Adam``, ``AdamW``, or an AdaBound, that has made steps.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> adam = torch.optim.Adam([weight], lr=0.01, eps=0)
        >>> weight.grad = torch.tensor([2.0, 2.0])
        >>> adam.step()
        >>> round(final_lr_from_adam(adam), 6)      # SGD at 0.005 makes the same step: 0.005 · 2 = 0.01
        0.005
    """
    return adams_rates(optimizer).sgd


def adams_rates(optimizer: Optimizer) -> AdamsRates:
    """What the second moments of an Adam say about its rates."""
    from dynabound._dtensor import full_tensor
    from dynabound.optim._state.eightbit import unpack

    moments = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            if "exp_avg_sq" in state:
                # The bias of the first steps is undone, as Adam does.
                bias = 1 - group["betas"][1] ** float(state["step"])
                moment = _as_real(unpack(state["exp_avg_sq"], param, second=True))
                moments.append((float(group["lr"]), group["eps"], moment, bias))
    try:
        return _rates(moments, lambda values: float(full_tensor(values.sum())))
    except ValueError:
        raise ValueError(
            f"optimizer={type(optimizer).__name__}: its state must hold second moments (exp_avg_sq) that are not all "
            "0; call it after some steps of Adam"
        ) from None


def rates_from_moments(moments: Iterable[Any], lr: float, eps: float) -> AdamsRates:
    """:func:`adams_rates` for Optax and Keras: from Adam's second moments, without the bias of the first steps.

    >>> import numpy as np
    >>> rates_from_moments([np.array([4.0, 4.0])], lr=0.01, eps=0.0)
    AdamsRates(sgd=0.005, mean=0.005, uneven=False)
    """
    import numpy as np

    try:
        return _rates([(lr, eps, np.asarray(v, np.float64), 1.0) for v in moments], lambda values: float(values.sum()))
    except ValueError:
        raise SuggestError("the loss does not depend on the parameters: all of their gradients are 0") from None


def _rates(moments: Sequence[tuple[float, float, Any, float]], total: Callable[[Any], float]) -> AdamsRates:
    """From lr, ε, the second moments and their bias of each tensor; ValueError if they are 0.

    Rates of groups with different ``lr`` are compared as if all had the largest one.
    """
    largest = max((lr for lr, *_ in moments), default=0.0)
    scales = [largest / lr if lr else 1.0 for lr, *_ in moments]
    decrease = energy = roots = number = 0.0
    for (lr, eps, moment, bias), scale in zip(moments, scales, strict=True):
        v = moment / bias
        root = v**0.5
        decrease += lr * total(v / (root + eps + (v == 0)))  # 0, and not 0/0, where there was no gradient
        energy += total(v)
        roots += total(root) * scale
        number += math.prod(v.shape)
    if not (math.isfinite(energy) and math.isfinite(decrease)):
        raise OverflowError("Adam's second moments are not finite: gradients were too large")
    if not energy:
        raise ValueError
    mean = roots / number
    pairs = zip(moments, scales, strict=True)
    high = sum(total((moment / bias) ** 0.5 * scale < mean / 2) for (_, _, moment, bias), scale in pairs)
    return AdamsRates(decrease / energy, largest / mean, 2 * high > number)


def _as_real(moment: Tensor) -> Tensor:
    """Real numbers whose sum does not overflow: complex ones as pairs, half precision as float32."""
    import torch

    if moment.is_complex():
        moment = torch.view_as_real(moment)
    return moment if moment.itemsize >= 4 else moment.float()
