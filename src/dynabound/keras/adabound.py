"""AdaBound and AMSBound for Keras: hyper-parameters, variables and the rule."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict

import keras
from keras import ops

from dynabound import bounds as bound_functions
from dynabound._rule import DEFAULTS, Coefficients, check_arguments, coefficients, peak
from dynabound.bounds import Bounds

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["AMSBound", "AdaBound"]

_NUMBERS = ("beta_1", "beta_2", "final_learning_rate", "gamma", "epsilon", "beta_1_decay")
_OWN = (*_NUMBERS, "base_learning_rate", "amsbound", "bounds", "debias", "sqrt_decay")
"""The arguments that other Keras optimizers do not have."""


class Options(TypedDict, total=False):
    """The keyword-only arguments of :class:`AdaBound`, for its subclass."""

    base_learning_rate: float | None
    amsbound: bool
    bounds: Bounds
    debias: bool
    sqrt_decay: bool
    beta_1_decay: float | str
    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str


@keras.saving.register_keras_serializable(package="dynabound")
class AdaBound(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adam whose learning rates are clipped between two bounds that converge to SGD's learning rate.

    ::

        m_t = β₁·m_{t−1} + (1 − β₁)·g_t
        v_t = β₂·v_{t−1} + (1 − β₂)·g_t²
        η_t = clip(α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v_t + ε), α*·l(t), α*·u(t))
        x_{t+1} = x_t − η_t·m_t

    where α* is ``final_learning_rate · learning_rate(t) / base_learning_rate``: the bounds follow a schedule, a
    callback and an assignment to ``learning_rate``.

    Args:
        learning_rate: α, a float, a ``LearningRateSchedule`` or a callable. At 0 no variable changes.
        beta_1: β₁.
        beta_2: β₂.
        final_learning_rate: α*, the learning rate of the SGD that training ends with.
        gamma: γ, the speed at which the bounds converge; the steps are close to SGD when t is well over 1/γ.
        epsilon: ε.
        base_learning_rate: the learning rate at which α* is ``final_learning_rate``. None: ``learning_rate``, or the
            peak of the schedule. It is in the config, so that a loaded model keeps it.
        amsbound: divide by the largest v_t so far (AMSBound).
        bounds: a family of ``dynabound.bounds``, or a callable ``step -> (lower, upper)``, which must be registered
            with Keras if the model is to be saved.
        debias: apply Adam's bias corrections.
        sqrt_decay: divide the clipped learning rate by √t.
        beta_1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        weight_decay: as in every Keras optimizer: decoupled, x shrinks by ``1 - learning_rate * weight_decay``. For an
            L2 penalty use the layers' regularizers.
        clipnorm: like the remaining arguments, as in every Keras optimizer.

    Example:
        >>> import keras
        >>> from dynabound.keras import AdaBound
        >>> model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile(optimizer=AdaBound(learning_rate=1e-3, final_learning_rate=0.1), loss="mse")
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        final_learning_rate: float = 0.1,
        gamma: float = 1e-3,
        epsilon: float = 1e-8,
        *,
        base_learning_rate: float | None = None,
        amsbound: bool = False,
        bounds: Bounds = "harmonic",
        debias: bool = True,
        sqrt_decay: bool = False,
        beta_1_decay: float | str = 1.0,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str = "adabound",
    ) -> None:
        arguments = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        check_arguments(**{key: arguments[key] for key in ("learning_rate", *_NUMBERS)})
        if weight_decay is not None:
            check_arguments(weight_decay=weight_decay)
        bound_functions.check(bounds)
        arguments["base_learning_rate"] = _base(learning_rate, base_learning_rate)
        # A list, as it comes from a config, would be tracked by Keras.
        arguments["bounds"] = tuple(bounds) if isinstance(bounds, list) else bounds
        own = {key: arguments.pop(key) for key in _OWN}
        super().__init__(**arguments)
        for key, value in own.items():
            setattr(self, key, value)

    def build(self, variables: list[Any]) -> None:
        """Create the moments of ``variables``: float32 for 16-bit ones."""
        if self.built:
            return
        super().build(variables)
        self._first_moments = [self._add_moment(variable, "momentum") for variable in variables]
        self._second_moments = [self._add_moment(variable, "velocity") for variable in variables]
        if self.amsbound:
            self._largest_moments = [self._add_moment(variable, "velocity_max") for variable in variables]

    def _add_moment(self, variable: Any, name: str) -> Any:
        if getattr(variable, "overwrite_with_gradient", False):  # Keras sets these without calling update_step
            return None
        dtype = _compute_dtype(variable)
        if keras.backend.standardize_dtype(variable.dtype) == dtype:
            return self.add_variable_from_reference(variable, name=name)
        path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
        layout = getattr(variable, "_layout", None)
        return self.add_variable(variable.shape, dtype=dtype, layout=layout, name=f"{path}_{name}")

    def _backend_update_step(self, grads: list[Any], trainable_variables: list[Any], learning_rate: Any) -> None:
        # Keras calls this once for all variables, and passes the last argument on to update_step().
        if keras.backend.backend() == "torch":
            from dynabound.keras import torch

            torch.update(self, grads, trainable_variables, learning_rate)
        else:
            numbers = self._coefficients(learning_rate)
            super()._backend_update_step(grads, trainable_variables, numbers)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its moments."""
        s = learning_rate if isinstance(learning_rate, Coefficients) else self._coefficients(learning_rate)
        dtype = _compute_dtype(variable)
        # A Python number is not cast: ops.cast would first round it to Keras's floatx.
        s = Coefficients(*(value if isinstance(value, float) else ops.cast(value, dtype) for value in s))
        gradient = ops.cast(ops.convert_to_tensor(gradient, sparse=False), dtype)
        index = self._get_variable_index(variable)
        m, v = self._first_moments[index], self._second_moments[index]
        self.assign_add(m, (gradient - m) * (1 - s.beta1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        if self.amsbound:
            largest = self._largest_moments[index]
            self.assign(largest, ops.maximum(largest, v))
            v = largest
        # The smallest normal number vanishes beside any √v > 0; it only prevents 0/0.
        rate = s.step_size / (ops.sqrt(v) + max(self.epsilon, _TINY[dtype]))
        step = ops.clip(rate, s.lower, s.upper) * m
        if keras.backend.standardize_dtype(variable.dtype) == dtype:
            self.assign_sub(variable, step)
        else:  # round the result, not the step
            self.assign(variable, ops.cast(ops.cast(variable, dtype) - step, variable.dtype))

    def group(self) -> dict[str, Any]:
        """The hyper-parameters under the names of the torch optimizer."""
        return {
            **DEFAULTS,  # Keras applies the weight decay itself, and its variables have constraints instead of a box
            "base_lr": self.base_learning_rate,
            "betas": (self.beta_1, self.beta_2),
            "final_lr": self.final_learning_rate,
            "gamma": self.gamma,
            "eps": self.epsilon,
            "amsbound": self.amsbound,
            "bounds": self.bounds,
            "debias": self.debias,
            "sqrt_decay": self.sqrt_decay,
            "beta1_decay": self.beta_1_decay,
        }

    def _coefficients(self, learning_rate: Any) -> Coefficients:
        dtype = max(map(_compute_dtype, self._trainable_variables))  # "float64" is after "float32"
        t, lr = ops.cast(self.iterations + 1, dtype), ops.cast(learning_rate, dtype)
        # Constructed with a learning rate of 0 and raised later, there is no ratio to scale by.
        ratio = lr / self.base_learning_rate if self.base_learning_rate > 0 else ops.ones_like(lr)
        # At 0 no variable changes. (Without this, XLA would multiply constants first, and ∞ · 0 is NaN.)
        final_lr = ops.where(lr > 0, self.final_learning_rate * ratio, ops.zeros_like(lr))
        return coefficients(_KERAS, t, lr, final_lr, self.group(), _LARGEST[dtype])

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor, with the resolved ``base_learning_rate``."""
        config = {**super().get_config(), **{name: getattr(self, name) for name in _OWN}}
        if callable(self.bounds):
            config["bounds"] = keras.saving.serialize_keras_object(self.bounds)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """The optimizer of a config, without its state."""
        if isinstance(config.get("bounds"), dict):
            found = keras.saving.deserialize_keras_object(config["bounds"], custom_objects=custom_objects)
            config = {**config, "bounds": found}
        return super().from_config(config, custom_objects)  # type: ignore[no-any-return]


@keras.saving.register_keras_serializable(package="dynabound")
class AMSBound(AdaBound):
    """AdaBound that divides by the largest second moment so far: ``AdaBound(..., amsbound=True)``.

    Example:
        >>> from dynabound.keras import AMSBound
        >>> optimizer = AMSBound(learning_rate=1e-3, final_learning_rate=0.1)
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        final_learning_rate: float = 0.1,
        gamma: float = 1e-3,
        epsilon: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        if not options.setdefault("amsbound", True):
            raise ValueError("amsbound=False: must be True for AMSBound; use AdaBound")
        options.setdefault("name", "amsbound")
        super().__init__(learning_rate, beta_1, beta_2, final_learning_rate, gamma, epsilon, **options)


_TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}
_LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "float64": (2 - 2.0**-52) * 2.0**1023}


