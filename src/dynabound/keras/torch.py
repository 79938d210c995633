"""The Keras optimizers on the torch backend: dynabound's torch step, which updates all variables at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynabound.optim.adabound import adabound

if TYPE_CHECKING:
    from dynabound.keras.adabound import AdaBound


@torch.no_grad()
def update(optimizer: AdaBound, grads: list[Any], variables: list[Any], learning_rate: Any) -> None:
    """Update all variables and their moments in place."""
    indices = [optimizer._get_variable_index(variable) for variable in variables]

    def values(moments: list[Any]) -> list[torch.Tensor]:
        return [moments[index].value for index in indices]

    params = [variable.value for variable in variables]
    on_cpu = params[0].is_cpu
    step = torch.as_tensor(getattr(optimizer.iterations, "value", optimizer.iterations)).to(torch.int64, copy=True)
    lr = getattr(learning_rate, "value", learning_rate)
    adabound(
        params,
        [grad.to(param.dtype) for grad, param in zip(grads, params, strict=True)],
        values(optimizer._first_moments),
        values(optimizer._second_moments),
        values(optimizer._largest_moments) if optimizer.amsbound else [],
        [step] * len(params),  # Keras has one count for all variables: this copy is not used again
        capturable=not on_cpu,  # so that no number has to be copied from an accelerator
        amsbound=optimizer.amsbound,
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        lr=float(lr) if on_cpu else torch.as_tensor(lr),
        final_lr=optimizer.final_learning_rate,
        gamma=optimizer.gamma,
        weight_decay=0,  # Keras applies it itself, and its variables have constraints instead of a box
        eps=optimizer.epsilon,
        maximize=False,
        base_lr=optimizer.base_learning_rate,
        bounds=optimizer.bounds,
        debias=optimizer.debias,
        sqrt_decay=optimizer.sqrt_decay,
        beta1_decay=optimizer.beta_1_decay,
    )
