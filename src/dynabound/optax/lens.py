"""The learning-rate lens for Optax: the rate of every element, as pytrees, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dynabound.bounds import Bounds
from dynabound.optax.adabound import ScaleByAdaBoundState, scaled_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dynabound.lens import History

__all__ = ["LearningRates", "effective_lr", "find", "history", "learning_rates"]


class Options(TypedDict, total=False):
    """The arguments of :func:`learning_rates` that :func:`effective_lr` passes on."""

    learning_rate: optax.ScalarOrSchedule
    b1: ArrayLike
    b2: ArrayLike
    eps: ArrayLike
    final_learning_rate: optax.ScalarOrSchedule
    gamma: ArrayLike
    base_learning_rate: ArrayLike | None
    bounds: Bounds
    debias: bool
    sqrt_decay: bool
    beta1_decay: ArrayLike | str


class LearningRates(NamedTuple):
    """The learning rates of one update, as :func:`learning_rates` finds them."""

    step: Any
    """Which update, counted from 1."""
    unclipped: Any
    """The rates before the bounds, a tree like the parameters."""
    lower: Any
    """η_l(t)."""
    upper: Any
    """η_u(t)."""


def learning_rates(
    state: Any,
    learning_rate: optax.ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    final_learning_rate: optax.ScalarOrSchedule = 0.1,
    gamma: ArrayLike = 1e-3,
    base_learning_rate: ArrayLike | None = None,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: ArrayLike | str = 1.0,
) -> LearningRates:
    """The learning rates of the last update before clipping, and the bounds; see :func:`effective_lr`."""
    rule = scaled_rule(locals())
    found = find(state)
    if not isinstance(found.count, jax.core.Tracer) and found.count == 0:
        raise ValueError("state: no update has been made, so there are no learning rates yet")
    nu = found.nu if found.nu_max is None else found.nu_max
    numbers = {leaf.dtype: rule.coefficients(found.count - 1, leaf.dtype) for leaf in jax.tree.leaves(nu)}
    widest = numbers[max(numbers, key=lambda dtype: dtype.itemsize)]
    unclipped = jax.tree.map(lambda v: rule.unclipped(v, numbers[v.dtype]), nu)
    return LearningRates(found.count, unclipped, widest.lower, widest.upper)


def effective_lr(state: Any, **options: Unpack[Options]) -> Any:
    """The learning rate η_t of every element in the last update, as a tree like the parameters.

    An Optax state holds no hyper-parameters: give those of the optimizer again. Works under jit.

    Args:
        state: the optimizer's state, or any state that holds one :class:`ScaleByAdaBoundState`.
        options: ``learning_rate`` and the others, as in :func:`learning_rates` and :func:`adabound`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dynabound.optax import adabound, effective_lr
        >>> options = dict(learning_rate=1e-3, final_learning_rate=0.1, gamma=1e-2)
        >>> tx = adabound(**options)
        >>> gradients = jnp.array([1.0, 1e-3])
        >>> _, state = tx.update(gradients, tx.init(jnp.zeros(2)))
        >>> [f"{rate:.2g}" for rate in effective_lr(state, **options)]      # lr / (1 − β₁) / |g|: no bound is near
        ['0.01', '10']
    """
    rates = learning_rates(state, **options)
    lower, upper = rates.lower, rates.upper
    return jax.tree.map(lambda rate: jnp.clip(rate, lower, upper).astype(rate.dtype), rates.unclipped)


def find(state: Any) -> ScaleByAdaBoundState:
    """The only :class:`ScaleByAdaBoundState` in an Optax state."""

    def ours(node: Any) -> bool:
        return isinstance(node, ScaleByAdaBoundState)

    found: list[ScaleByAdaBoundState] = [node for node in jax.tree.leaves(state, is_leaf=ours) if ours(node)]
    if len(found) != 1:
        raise ValueError(f"state: must hold one ScaleByAdaBoundState, but holds {len(found)}; give one of its parts")
    return found[0]


def history(
    records: Iterable[LearningRates],
    extremes: tuple[float, float] = (1e-2, 1e3),
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    sample: int = 4096,
) -> History:
    """Recorded learning rates as a :class:`dynabound.lens.History`: its table and its figures.

    The lens keeps its numbers in torch tensors, so this function needs torch, unlike the rest of ``dynabound.optax``:
    ``pip install 'dynabound[lens]'``.

    Args:
        records: results of :func:`learning_rates` at some steps, in order.
        extremes: rates outside of (low, high) count as extreme.
        quantiles: which quantiles to keep; the median is always kept.
        sample: quantiles are those of this many elements of a parameter.
    """
    import torch

    from dynabound.lens.history import History
    from dynabound.lens.measure import Measure
    from dynabound.lens.rules import Rates

    measure = Measure(extremes, quantiles, sample, seed=0)
    history = History("AdaBound", 1, measure.extremes, tuple(measure.quantiles))
    for record in records:
        rates = jax.tree.map(np.asarray, record)
        bounds = float(rates.lower), float(rates.upper)
        rows: dict[str, list[float]] = {}
        for path, leaf in jax.tree_util.tree_flatten_with_path(rates.unclipped)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
            rows[name], history.patches[name], history.shapes[name] = measure(name, Rates(torch.tensor(leaf), bounds))
        history.add(int(rates.step), rows)
    return history
