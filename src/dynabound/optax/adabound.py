"""AdaBound for Optax: the bare gradient transformation, and the optimizers made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from dynabound import bounds as bound_functions
from dynabound._rule import Coefficients, check_arguments, coefficients, peak
from dynabound.bounds import Bounds

__all__ = ["ScaleByAdaBoundState", "adabound", "adaboundw", "amsbound", "scale_by_adabound"]


class ScaleByAdaBoundState(NamedTuple):
    """The state of :func:`scale_by_adabound`."""

    count: jax.Array
    """The number of updates made: an int32 that stops at its largest value."""
    mu: Any
    """First moments, a tree like the parameters."""
    nu: Any
    """Second moments, at least float32."""
    nu_max: Any
    """The largest second moments so far for AMSBound, otherwise None."""


_JAX = SimpleNamespace(sqrt=jnp.sqrt, exp=jnp.exp, expm1=jnp.expm1, log=jnp.log, lgamma=jax.lax.lgamma)


@dataclass(frozen=True)
class Rule:
    """The hyper-parameters of :func:`scale_by_adabound`, and its two functions.

    Numbers may be traced, so the code below never reads their values.
    """

    learning_rate: optax.ScalarOrSchedule
    b1: ArrayLike
    b2: ArrayLike
    eps: ArrayLike
    final_learning_rate: optax.ScalarOrSchedule
    gamma: ArrayLike
    bounds: Bounds
    debias: bool
    sqrt_decay: bool
    beta1_decay: ArrayLike | str
    amsbound: bool = False
    mu_dtype: DTypeLike | None = None

    def __post_init__(self) -> None:
        bound_functions.check(self.bounds)
        names = ("learning_rate", "b1", "b2", "eps", "final_learning_rate", "gamma", "beta1_decay")
        check_arguments(**{name: getattr(self, name) for name in names})

    def init(self, params: optax.Params) -> ScaleByAdaBoundState:
        """The state before the first update."""
        nu = jax.tree.map(_zeros, params)
        mu = jax.tree.map(lambda v: jnp.zeros_like(v, dtype=self.mu_dtype), nu)
        nu_max = jax.tree.map(jnp.copy, nu) if self.amsbound else None
        return ScaleByAdaBoundState(jnp.zeros([], jnp.int32), mu, nu, nu_max)

    def update(
        self, updates: optax.Updates, state: ScaleByAdaBoundState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, ScaleByAdaBoundState]:
        """The steps for gradients ``updates``, and the state after them."""
        del params
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(state.nu)}
        numbers = {dtype: self.coefficients(state.count, dtype) for dtype in dtypes}

        def first_moment(g: Any, m: Any, v: Any) -> Any:
            b1 = numbers[v.dtype].beta1
            return b1 * m.astype(v.dtype) + (1 - b1) * g.astype(v.dtype)

        def second_moment(g: Any, v: Any) -> Any:
            # Injected hyper-parameters have a dtype of their own.
            return (self.b2 * v + (1 - self.b2) * g.astype(v.dtype) ** 2).astype(v.dtype)

        def step(g: Any, m: Any, v: Any) -> Any:
            s = numbers[v.dtype]
            return (jnp.clip(self.unclipped(v, s), s.lower, s.upper) * m).astype(g.dtype)

        mu = jax.tree.map(first_moment, updates, state.mu, state.nu)
        nu = jax.tree.map(second_moment, updates, state.nu)
        nu_max = jax.tree.map(jnp.maximum, state.nu_max, nu) if self.amsbound else None
        updates = jax.tree.map(step, updates, mu, nu_max if self.amsbound else nu)
        mu = jax.tree.map(lambda m, old: m.astype(old.dtype), mu, state.mu)
        return updates, ScaleByAdaBoundState(optax.safe_increment(state.count), mu, nu, nu_max)

    def coefficients(self, count: Any, dtype: Any) -> Coefficients:
        """The numbers of the update that follows ``count`` others, for parameters computed in ``dtype``."""
        t = optax.safe_increment(count).astype(dtype)
        lr = jnp.asarray(value_at(self.learning_rate, count), dtype)
        final_lr = jnp.asarray(value_at(self.final_learning_rate, count), dtype)
        final_lr = jnp.where(lr > 0, final_lr, 0)  # a step at learning rate 0 changes no parameter
        group = {**vars(self), "betas": (self.b1, self.b2)}
        step_size, lower, upper, b1 = coefficients(_JAX, t, lr, final_lr, group, float(jnp.finfo(dtype).max))
        return Coefficients(step_size, jnp.asarray(lower, dtype), jnp.asarray(upper, dtype), b1)

    def unclipped(self, nu: Any, s: Coefficients) -> Any:
        """The rates before the bounds: α/(√v + ε)."""
        # The smallest normal number vanishes beside any √v > 0; it prevents 0/0 and a derivative of √0 that is NaN.
        return s.step_size / (jnp.sqrt(jnp.maximum(nu, jnp.finfo(nu.dtype).tiny)) + self.eps)


def value_at(value: optax.ScalarOrSchedule, count: Any) -> Any:
    """A number, or a schedule's value after ``count`` updates."""
    return value(count) if callable(value) else value


