"""dynabound.keras against the float64 transcription of the paper, on the backend that KERAS_BACKEND names."""

import keras
import numpy as np
import pytest
from keras import ops

from dynabound.keras import AdaBound
from helpers.framework_variants import STEPS, VARIANTS, WARM_UP, float32_state, follow, gradients, keras_options


@keras.saving.register_keras_serializable(package="tests")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, top):
        self.top = top

    def __call__(self, step):
        return ops.take(self.top * WARM_UP, ops.minimum(step, len(WARM_UP) - 1))

    def get_config(self):
        return {"top": self.top}


def stepper(optimizer, variable):
    """``step(grad)``, compiled where the backend compiles."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda grad: optimizer.apply([grad], [variable]))
    if keras.backend.backend() == "torch":
        return lambda grad: optimizer.apply([ops.convert_to_tensor(grad)], [variable])
    import jax

    apply = jax.jit(optimizer.stateless_apply)

    def step(grad):
        (value,), state = apply([v.value for v in optimizer.variables], [grad], [variable.value])
        for one, new in zip([variable, *optimizer.variables], [value, *state], strict=True):
            one.assign(new)

    return step


@pytest.fixture
def double():
    """Keras keeps learning rates in floatx, and rounds Python numbers to it."""
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


def make(options, start, box):
    optimizer = AdaBound(**options)
    variable = keras.Variable(start, dtype="float64")
    if box is not None:
        variable.constraint = lambda value: ops.clip(value, *box)
    optimizer.build([variable])
    return optimizer, variable


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_thousand_steps_with_a_resume(name, scheduled):
    """Every option, in float64, over 1,000 steps, through config and saved variables in the middle."""
    variant = dict(VARIANTS[name])
    if variant.get("decoupled_weight_decay"):
        variant["weight_decay"] = 2**-4  # exact in float32, to which Keras rounds it on TensorFlow
    start, grads = gradients(variant.get("box"))
    sign = -1.0 if variant.get("maximize") else 1.0
    l2 = 0.0 if variant.get("decoupled_weight_decay") else variant.get("weight_decay", 0.0)
    options = keras_options(variant)
    if scheduled:
        options["learning_rate"] = WarmUp(variant.get("lr", 1e-3))
    optimizer, variable = make(options, start, variant.get("box"))
    path = []
    for half in (grads[: STEPS // 2], grads[STEPS // 2 :]):
        step = stepper(optimizer, variable)
        for grad in half:
            value = path[-1] if path else start
            step(sign * grad + l2 * value)
            path.append(ops.convert_to_numpy(variable.value).copy())
        store = {}
        optimizer.save_own_variables(store)
        optimizer = AdaBound.from_config(optimizer.get_config())
        optimizer.build([variable])
        optimizer.load_own_variables(store)
    wanted = np.array(list(follow(variant, scheduled, start, grads)))
    np.testing.assert_allclose(np.array(path), wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("count", "tolerance"), [(0, 5e-5), (10**4, 2e-6), (10**6, 2e-6)])
@pytest.mark.parametrize("name", ["authors", "amsbound", "paper", "exponential", "linear"])
def test_single_steps_in_float32(name, count, tolerance):
    """From a shared state: trajectories in float32 part from those in float64 by themselves."""
    variant, grad, mu, nu, reference = float32_state(name, count)
    optimizer, variable = AdaBound(**keras_options(variant)), keras.Variable(np.zeros(1000), dtype="float32")
    optimizer.build([variable])
    lr = optimizer.learning_rate.numpy()
    optimizer.set_weights([np.asarray(count), lr, mu, nu, *([nu] if optimizer.amsbound else [])])
    optimizer.apply([ops.convert_to_tensor(grad)])
    np.testing.assert_allclose(ops.convert_to_numpy(variable.value), reference.step(grad), rtol=tolerance)
