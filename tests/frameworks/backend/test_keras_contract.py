"""What every Keras optimizer promises, on the backend that KERAS_BACKEND names."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE

from dynabound.keras import AdaBound, AMSBound
from helpers.framework_training import keras_losses, torch_losses

both = pytest.mark.parametrize("make", [AdaBound, AMSBound])


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 4)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5, 3.0], "float32") + 0.1)[:, None]


def network(optimizer, **compile_options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse", **compile_options)
    return model


def fit(model, epochs=2, **options):
    return model.fit(*data(), epochs=epochs, batch_size=16, shuffle=False, verbose=0, **options).history["loss"]


def assert_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or dict(rtol=0, atol=0)))


@both
def test_variables(make):
    """Iterations, learning rate, and two or three moments for each variable."""
    variables = [keras.Variable(np.ones(3)), keras.Variable(np.ones((2, 2)))]
    optimizer = make()
    optimizer.build(variables)
    assert len(optimizer.variables) == 2 + len(variables) * (3 if optimizer.amsbound else 2)
    optimizer.apply([ops.ones(3), ops.ones((2, 2))], variables)
    assert int(optimizer.iterations) == 1
    np.testing.assert_allclose(ops.convert_to_numpy(variables[0].value), 0.999, rtol=1e-6)
    store = {}
    optimizer.save_own_variables(store)
    assert len(store) == len(optimizer.variables)


@both
def test_config(make):
    options = dict(gamma=0.01, bounds=("constant", 0.5, 2.0), weight_decay=0.1, clipnorm=1.0, beta_1_decay="harmonic")
    optimizer = make(1e-2, final_learning_rate=0.3, debias=False, sqrt_decay=True, use_ema=True, **options)
    optimizer.learning_rate = 1e-4
    config = optimizer.get_config()
    clone = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(clone) is make
    assert clone.get_config() == config
    assert config["base_learning_rate"] == 1e-2
    with pytest.raises((TypeError, ValueError), match="finale"):
        make(finale_learning_rate=0.1)


@keras.saving.register_keras_serializable(package="tests")
def closing(step):
    return step / (step + 10.0), 1.0 + 10.0 / step


def test_a_registered_bound_function_is_in_the_config():
    clone = keras.optimizers.deserialize(keras.optimizers.serialize(AdaBound(bounds=closing)))
    assert clone.bounds is closing
    fit(network(clone))


@both
def test_save_and_load_resume_bit_for_bit(make, tmp_path):
    whole, half = network(make(1e-2, gamma=0.05)), network(make(1e-2, gamma=0.05))
    fit(whole, 2)
    fit(half, 1)
    half.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is make
    fit(loaded, 1)
    assert_weights(loaded, whole)


def test_a_loaded_model_keeps_its_bounds_when_a_callback_lowers_the_rate(tmp_path):
    """ReduceLROnPlateau after load_model scales the bounds from the first learning rate, not from the loaded one."""

    def lower(model, factor):
        model.optimizer.learning_rate = float(np.asarray(model.optimizer.learning_rate.numpy())) * factor

    whole, half = network(AdaBound(1e-2, gamma=1.0)), network(AdaBound(1e-2, gamma=1.0))
    for model in (whole, half):
        fit(model, 1)
        lower(model, 0.5)
        fit(model, 1)
    half.save(tmp_path / "model.keras")
    half = keras.saving.load_model(tmp_path / "model.keras")
    callback = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.2, patience=0, min_delta=1e9)
    for model in (whole, half):
        fit(model, 2, callbacks=[callback])
    assert half.optimizer.base_learning_rate == 1e-2
    assert float(half.optimizer.learning_rate.numpy()) < 4e-3
    assert_weights(half, whole)


def test_the_base_of_a_schedule():
    schedules = keras.optimizers.schedules
    assert AdaBound(schedules.ExponentialDecay(0.02, 100, 0.5)).base_learning_rate == pytest.approx(0.02)
    warm = schedules.CosineDecay(0.0, 500, warmup_target=0.03, warmup_steps=77)
    assert AdaBound(warm).base_learning_rate == pytest.approx(0.03)
    assert AdaBound(warm, base_learning_rate=0.1).base_learning_rate == 0.1
    assert AdaBound(lambda: 0.1, base_learning_rate=0.1).base_learning_rate == 0.1
    with pytest.raises(ValueError, match="give the peak of the learning rate"):
        AdaBound(lambda: 0.1)
    fit(network(AdaBound(warm)))


@pytest.mark.parametrize(
    "options",
    [
        dict(clipnorm=0.1),
        dict(clipvalue=0.01),
        dict(global_clipnorm=0.1),
        dict(use_ema=True, ema_overwrite_frequency=3),
        dict(weight_decay=0.1),
        dict(loss_scale_factor=128.0),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_base_class(options):
    """As Keras's own Adam takes them: with the bounds out of reach, AdaBound is Adam."""
    adam = network(keras.optimizers.Adam(1e-2, epsilon=1e-8, **options))
    ours = network(AdaBound(1e-2, bounds=("constant", 0.0, np.inf), **options))
    losses = fit(adam), fit(ours)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert_weights(ours, adam, rtol=1e-4, atol=1e-5)


