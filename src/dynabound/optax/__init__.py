"""AdaBound and AMSBound as Optax gradient transformations. Needs jax and optax, and does not import torch.

>>> import jax.numpy as jnp
>>> import optax
>>> from dynabound.optax import adabound
>>> tx = adabound(1e-3, final_learning_rate=0.1)
>>> params = {"w": jnp.ones(3)}
>>> state = tx.init(params)
>>> updates, state = tx.update({"w": jnp.array([1.0, -1.0, 2.0])}, state, params)
>>> optax.apply_updates(params, updates)["w"]
Array([0.999, 1.001, 0.999], dtype=float32)
"""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"dynabound.optax needs {error.name}: pip install 'dynabound[optax]'", name=error.name
    ) from error

from dynabound.optax.adabound import ScaleByAdaBoundState, adabound, adaboundw, amsbound, scale_by_adabound
from dynabound.optax.convert import from_torch, to_torch
from dynabound.optax.lens import LearningRates, effective_lr, history, learning_rates
from dynabound.optax.suggest import suggest

__all__ = [
    "LearningRates",
    "ScaleByAdaBoundState",
    "adabound",
    "adaboundw",
    "amsbound",
    "effective_lr",
    "from_torch",
    "history",
    "learning_rates",
    "scale_by_adabound",
    "suggest",
    "to_torch",
]