def _compute_dtype(variable: Any) -> str:
    return "float64" if keras.backend.standardize_dtype(variable.dtype) == "float64" else "float32"


def _lgamma(x: Any) -> Any:
    """Log Γ(x), which Keras does not have, for integers; from 21 on as for 21: 1/20! vanishes beside 1."""
    table = [math.lgamma(k) for k in range(1, 22)]
    return ops.take(ops.convert_to_tensor(table, dtype=x.dtype), ops.cast(ops.minimum(x, 21) - 1, "int32"))


_KERAS = SimpleNamespace(sqrt=ops.sqrt, exp=ops.exp, expm1=ops.expm1, log=ops.log, lgamma=_lgamma)


def _base(learning_rate: Any, base_learning_rate: float | None) -> float:
    """The learning rate that ``final_learning_rate`` belongs to."""
    if base_learning_rate is not None:
        if base_learning_rate != 0:
            check_arguments(base_learning_rate=base_learning_rate)
        return float(base_learning_rate)
    if isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        schedule: Any = learning_rate
        if keras.backend.backend() == "jax":
            import jax

            schedule = jax.jit(learning_rate)  # otherwise Keras's conditionals would be compiled again for every step
        try:
            return peak(lambda step: ops.convert_to_numpy(schedule(step)))
        except Exception as error:  # of user code: a table of rates, for example, ends somewhere
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"base_learning_rate=None: the schedule cannot be evaluated to find its peak ({reason}); give the peak"
            ) from error
    if callable(learning_rate):
        raise ValueError(
            "base_learning_rate=None: must be given if learning_rate is a callable, because the bounds scale with "
            "learning_rate / base_learning_rate; give the peak of the learning rate"
        )
    return float(learning_rate)
