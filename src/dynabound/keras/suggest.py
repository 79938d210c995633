"""``suggest`` for Keras: a second trainer of the same layers runs the trials, and the compiled model is restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import keras
import numpy as np
from keras import ops

from dynabound.keras.adabound import AdaBound
from dynabound.tuning.known_rates import AdamsRates, rates_from_moments
from dynabound.tuning.suggestion import LearningRateSuggestion
from dynabound.tuning.trials import Plan, ProgressCallback, TrialRates, TrialRunner, check_plan, suggest_with

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SuggestOptions", "suggest"]


class SuggestOptions(TypedDict, total=False):
    """The optimizer's arguments that the trials and the run share."""

    beta_1: float
    beta_2: float
    epsilon: float
    amsbound: bool
    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None


def suggest(
    model: keras.Model,
    data: Any,
    steps: int,
    *,
    batch_size: int = 32,
    finish: Literal["auto", "adam", "sgd"] = "auto",
    lr: float = 0.01,
    validation: Iterable[Any] | None = None,
    budget: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    **options: Unpack[SuggestOptions],
) -> LearningRateSuggestion:
    """Find ``learning_rate``, ``final_learning_rate`` and ``gamma`` for this model by short trials, before training.

    The rule is that of ``dynabound.suggest``, described in docs/suggest-why.md. One step is compiled for all trials.
    The model's weights, its random seeds and its optimizer are restored exactly, also after an exception.

    Args:
        model: a built model, compiled with the loss to minimise and any optimizer.
        data: a tuple of arrays ``(x, y)`` or ``(x, y, sample_weight)``, which is shuffled and divided into batches; or
            an iterable of batches that are such tuples: a ``tf.data.Dataset``, ``PyDataset``, DataLoader or list.
            ``budget`` / 12 · ``repeats`` batches are kept in memory.
        steps: the length of the planned run, in optimizer steps.
        batch_size: the size of the batches that arrays are divided into.
        finish: "auto": Adam with a decay, by an upper bound that falls as 1/t, unless bounds that close around a rate
            of SGD end clearly lower in a trial, or Adam's rates differ too much for one bound. "adam": Adam without a
            decay. "sgd": bounds that close late.
        lr: the first rate of Adam that is tried.
        validation: batches, as tuples, that the trials are judged by; all are used after each trial. None: the trials
            are judged by their last training losses.
        budget: training steps to spend in each repeat. None: 1.4 times as many as the run has, but at most 600.
        repeats: the number of repetitions, with other batches; the answer is the geometric mean.
        seed: seed of the order of arrays.
        progress: called with (steps made, largest number of steps) after each step.
        options: ``beta_1``, ``beta_2``, ``epsilon``, ``amsbound``, ``weight_decay``, ``clipnorm``, ``clipvalue``,
            ``global_clipnorm`` of the optimizer.

    Raises:
        dynabound.tuning.SuggestError: the loss is not finite at the start, does not depend on the weights, or never
            decreases.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> from dynabound.keras import AdaBound, suggest
        >>> x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
        >>> y = x.sum(1, keepdims=True)
        >>> model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> suggestion = suggest(model, (x, y), steps=400)
        >>> model.compile(optimizer=AdaBound(**suggestion.options), loss="mse")
        >>> print(suggestion)
        learning_rate = ...
        final_learning_rate = ...
        gamma = ...
    """
    plan = check_plan(steps, budget, repeats, finish, lr, validation, options, SuggestOptions.__annotations__)
    _check_model(model)
    runner = KerasRunner(model, options, progress, plan)
    try:
        return suggest_with(runner, _batches(data, batch_size, seed), options, LearningRateSuggestion)
    finally:
        runner.rewind()


