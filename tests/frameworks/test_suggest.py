"""suggest for Optax: torch's answer on the same problem, from one compiled step. Keras's is in backend/."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynabound.optax import adabound, adaboundw, suggest
from dynabound.tuning import SuggestError
from helpers.framework_suggest import STEPS, differ, problem, torch_suggestion


def loss(params, batch):
    first, shift, second, bias = params
    images, labels = batch
    logits = jax.nn.relu(images @ first + shift) @ second + bias
    return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=1))


def line(params, batch):
    return jnp.mean((batch[0] @ params - batch[1]) ** 2)


LINE = [(x, x.sum(1)) for x in np.random.default_rng(0).normal(size=(20, 32, 8))]


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        ({}, {}),
        (
            dict(b1=0.8, b2=0.99, eps=1e-3, amsbound=True, clip=0.5),
            dict(betas=(0.8, 0.99), eps=1e-3, amsbound=True, clip=0.5),
        ),
        (
            dict(optimizer=adaboundw, weight_decay=0.1, repeats=2),
            dict(decoupled_weight_decay=True, weight_decay=0.1, repeats=2),
        ),
        (dict(finish="sgd", validation=problem()[1][:6]),) * 2,
    ],
    ids=["defaults", "options", "decoupled decay", "validation"],
)
def test_the_answer_of_torch(ours, torchs):
    """In float64 every trial has the same losses; but torch clips to 1e-6 less than a norm, Optax to the norm."""
    start, data = problem()
    found, wanted = suggest([*map(jnp.asarray, start)], loss, data, STEPS, **ours), torch_suggestion(**torchs)
    assert differ(found, wanted) == {}
    np.testing.assert_allclose(found.start, wanted.start, rtol=1e-9)
    for one, other in zip(found.trials, wanted.trials, strict=True):
        assert (one.kind, one.repeat) == (other.kind, other.repeat)
        # The difference in clipping grows from step to step, fastest at the largest rates.
        tolerance = 1e-3 if "clip" in ours else 1e-5
        np.testing.assert_allclose(one.rate, other.rate, rtol=tolerance)
        np.testing.assert_allclose(one.losses, other.losses, rtol=tolerance)
        np.testing.assert_allclose(one.validation, other.validation, rtol=tolerance)


def test_float32_agrees_within_the_spread():
    start, data = problem()
    data = [tuple(part.astype(np.float32) for part in batch) for batch in data]
    found = suggest([jnp.asarray(weight, jnp.float32) for weight in start], loss, data, STEPS)
    assert differ(found, torch_suggestion()) == {}


def test_compiled_once_for_all_rates():
    traces = 0

    def counted(params, batch):
        nonlocal traces
        traces += 1
        return line(params, batch)

    params = jnp.zeros(8)
    suggestion = suggest(params, counted, LINE, 200)
    assert len(suggestion.trials) > 4
    assert traces == 1
    assert not params.any()


def test_options_are_arguments_of_the_optimizer():
    suggestion = suggest(jnp.zeros(8), line, LINE, 200, b1=0.8)
    assert suggestion.options == {
        "learning_rate": suggestion.lr,
        "final_learning_rate": suggestion.final_lr,
        "gamma": suggestion.gamma,
        "b1": 0.8,
    }
    adabound(**suggestion.options)
    assert str(suggestion).startswith("learning_rate = ")
    assert type(suggestion).from_dict(suggestion.to_dict()) == suggestion


def test_errors():
    with pytest.raises(ValueError, match="steps=10: must be an integer >= 84"):
        suggest(jnp.zeros(8), line, LINE, 10)
    with pytest.raises(TypeError, match=r"beta1=0\.9: suggest takes the options b1, b2"):
        suggest(jnp.zeros(8), line, LINE, 200, beta1=0.9)
    with pytest.raises(SuggestError, match="before training, on batch 1"):
        suggest(jnp.full(8, math.nan), line, LINE, 200)
    with pytest.raises(SuggestError, match="does not depend on the parameters"):
        suggest(jnp.zeros(8), lambda params, batch: jnp.sum(0 * params) + 1.0, LINE, 200)
