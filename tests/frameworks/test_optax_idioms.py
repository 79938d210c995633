"""dynabound.optax in Optax's own idioms: JAX's transformations, wrappers, checkpoints, dtypes, convergence."""

import functools
import inspect

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from jax.sharding import Mesh, PartitionSpec

from dynabound import optax as ours

MAKERS = {
    "adabound": functools.partial(ours.adabound, 1e-2, gamma=0.1),
    "amsbound": functools.partial(ours.amsbound, 1e-2, gamma=0.1, weight_decay=1e-3),
    "adaboundw": functools.partial(ours.adaboundw, 1e-2, gamma=0.1, weight_decay=1e-3),
    "schedule": functools.partial(ours.adaboundw, optax.linear_schedule(1e-2, 1e-3, 50), weight_decay=1e-3),
}
make_each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
PARAMS = {
    "a": jnp.arange(6.0).reshape(2, 3) / 3 - 0.7,
    "b": (jnp.array([0.3, -1.5]), jnp.array(2.0, float)),
}  # a dtype, or JAX would call the scalar weakly typed


def loss(params):
    return sum(
        jnp.sum((leaf - 0.5) ** 2 * (1 + jnp.arange(leaf.size).reshape(leaf.shape))) for leaf in jax.tree.leaves(params)
    )


def step(tx, params, state):
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


def train(tx, steps=5, params=PARAMS):
    state = tx.init(params)
    for _ in range(steps):
        params, state = step(tx, params, state)
    return params, state


def assert_same(one, other, rtol=1e-12):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol, atol=1e-14), one, other)


@make_each
def test_jit_scan_and_vmap_change_nothing(make):
    tx = make()
    wanted, state = train(tx)
    compiled = jax.jit(functools.partial(train, tx))()
    assert jax.tree.structure(compiled[1]) == jax.tree.structure(state)
    assert_same(compiled, (wanted, state))

    def body(carry, _):
        return step(tx, *carry), None

    scanned, _ = jax.jit(lambda: jax.lax.scan(body, (PARAMS, tx.init(PARAMS)), length=5))()
    assert_same(scanned, (wanted, state))
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), PARAMS)
    both, _ = jax.jit(jax.vmap(lambda params: train(tx, params=params)))(stack)
    assert_same(jax.tree.map(lambda leaf: leaf[0], both), wanted)
    assert_same(
        jax.tree.map(lambda leaf: leaf[1], both), train(tx, params=jax.tree.map(lambda leaf: 2 * leaf, PARAMS))[0]
    )


def test_shard_map_and_pmap():
    """Each device updates its part; the rule is elementwise, so that the parts make the whole."""
    tx = ours.adabound(1e-2)
    params, grads = jnp.linspace(-1.0, 1.0, 8), jnp.linspace(3.0, -2.0, 8)
    wanted, _ = tx.update(grads, tx.init(params))
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    part = PartitionSpec("x")
    shard = jax.shard_map(lambda p, g: tx.update(g, tx.init(p))[0], mesh=mesh, in_specs=(part, part), out_specs=part)
    assert_same(jax.jit(shard)(params, grads), wanted)
    mapped = jax.pmap(lambda p, g: tx.update(g, tx.init(p))[0])(params[None], grads[None])
    assert_same(mapped[0], wanted)