class KerasRunner(TrialRunner):
    """Trains the model through a trainer of its own, whose optimizer has variables for the rates."""

    def __init__(
        self, model: keras.Model, options: Mapping[str, Any], progress: ProgressCallback | None, plan: Plan
    ) -> None:
        super().__init__(progress, plan)
        self.optimizer, self.trainer = TrialAdaBound(**options), Trainer(model)
        self.trainer.compile(
            optimizer=self.optimizer,
            loss=model.loss,
            loss_weights=(model.get_compile_config() or {}).get("loss_weights"),
            run_eagerly=model.run_eagerly,
            jit_compile=model.jit_compile,
            auto_scale_loss=False,
        )
        # A copy: the arrays of JAX may share memory that a step reuses.
        self.first = [(variable, np.array(ops.convert_to_numpy(variable))) for variable in model.variables]

    def rewind(self) -> None:
        """Restore the model's variables."""
        for variable, value in self.first:
            variable.assign(value)
        if keras.backend.backend() == "torch":
            self.trainer.zero_grad(set_to_none=True)

    def start(self, rates: TrialRates | None) -> None:
        """Restore the weights and reset the optimizer; without rates the learning rate is 0 and no weight changes."""
        self.rewind()
        self.rates = rates or TrialRates(0.0, gamma=1.0)  # with γ = 0 the upper bound would be ∞ · 0
        self.optimizer.restart(self.rates)

    def step(self, batch: Any) -> float:
        self.trainer.reset_metrics()  # otherwise the loss would be a running mean
        return float(self.trainer.train_on_batch(*batch, return_dict=True)["loss"])

    def evaluate(self, batch: Any) -> float:
        self.trainer.reset_metrics()
        return float(self.trainer.test_on_batch(*batch, return_dict=True)["loss"])

    def adams_rates(self) -> AdamsRates:
        return rates_from_moments(self.optimizer.unbiased_second_moments(), self.rates.lr, self.optimizer.epsilon)


class Trainer(keras.Model):  # type: ignore[misc]
    """The same layers as ``model``, compiled with another optimizer."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model = model
        if hasattr(model, "output_names"):  # a dict of losses refers to them
            self.output_names = model.output_names

    def call(self, x: Any, training: bool | None = None) -> Any:
        """The model's output; Keras passes ``training`` on."""
        return self.model(x)


class TrialAdaBound(AdaBound):
    """AdaBound whose rates are variables, so that one compiled step is enough for all trials; with γ = 0 it is Adam."""

    def __init__(self, **options: Any) -> None:
        super().__init__(base_learning_rate=1.0, **options)
        self.gamma: Any = self.add_variable((), name="gamma")
        self.final_learning_rate: Any = self.add_variable((), name="final_learning_rate")

    def restart(self, rates: TrialRates) -> None:
        """Reset the state and set these rates."""
        for variable in self.variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))
        self.learning_rate = rates.lr
        self.gamma.assign(rates.gamma)
        # The bounds follow the learning rate from its base, 1.
        self.final_learning_rate.assign(rates.final_lr / rates.lr if rates.lr else 0.0)

    def _backend_update_step(self, grads: list[Any], trainable_variables: list[Any], learning_rate: Any) -> None:
        # Keras's operations on every backend: the torch step does not take variables as rates.
        super(AdaBound, self)._backend_update_step(grads, trainable_variables, self._coefficients(learning_rate))

    def unbiased_second_moments(self) -> Iterator[np.ndarray[Any, Any]]:
        """The second moments without the bias of the first steps."""
        correction = 1 - self.beta_2 ** int(self.iterations)
        for moment in self._second_moments:
            if moment is not None:
                yield np.asarray(ops.convert_to_numpy(moment)) / correction


def _check_model(model: keras.Model) -> None:
    if not (model.built and getattr(model, "loss", None) is not None):
        raise ValueError("model: must be built, and compiled with a loss; call it once on a batch, and compile() it")
    for name in ("train_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(f"model: its class overrides {name}(), but the trials train with the compiled loss only")


def _batches(data: Any, batch_size: int, seed: int) -> Iterable[Any]:
    """The batches of a tuple of arrays, in random order; anything else is an iterable of batches."""
    if isinstance(data, keras.utils.PyDataset):
        return (data[index] for index in range(len(data)))
    if not isinstance(data, tuple):
        return data  # type: ignore[no-any-return]
    size = len(keras.tree.flatten(data)[0])
    order = np.random.default_rng(seed).permutation(size)
    # An incomplete last batch is left out: it would need a compiled step of its own.
    parts = [order[start : start + batch_size] for start in range(0, size - batch_size + 1, batch_size)]
    return (keras.tree.map_structure(itemgetter(part), data) for part in parts)
