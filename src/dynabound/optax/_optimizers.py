"""The optimizers: the bare rule with its sign, weight decay, and bounds that follow a schedule."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from dynabound._hyperparameters import check
from dynabound._schedules import peak
from dynabound.bounds import Bounds
from dynabound.optax._rule import at, scale_by_adabound

__all__ = ["adabound", "adaboundw", "amsbound", "follow"]


def adabound(
    learning_rate: optax.ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    final_learning_rate: optax.ScalarOrSchedule = 0.1,
    gamma: ArrayLike = 1e-3,
    base_learning_rate: ArrayLike | None = None,
    weight_decay: ArrayLike = 0.0,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    amsbound: bool = False,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: ArrayLike | str = 1.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformation:
    """AdaBound: Adam whose learning rates are clipped between two bounds that converge to SGD's learning rate.

    The rule is that of :func:`scale_by_adabound`. When ``learning_rate`` is a schedule the bounds follow it: α* is
    ``final_learning_rate · learning_rate(t) / base_learning_rate``.

    Args:
        learning_rate: α, a number or a schedule. At 0 no parameter changes.
        b1: β₁.
        b2: β₂.
        eps: ε.
        final_learning_rate: α*, the learning rate of the SGD that training ends with. A schedule is used as it is.
        gamma: γ, the speed at which the bounds converge; the steps are close to SGD when t is well over 1/γ.
        base_learning_rate: the learning rate at which α* is ``final_learning_rate``. None: ``learning_rate``, or the
            peak of the schedule. Under ``optax.inject_hyperparams`` every learning rate is a number: give it there.
        weight_decay: L2 penalty, added to the gradient.
        mask: which parameters decay, as in ``optax.add_decayed_weights``.
        amsbound: divide by the largest v_t so far (AMSBound). Static.
        bounds: a family of ``dynabound.bounds``, or a callable ``step -> (lower, upper)``. Static.
        debias: apply Adam's bias corrections. Static.
        sqrt_decay: divide the clipped rate by √t. Static.
        beta1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        mu_dtype: dtype of the first moment; None is the parameter's, and float32 for 16-bit parameters.

    Example:
        >>> import optax
        >>> from dynabound.optax import adabound
        >>> tx = adabound(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000), final_learning_rate=0.1)
    """
    check("rate", weight_decay=weight_decay)
    final = follow(learning_rate, final_learning_rate, base_learning_rate)
    rule = scale_by_adabound(
        learning_rate,
        b1,
        b2,
        eps,
        final_learning_rate=final,
        gamma=gamma,
        amsbound=amsbound,
        bounds=bounds,
        debias=debias,
        sqrt_decay=sqrt_decay,
        beta1_decay=beta1_decay,
        mu_dtype=mu_dtype,
    )
    # Without decay, update() needs no params.
    none = isinstance(weight_decay, Real) and weight_decay == 0
    decay = optax.identity() if none else optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(decay, rule, optax.scale(-1.0))


def amsbound(
    learning_rate: optax.ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    final_learning_rate: optax.ScalarOrSchedule = 0.1,
    gamma: ArrayLike = 1e-3,
    base_learning_rate: ArrayLike | None = None,
    weight_decay: ArrayLike = 0.0,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: ArrayLike | str = 1.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformation:
    """AMSBound: :func:`adabound` with ``amsbound=True``, which divides by the largest second moment so far.

    Example:
        >>> from dynabound.optax import amsbound
        >>> tx = amsbound(1e-3, final_learning_rate=0.1)
    """
    return adabound(**locals(), amsbound=True)


def adaboundw(
    learning_rate: optax.ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    final_learning_rate: optax.ScalarOrSchedule = 0.1,
    gamma: ArrayLike = 1e-3,
    base_learning_rate: ArrayLike | None = None,
    weight_decay: ArrayLike = 0.0,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    amsbound: bool = False,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: ArrayLike | str = 1.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformation:
    """AdaBound with AdamW's weight decay: parameters shrink by ``1 - learning_rate * weight_decay`` at each step.

    The other arguments are those of :func:`adabound`.

    Example:
        >>> from dynabound.optax import adaboundw
        >>> tx = adaboundw(1e-3, weight_decay=1e-2, mask=lambda params: {"w": True, "b": False})
    """
    check("rate", weight_decay=weight_decay)
    options = {name: value for name, value in locals().items() if name not in ("weight_decay", "mask")}
    scheduled = callable(learning_rate)
    decay = (lambda count: -learning_rate(count) * weight_decay) if scheduled else -learning_rate * weight_decay
    return optax.chain(adabound(**options), optax.add_decayed_weights(decay, mask), optax.stateless(_keep_dtypes))


def _keep_dtypes(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
    # A decay that comes from a schedule is a float32 array, which widens 16-bit updates.
    return jax.tree.map(lambda update, param: update.astype(param.dtype), updates, params)


def follow(
    learning_rate: optax.ScalarOrSchedule,
    final_learning_rate: optax.ScalarOrSchedule,
    base_learning_rate: ArrayLike | None,
) -> optax.ScalarOrSchedule:
    """The final learning rate as a schedule that follows ``learning_rate``, in proportion to its base."""
    if callable(final_learning_rate):
        if base_learning_rate is not None:
            raise ValueError(
                f"base_learning_rate={base_learning_rate!r}: must be None where final_learning_rate is a schedule, "
                "which is used as it is"
            )
        return final_learning_rate
    if base_learning_rate is not None:
        check("positive", base_learning_rate=base_learning_rate)
    else:
        if not callable(learning_rate):
            return final_learning_rate
        with jax.ensure_compile_time_eval():
            base_learning_rate = peak(lambda step: learning_rate(jnp.asarray(step, jnp.int32))) or 1.0
    return lambda count: final_learning_rate * at(learning_rate, count) / base_learning_rate
