"""dynabound.optax against the float64 transcription of the paper."""

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dynabound import optax as ours
from helpers.framework_variants import (
    STEPS,
    VARIANTS,
    WARM_UP,
    Reference,
    float32_state,
    follow,
    gradients,
    optax_options,
)


def transformation(variant, learning_rate):
    options = {**optax_options(variant), "learning_rate": learning_rate}
    make = ours.adaboundw if variant.get("decoupled_weight_decay") else ours.adabound
    tx = make(**options)
    return optax.chain(optax.scale(-1.0), tx) if variant.get("maximize") else tx


def trainer(tx, box):
    """A whole run as one compiled scan; its parameters after every step, and its last state."""

    def step(carry, grad):
        params, state = carry
        updates, state = tx.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        if box is not None:
            params = optax.projections.projection_box(params, *box)
        return (params, state), params

    return jax.jit(lambda carry, grads: jax.lax.scan(step, carry, grads))


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_thousand_steps_with_a_resume(name, scheduled):
    """Every option, in float64, over 1,000 steps, through a checkpoint in the middle."""
    variant = VARIANTS[name]
    start, grads = gradients(variant.get("box"))
    lr = variant.get("lr", 1e-3)
    tx = transformation(variant, (lambda t: lr * jnp.asarray(WARM_UP)[t]) if scheduled else lr)
    train = trainer(tx, variant.get("box"))
    (params, state), first = train((jnp.asarray(start), tx.init(jnp.asarray(start))), grads[: STEPS // 2])
    saved = flax.serialization.to_bytes(state)
    state = flax.serialization.from_bytes(tx.init(params), saved)
    _, second = train((params, state), grads[STEPS // 2 :])
    wanted = np.array(list(follow(variant, scheduled, start, grads)))
    np.testing.assert_allclose(np.concatenate([first, second]), wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("count", "tolerance"), [(0, 5e-5), (10**4, 2e-6), (10**6, 2e-6)])
@pytest.mark.parametrize("name", ["authors", "amsbound", "paper", "exponential", "linear"])
def test_single_steps_in_float32(name, count, tolerance):
    """From a shared state: trajectories in float32 part from those in float64 by themselves."""
    variant, grad, mu, nu, reference = float32_state(name, count)
    tx = ours.adabound(**optax_options(variant))
    nu_max = jnp.asarray(nu) if variant.get("amsbound") else None
    state = (optax.EmptyState(), ours.ScaleByAdaBoundState(jnp.asarray(count), mu, nu, nu_max), optax.EmptyState())
    updates, _ = jax.jit(tx.update)(jnp.asarray(grad), jax.tree.map(jnp.asarray, state))
    assert updates.dtype == jnp.float32
    np.testing.assert_allclose(updates, reference.step(grad), rtol=tolerance)


def test_the_bounds_do_not_follow_a_schedule_of_their_own():
    """A final learning rate that is a schedule is used as it is."""
    start, grads = gradients()
    grads = grads[:50]
    final = lambda t: 0.1 / (1.0 + t)  # noqa: E731
    tx = ours.adabound(lambda t: 1e-3 * (1.0 + t), final_learning_rate=final, gamma=0.1)
    _, path = trainer(tx, None)((jnp.asarray(start), tx.init(jnp.asarray(start))), grads)
    reference = Reference(start, gamma=0.1)
    for count, grad in enumerate(grads):
        reference.lr = 1e-3 * (1 + count)
        reference.final_lr = final(count) * reference.base_lr / reference.lr
        reference.step(grad)
    np.testing.assert_allclose(path[-1], reference.x, rtol=1e-11)


def test_a_step_at_learning_rate_0_moves_nothing():
    for tx in (
        ours.adabound(0.0),
        ours.adabound(0.0, bounds=("constant", 0.0, np.inf)),
        ours.adabound(lambda t: 0 * t),
    ):
        updates, state = tx.update(jnp.array([1.0, 0.0]), tx.init(jnp.zeros(2)))
        assert not updates.any()
        assert optax.tree_utils.tree_get(state, "mu")[0] != 0


def test_the_base_of_a_schedule_is_its_peak():
    """A schedule that lifts the learning rate lifts no bound above the final learning rate's."""
    warm = optax.warmup_cosine_decay_schedule(0.0, 0.02, 300, 5000)
    tx, explicit = ours.adabound(warm), ours.adabound(warm, base_learning_rate=0.02)
    states = [t.init(jnp.zeros(1)) for t in (tx, explicit)]
    at_peak = [optax.tree_utils.tree_set(state, count=jnp.asarray(300, jnp.int32)) for state in states]
    assert tx.update(jnp.ones(1), at_peak[0])[0] == explicit.update(jnp.ones(1), at_peak[1])[0]
    with pytest.raises(ValueError, match="base_learning_rate=0"):
        ours.adabound(warm, base_learning_rate=0)
    with pytest.raises(ValueError, match="must be None where final_learning_rate is a schedule"):
        ours.adabound(warm, base_learning_rate=0.1, final_learning_rate=warm)


BAD = [
    *[("learning_rate", -1.0), ("final_learning_rate", np.inf), ("eps", -1e-8), ("gamma", 0.0), ("b1", 1.0)],
    *[("b2", -0.1), ("beta1_decay", 0.0), ("beta1_decay", "geometric"), ("bounds", "cubic"), ("gamma", None)],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_hyperparameters(name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name}="):
        ours.adabound(**{name: value})


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, None, True])
@pytest.mark.parametrize("make", [ours.adabound, ours.amsbound, ours.adaboundw])
def test_bad_weight_decay(make, value):
    with pytest.raises((ValueError, TypeError), match=f"weight_decay={value}: must be a finite number >= 0"):
        make(weight_decay=value)


def test_complex_parameters_are_split():
    """As torch does it: real and imaginary parts are two elements."""
    with pytest.raises(TypeError, match="split_real_and_imaginary"):
        ours.adabound().init(jnp.zeros(2, jnp.complex128))
    tx = optax.contrib.split_real_and_imaginary(ours.adabound())
    updates, _ = tx.update(jnp.array([3.0 - 4.0j]), tx.init(jnp.zeros(1, jnp.complex128)))
    np.testing.assert_allclose(updates, [-1e-3 + 1e-3j], rtol=1e-6)