def scale_by_adabound(
    learning_rate: optax.ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    final_learning_rate: optax.ScalarOrSchedule = 0.1,
    gamma: ArrayLike = 1e-3,
    amsbound: bool = False,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: ArrayLike | str = 1.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformation:
    """Replace gradients g by η·m: the first moment m, times a learning rate η for each element between two bounds.

    ::

        m_t = β₁·m_{t−1} + (1 − β₁)·g_t
        v_t = β₂·v_{t−1} + (1 − β₂)·g_t²
        η_t = clip(α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v_t + ε), α*·l(t), α*·u(t))

    The bounds clip the learning rate, so it is an argument here and not of a later ``scale_by_learning_rate``.
    The sign is the gradient's: :func:`dynabound.optax.adabound` is this, followed by ``optax.scale(-1)``.

    Args:
        learning_rate: α, a number or a schedule. At 0 no parameter changes.
        b1: β₁.
        b2: β₂.
        eps: ε.
        final_learning_rate: α*, a number or a schedule, used as it is. (:func:`~dynabound.optax.adabound` scales it
            with the learning rate.)
        gamma: γ, the speed at which the bounds converge.
        amsbound: divide by the largest v_t so far. Static.
        bounds: a family of ``dynabound.bounds``, or a callable ``step -> (lower, upper)``. Static.
        debias: apply Adam's bias corrections. Static.
        sqrt_decay: divide the clipped learning rate by √t. Static.
        beta1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        mu_dtype: dtype of m; None is the parameter's, and float32 for 16-bit parameters. Moments v are never narrower
            than float32.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from dynabound.optax import scale_by_adabound
        >>> tx = optax.chain(optax.clip_by_global_norm(1.0), scale_by_adabound(1e-3), optax.scale(-1.0))
        >>> state = tx.init(jnp.zeros(3))
    """
    rule = Rule(**locals())
    return optax.GradientTransformation(rule.init, rule.update)


def _zeros(param: Any) -> Any:
    dtype = jnp.asarray(param).dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"a parameter is {dtype}: wrap the transformation in optax.contrib.split_real_and_imaginary, which makes "
            "it treat real and imaginary parts as the torch optimizers do"
        )
    return jnp.zeros_like(param, dtype=jnp.promote_types(dtype, jnp.float32))


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
        sqrt_decay: divide the clipped learning rate by √t. Static.
        beta1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        mu_dtype: dtype of the first moment; None is the parameter's, and float32 for 16-bit parameters.

    Example:
        >>> import optax
        >>> from dynabound.optax import adabound
        >>> tx = adabound(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000), final_learning_rate=0.1)
    """
    check_arguments(weight_decay=weight_decay)
    rule = scaled_rule(locals())
    # Without decay, update() needs no params.
    none = isinstance(weight_decay, Real) and weight_decay == 0
    decay = optax.identity() if none else optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(decay, optax.GradientTransformation(rule.init, rule.update), optax.scale(-1.0))


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
    check_arguments(weight_decay=weight_decay)
    options = {name: value for name, value in locals().items() if name not in ("weight_decay", "mask")}
    scheduled = callable(learning_rate)
    decay = (lambda count: -learning_rate(count) * weight_decay) if scheduled else -learning_rate * weight_decay
    return optax.chain(adabound(**options), optax.add_decayed_weights(decay, mask), optax.stateless(_keep_dtypes))


def _keep_dtypes(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
    # A decay that comes from a schedule is a float32 array, which widens 16-bit updates.
    return jax.tree.map(lambda update, param: update.astype(param.dtype), updates, params)


def scaled_rule(arguments: Mapping[str, Any]) -> Rule:
    """The rule for arguments of :func:`adabound`, whose final learning rate follows the schedule."""
    options = {field.name: arguments[field.name] for field in fields(Rule) if field.name in arguments}
    names = ("learning_rate", "final_learning_rate", "base_learning_rate")
    return Rule(**{**options, "final_learning_rate": scaled_final_rate(*[arguments[name] for name in names])})


def scaled_final_rate(
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
        check_arguments(base_learning_rate=base_learning_rate)
    else:
        if not callable(learning_rate):
            return final_learning_rate
        with jax.ensure_compile_time_eval():
            base_learning_rate = peak(lambda step: learning_rate(jnp.asarray(step, jnp.int32))) or 1.0
    return lambda count: final_learning_rate * value_at(learning_rate, count) / base_learning_rate
