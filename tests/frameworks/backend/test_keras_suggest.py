"""suggest for Keras: torch's answer on the same problem, and a model that is left as it was."""

import keras
import numpy as np
import pytest
from keras import layers

from dynabound.keras import AdaBound, suggest
from dynabound.tuning import SuggestError
from helpers.framework_suggest import STEPS, differ, problem, torch_suggestion

LOSS = keras.losses.CategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(320, 8)).astype("float32")
Y = X.sum(1, keepdims=True)


def line(*further, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((8,)), *further, layers.Dense(1)])
    model.compile(loss="mse", **options)
    return model


def values(variables):
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def test_the_answer_of_torch():
    """Here in float32, there in float64: within the spread that they report."""
    start, data = problem()
    model = keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    model.set_weights(start)
    model.compile(loss=LOSS)
    found, wanted = suggest(model, data, STEPS), torch_suggestion()
    assert differ(found, wanted) == {}
    np.testing.assert_allclose(found.start, wanted.start, rtol=1e-5)
    assert [trial.kind for trial in found.trials] == [trial.kind for trial in wanted.trials]


def test_validation_batches_are_evaluated():
    batches = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 320, 32)]
    model = line(layers.BatchNormalization(), layers.Dropout(0.5, seed=1))
    found = suggest(model, batches, 200, validation=batches[:5])
    wanted = [model.evaluate(x, y, verbose=0) for x, y in batches[:5]]
    np.testing.assert_allclose(found.start, wanted, rtol=1e-5)
    assert {len(trial.validation) for trial in found.trials} == {5}


def test_the_model_is_left_as_it_was():
    """Weights, statistics, random seeds, the optimizer and what it makes of the next batch."""
    models = [
        line(layers.BatchNormalization(), layers.Dropout(0.2, seed=1), optimizer=AdaBound(0.01)) for _ in range(2)
    ]
    for model in models:
        model.fit(X, Y, epochs=1, verbose=0, shuffle=False)
    ours, other = models
    optimizer, before = ours.optimizer, values(ours.variables)
    assert len(before) > len(ours.get_weights())  # dropout's seed
    suggestion = suggest(ours, (X, Y), 200)
    assert suggestion.lr > 0
    assert ours.optimizer is optimizer
    for one, two in zip(values(ours.variables), before, strict=True):
        np.testing.assert_array_equal(one, two)
    for one, two in zip(values(optimizer.variables), values(other.optimizer.variables), strict=True):
        np.testing.assert_array_equal(one, two)
    for model in models:
        model.fit(X, Y, epochs=1, verbose=0, shuffle=False)
    for one, two in zip(values(ours.variables), values(other.variables), strict=True):
        np.testing.assert_array_equal(one, two)


def test_also_if_it_is_interrupted():
    model = line()
    before = values(model.variables)

    def stop(made, most):
        if made == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suggest(model, (X, Y), 200, progress=stop)
    for one, two in zip(values(model.variables), before, strict=True):
        np.testing.assert_array_equal(one, two)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return X[32 * index :][:32], Y[32 * index :][:32]


def test_kinds_of_data():
    """Batches from a list and from a PyDataset are the same; arrays are shuffled, with weights if there are any."""
    listed = suggest(line(), [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 320, 32)], 200)
    assert suggest(line(), Batches(), 200) == listed
    whole = suggest(line(), (X, Y), 200)
    assert whole.start != listed.start
    weighted = suggest(line(), (X, Y, np.full(len(X), 3.0, "float32")), 200)
    np.testing.assert_allclose(weighted.start, 3 * np.array(whole.start), rtol=1e-5)


def test_losses_by_output_and_their_weights():
    inputs = layers.Input((8,))
    outputs = {"one": layers.Dense(1, name="one")(inputs), "two": layers.Dense(1, name="two")(inputs)}
    keras.utils.set_random_seed(0)
    model = keras.Model(inputs, outputs)
    model.compile(loss={"one": "mse", "two": "mae"}, loss_weights={"one": 1.0, "two": 0.5})
    wanted = model.evaluate(X[:32], {"one": Y[:32], "two": Y[:32]}, verbose=0)[0]
    batch = X[:32], {"one": Y[:32], "two": Y[:32]}
    found = suggest(model, [batch] * 5, 200)
    np.testing.assert_allclose(found.start[0], wanted, rtol=1e-5)


def test_options_are_arguments_of_the_optimizer():
    suggestion = suggest(line(), (X, Y), 200, beta_1=0.8, global_clipnorm=1.0, weight_decay=0.01, amsbound=True)
    assert suggestion.options["learning_rate"] == suggestion.lr
    assert suggestion.options["final_learning_rate"] == suggestion.final_lr
    AdaBound(**suggestion.options)


def test_errors():
    with pytest.raises(TypeError, match=r"betas=0\.9: suggest takes the options beta_1, beta_2"):
        suggest(line(), (X, Y), 200, betas=0.9)
    with pytest.raises(ValueError, match="must be built, and compiled with a loss"):
        suggest(keras.Sequential([layers.Dense(1)]), (X, Y), 200)
    with pytest.raises(SuggestError, match="before training, on batch 1"):
        suggest(line(), (X * np.nan, Y), 200)

    class Own(keras.Sequential):
        def compute_loss(self, *args, **options):
            return 0.0

    own = Own([layers.Input((8,)), layers.Dense(1)])
    own.compile(loss="mse")
    with pytest.raises(ValueError, match=r"overrides compute_loss\(\)"):
        suggest(own, (X, Y), 200)