def test_the_gradient_of_a_step():
    """With respect to gradients, 0 included, and to the learning rate; against differences."""

    def moved(learning_rate, grads):
        tx = ours.adabound(learning_rate, gamma=1e-4)
        state = tx.init(grads)
        _, state = tx.update(grads, state)
        return jnp.sum(tx.update(2 * grads, state)[0] * jnp.arange(1.0, 4.0))

    grads = jnp.array([1.0, -0.3, 0.0])
    by_lr, by_grads = jax.grad(moved, argnums=(0, 1))(1e-3, grads)
    assert jnp.isfinite(by_grads).all()
    assert float(by_lr) == pytest.approx(float(moved(1e-3 + 1e-7, grads) - moved(1e-3 - 1e-7, grads)) / 2e-7, rel=1e-6)
    for i in (0, 1):
        near = [moved(1e-3, grads.at[i].add(d)) for d in (1e-6, -1e-6)]
        assert float(by_grads[i]) == pytest.approx(float(near[0] - near[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_a_whole_schedule_compiles_once():
    traces = []
    tx = ours.adabound(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 30))

    @jax.jit
    def compiled(params, state):
        traces.append(None)
        return step(tx, params, state)

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(40):
        params, state = compiled(params, state)
    assert len(traces) == 1


def test_inject_hyperparams():
    """Hyper-parameters as arrays in the state; by name of a base the bounds follow the learning rate there too."""
    schedule = lambda count: 2e-2 - 9e-4 * count  # noqa: E731  (Optax's schedules are in float32)
    inject = optax.inject_hyperparams(ours.adabound, hyperparam_dtype=jnp.float64)
    injected = inject(learning_rate=schedule, base_learning_rate=2e-2, gamma=0.1, amsbound=True)
    wanted, _ = train(ours.amsbound(schedule, gamma=0.1), 20)
    found, state = jax.jit(lambda: train(injected, 20))()
    assert_same(found, wanted, rtol=1e-11)
    assert state.hyperparams["final_learning_rate"] == 0.1
    tx = optax.inject_hyperparams(ours.adaboundw)(1e-2, weight_decay=0.1, b1=optax.linear_schedule(0.5, 0.9, 5))
    _, state = train(tx)
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    unmoved, _ = step(tx, PARAMS, state)
    assert_same(unmoved, PARAMS)


def test_every_factory_can_be_injected():
    for factory in (ours.adabound, ours.amsbound, ours.adaboundw, ours.scale_by_adabound):
        assert not [p for p in inspect.signature(factory).parameters.values() if p.kind is p.VAR_KEYWORD]
        tx = optax.inject_hyperparams(factory)(beta1_decay=0.99, eps=1e-6)
        jax.jit(functools.partial(step, tx))(PARAMS, tx.init(PARAMS))


def test_wrappers():
    tx = ours.adabound(1e-2)
    wanted, _ = train(tx)
    masked = optax.masked(tx, {"a": True, "b": (False, False)})
    found, _ = train(optax.chain(masked, optax.masked(optax.set_to_zero(), {"a": False, "b": (True, True)})))
    assert_same(found, {"a": wanted["a"], "b": PARAMS["b"]})
    parts = optax.multi_transform({"x": tx, "y": ours.amsbound(1e-2)}, {"a": "x", "b": ("y", "x")})
    found, _ = train(parts)
    assert_same((found["a"], found["b"][1]), (wanted["a"], wanted["b"][1]))
    found, _ = train(optax.apply_if_finite(tx, 3))
    assert_same(found, wanted)
    nan = jax.tree.map(lambda leaf: leaf * jnp.nan, PARAMS)
    finite = optax.apply_if_finite(tx, 3)
    updates, _ = finite.update(nan, finite.init(PARAMS), PARAMS)
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    several = optax.MultiSteps(ours.adabound(1e-2), 2)
    params, state = PARAMS, several.init(PARAMS)
    for _ in range(10):
        params, state = step(several, params, state)
    assert_same(params, wanted, rtol=1e-9)


@make_each
def test_checkpoints_of_flax_and_orbax(make, tmp_path):
    tx = make()
    params, state = train(tx)
    wanted = step(tx, params, state)
    back = flax.serialization.from_bytes(tx.init(PARAMS), flax.serialization.to_bytes(state))
    assert_same(step(tx, params, back), wanted, rtol=0)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        back = checkpointer.restore(tmp_path / "state", jax.tree.map(jnp.zeros_like, state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert_same(step(tx, params, back), wanted, rtol=0)


@make_each
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_dtypes_are_kept(make, dtype):
    """Updates have their parameter's dtype; moments of 16-bit parameters are float32."""
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    tx = make()
    params, state = jax.jit(lambda: train(tx, params=params))()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
    moments = [optax.tree_utils.tree_get(state, name) for name in ("mu", "nu")]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(moments)} == {"float64" if dtype == "float64" else "float32"}
    updates, _ = tx.update(params, state, params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(updates)} == {dtype}


def test_mu_dtype():
    _, state = train(ours.adabound(1e-2, mu_dtype=jnp.bfloat16))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(optax.tree_utils.tree_get(state, "mu"))} == {"bfloat16"}


def test_the_count_does_not_overflow():
    tx = ours.adabound(1e-3)
    last = jnp.iinfo(jnp.int32).max
    state = optax.tree_utils.tree_set(tx.init(jnp.ones(1)), count=jnp.asarray(last, jnp.int32))
    updates, state = tx.update(jnp.ones(1), state)
    assert optax.tree_utils.tree_get(state, "count") == last
    assert jnp.isfinite(updates).all()


def test_without_decay_update_needs_no_params():
    tx = ours.adabound()
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    assert (updates < 0).all()


def test_the_mask_of_weight_decay():
    for make in (ours.adabound, ours.adaboundw):
        mask = {"a": True, "b": (False, False)}
        decayed, plain = (train(make(1e-2, weight_decay=w, mask=mask))[0] for w in (0.5, 0.0))
        assert not np.allclose(decayed["a"], plain["a"])
        assert_same(decayed["b"], plain["b"])


PROBLEMS = {
    "parabola": (lambda x: jnp.sum((x - jnp.array([1.0, -1.0, 1.0])) ** 2), [-1.0, 10.0, 1.0], [1.0, -1.0, 1.0]),
    "rosenbrock": (lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, [0.0, 0.0], [1.0, 1.0]),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("make", [ours.adabound, ours.amsbound, ours.adaboundw])
def test_convergence(make, problem):
    """Optax's own problems; the final learning rate is one at which SGD is stable on them."""
    function, start, wanted = PROBLEMS[problem]
    final = {"parabola": 0.1, "rosenbrock": 2e-3}[problem]
    tx = make(1e-2, final_learning_rate=final)

    def body(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(function)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    start = jnp.array(start)
    (params, _), _ = jax.jit(lambda: jax.lax.scan(body, (start, tx.init(start)), length=20_000))()
    np.testing.assert_allclose(params, wanted, atol=1e-2)