def test_gradient_accumulation():
    """Two halves of a batch make the step of the whole, and count as one."""
    whole, halves = (
        network(AdaBound(1e-2, gamma=0.1)),
        network(AdaBound(1e-2, gamma=0.1, gradient_accumulation_steps=2)),
    )
    x, y = data()
    whole.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
    halves.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    assert int(halves.optimizer.iterations) == int(whole.optimizer.iterations) == 4
    assert_weights(halves, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_precision_policies(policy):
    """Moments are float32, also those of bfloat16 variables."""
    keras.config.set_dtype_policy(policy)
    try:
        model = network(AdaBound(1e-2))
        losses = fit(model, 4)
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < losses[0]
    moments = [v for v in model.optimizer.variables if "momentum" in v.path or "velocity" in v.path]
    assert len(moments) == 8
    assert {keras.backend.standardize_dtype(v.dtype) for v in moments} == {"float32"}
    assert {keras.backend.standardize_dtype(v.dtype) for v in model.trainable_variables} == {
        "bfloat16" if policy == "bfloat16" else "float32"
    }


def test_a_learning_rate_of_0_moves_nothing_until_it_is_raised():
    model = network(AdaBound(0.0))
    before = model.get_weights()
    fit(model, 1)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    model.optimizer.learning_rate = 1e-2
    assert fit(model, 4)[-1] < fit(model, 1)[0] * 2
    assert not np.array_equal(before[0], model.get_weights()[0])


BAD = [("learning_rate", -1.0), ("final_learning_rate", np.inf), ("beta_1", 1.0), ("gamma", 0.0), ("bounds", "cubic")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *BAD,
        *[("beta_1_decay", 2.0), ("base_learning_rate", -1.0), ("gamma", None)],
        *[("weight_decay", -1.0), ("weight_decay", np.nan)],
    ],
)
def test_bad_hyperparameters(name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name}="):
        AdaBound(**{name: value})
    with pytest.raises(ValueError, match="use AdaBound"):
        AMSBound(amsbound=False)


class Table(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return [1e-3, 1e-2, 1e-3][int(step)]


def test_a_schedule_without_an_end_to_search_needs_its_peak():
    # JAX, which compiles the schedule, cannot even begin to index.
    with pytest.raises(ValueError, match=r"base_learning_rate=None: .*(Index|Concretization\w*)Error.*; give the peak"):
        AdaBound(Table())
    assert AdaBound(Table(), base_learning_rate=1e-2).base_learning_rate == 1e-2


@pytest.fixture
def double(monkeypatch):
    """Compute in float64, which Keras makes float32 in some operations on JAX and torch, whatever floatx is."""
    monkeypatch.setitem(BIT64_TO_BIT32_DTYPE, "float64", "float64")
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", ["perceptron", "convolutions"])
def test_the_same_losses_as_torch(kind):
    np.testing.assert_allclose(keras_losses(kind), torch_losses(kind), rtol=1e-9)
