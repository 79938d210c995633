"""``suggest`` for Optax: all trials of a pure loss use one jitted step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import jax
import optax

from dynabound.optax.adabound import adabound
from dynabound.optax.lens import find
from dynabound.tuning.known_rates import AdamsRates, rates_from_moments
from dynabound.tuning.suggestion import LearningRateSuggestion
from dynabound.tuning.trials import Plan, ProgressCallback, TrialRates, TrialRunner, check_plan, suggest_with

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SuggestOptions", "suggest"]


class SuggestOptions(TypedDict, total=False):
    """The optimizer's arguments that the trials and the run share."""

    b1: float
    b2: float
    eps: float
    weight_decay: float
    amsbound: bool


def suggest(
    params: optax.Params,
    loss: Callable[[Any, Any], jax.Array],
    batches: Iterable[Any],
    steps: int,
    *,
    optimizer: Callable[..., optax.GradientTransformation] = adabound,
    finish: Literal["auto", "adam", "sgd"] = "auto",
    lr: float = 0.01,
    validation: Iterable[Any] | None = None,
    clip: float | None = None,
    budget: int | None = None,
    repeats: int = 1,
    progress: ProgressCallback | None = None,
    **options: Unpack[SuggestOptions],
) -> LearningRateSuggestion:
    """Find ``learning_rate``, ``final_learning_rate`` and ``gamma`` for this loss by short trials, before training.

    The rule is that of ``dynabound.suggest``, described in docs/suggest-why.md. One step is compiled for all trials.

    Args:
        params: the parameters that the run starts from.
        loss: ``loss(params, batch)`` returns the scalar to minimise; a pure function.
        batches: any iterable; ``budget`` / 12 · ``repeats`` batches are kept in memory.
        steps: the length of the planned run, in optimizer steps.
        optimizer: ``adabound``, ``amsbound``, ``adaboundw``, or one of them with further arguments, such as
            ``functools.partial(adaboundw, mask=mask)``.
        finish: "auto": Adam with a decay, by an upper bound that falls as 1/t, unless bounds that close around a rate
            of SGD end clearly lower in a trial, or Adam's rates differ too much for one bound. "adam": Adam without a
            decay. "sgd": bounds that close late.
        lr: the first rate of Adam that is tried.
        validation: batches that the trials are judged by; all are used after each trial. None: the trials are judged by
            their last training losses.
        clip: largest global norm of the gradient. None: no clipping.
        budget: training steps to spend in each repeat. None: 1.4 times as many as the run has, but at most 600.
        repeats: the number of repetitions, with other batches; the answer is the geometric mean.
        progress: called with (steps made, largest number of steps) after each step.
        options: ``b1``, ``b2``, ``eps``, ``weight_decay``, ``amsbound`` of the optimizer.

    Raises:
        dynabound.tuning.SuggestError: the loss is not finite at the start, does not depend on the parameters, or never
            decreases.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from dynabound.optax import adabound, suggest
        >>> batches = [(x, x.sum(1)) for x in jax.random.normal(jax.random.key(0), (20, 32, 8))]
        >>> def loss(params, batch):
        ...     return jnp.mean((batch[0] @ params - batch[1]) ** 2)
        >>> suggestion = suggest(jnp.zeros(8), loss, batches, steps=400)
        >>> tx = adabound(**suggestion.options)
        >>> print(suggestion)
        learning_rate = ...
        final_learning_rate = ...
        gamma = ...
    """
    plan = check_plan(steps, budget, repeats, finish, lr, validation, options, SuggestOptions.__annotations__, clip)
    runner = OptaxRunner(params, loss, optimizer, clip, options, progress, plan)
    return suggest_with(runner, batches, options, LearningRateSuggestion)


class OptaxRunner(TrialRunner):
    """Trains by a pure step whose rates are arguments, so that it is compiled once for all trials."""

    def __init__(
        self,
        params: optax.Params,
        loss: Callable[[Any, Any], jax.Array],
        optimizer: Callable[..., optax.GradientTransformation],
        clip: float | None,
        options: Mapping[str, Any],
        progress: ProgressCallback | None,
        plan: Plan,
    ) -> None:
        super().__init__(progress, plan)
        self.first, self.b2, self.eps = params, options.get("b2", 0.999), options.get("eps", 1e-8)

        def transformation(rates: TrialRates) -> optax.GradientTransformation:
            lr, final_lr, gamma = rates
            rule = optimizer(learning_rate=lr, final_learning_rate=final_lr, gamma=gamma, **options)
            return rule if clip is None else optax.chain(optax.clip_by_global_norm(clip), rule)

        def update(params: Any, state: Any, batch: Any, rates: TrialRates) -> tuple[Any, Any, jax.Array]:
            value, gradients = jax.value_and_grad(loss)(params, batch)
            updates, state = transformation(rates).update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        self.init, self.update = transformation(TrialRates(1.0, gamma=1.0)).init, jax.jit(update)
        self.loss = jax.jit(loss)

    def start(self, rates: TrialRates | None) -> None:
        """Start from the first parameters and a new state; without rates the learning rate is 0: nothing changes."""
        self.rates = rates or TrialRates(0.0)
        self.params, self.state = self.first, self.init(self.first)

    def step(self, batch: Any) -> float:
        self.params, self.state, value = self.update(self.params, self.state, batch, self.rates)
        return float(value)

    def evaluate(self, batch: Any) -> float:
        return float(self.loss(self.params, batch))

    def adams_rates(self) -> AdamsRates:
        state = find(self.state)
        correction = 1 - self.b2 ** int(state.count)
        return rates_from_moments((v / correction for v in jax.tree.leaves(state.nu)), self.rates.lr, self.eps)
