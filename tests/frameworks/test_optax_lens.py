"""Learning rates and moments of Optax states, beside those of torch."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rich.console
import torch

import dynabound
from dynabound import optax as ours
from dynabound.lens import LearningRateLens
from helpers.framework_variants import Reference

SHAPES = {"conv": (4, 2, 3, 3), "bias": (5,)}
SCHEDULE = optax.linear_schedule(1e-2, 1e-3, 30)


def training(steps=20, **options):
    """Gradients, and a torch optimizer and an Optax state that have had them."""
    rng = np.random.default_rng(0)
    start = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    grads = [{name: rng.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(steps)]
    module = torch.nn.ParameterDict({name: torch.tensor(value) for name, value in start.items()})
    optimizer = dynabound.AdaBound(module.parameters(), lr=1e-2, gamma=0.05, **options)
    tx = ours.adabound(1e-2, gamma=0.05, **options)
    params = jax.tree.map(jnp.asarray, start)
    state, records = tx.init(params), []
    with LearningRateLens(optimizer, module, every=1) as lens:
        for grad in grads:
            for name, param in module.items():
                param.grad = torch.tensor(grad[name])
            optimizer.step()
            updates, state = tx.update(grad, state, params)
            params = optax.apply_updates(params, updates)
            records.append(ours.learning_rates(state, 1e-2, gamma=0.05))
    return module, optimizer, lens, tx, params, state, records


@pytest.mark.parametrize("amsbound", [False, True])
def test_effective_lr_is_the_transcription_s(amsbound):
    reference = Reference(np.zeros(3), amsbound=amsbound, lr=1e-2)
    tx = ours.adabound(SCHEDULE, amsbound=amsbound)
    state = tx.init(jnp.zeros(3))
    rates = jax.jit(lambda state: ours.effective_lr(state, learning_rate=SCHEDULE))
    for count in range(30):
        grad = np.array([1.0, -1e-3, 30.0]) * np.cos(count)
        reference.lr = float(SCHEDULE(jnp.asarray(count)))
        reference.step(grad)
        _, state = tx.update(jnp.asarray(grad), state)
        np.testing.assert_allclose(rates(state), reference.rate, rtol=1e-6)  # the schedule is in float32


def test_effective_lr_needs_a_step_and_one_state():
    state = ours.adabound().init(jnp.zeros(2))
    with pytest.raises(ValueError, match="no update has been made"):
        ours.effective_lr(state)
    with pytest.raises(ValueError, match="holds 2"):
        ours.effective_lr((state, state))


def test_the_history_is_the_torch_lens_s():
    """The same numbers, and so the same table and figures."""
    *_, lens, _, _, _, records = training()
    history = ours.history(records)
    assert history.steps == lens.steps
    assert set(history.shapes) == set(lens.shapes)
    for name in SHAPES:
        np.testing.assert_array_equal(history.series(name, "lost"), np.nan)  # Optax does not keep the parameters
        for column in set(lens.columns) - {"lost"}:
            np.testing.assert_allclose(history.series(name, column), lens.series(name, column), rtol=1e-9)
    tables = [io.StringIO(), io.StringIO()]
    for record, file in zip((history, lens), tables, strict=True):
        record.table(rich.console.Console(file=file, width=120))
    rows = [sorted(file.getvalue().splitlines()) for file in tables]  # a tree's leaves are sorted by name
    assert rows[0] == rows[1]
    for draw in (history.heatmap, history.evolution, history.funnel):
        assert draw().axes


@pytest.mark.parametrize("amsbound", [False, True])
def test_moments_go_to_torch_and_back(amsbound):
    """A run that changes its framework twice is the run that does not."""
    module, optimizer, _, tx, params, state, _ = training(amsbound=amsbound)

    def to_params(weights):
        return dict(zip(module, weights, strict=True))

    def from_params(tree):
        return [tree[name] for name in module]

    rng = np.random.default_rng(1)
    grad = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    wanted, _ = tx.update(grad, state, params)
    moved = ours.from_torch(tx.init(params), optimizer.state_dict(), to_params)
    found, _ = tx.update(grad, moved, params)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-11), found, wanted)

    clones = torch.nn.ParameterDict({name: torch.tensor(np.asarray(params[name])) for name in module})
    fresh = dynabound.AdaBound(clones.parameters(), lr=1e-2, gamma=0.05, amsbound=amsbound)
    fresh.load_state_dict(ours.to_torch(state, fresh.state_dict(), from_params))
    for name, param in clones.items():
        param.grad = torch.tensor(grad[name])
    fresh.step()
    for name, param in clones.items():
        np.testing.assert_allclose(param.detach(), params[name] + wanted[name], rtol=1e-11)


@pytest.mark.parametrize("mu_dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_moments_go_to_torch_and_back(mu_dtype):
    tx = ours.adabound(1e-2, mu_dtype=mu_dtype)
    _, state = tx.update(jnp.array([1.0, -3e-3, 30.0]), tx.init(jnp.zeros(3)))
    optimizer = dynabound.AdaBound([torch.nn.Parameter(torch.zeros(3))], lr=1e-2)
    optimizer.load_state_dict(ours.to_torch(state, optimizer.state_dict(), lambda moment: [moment]))
    mu = optax.tree_utils.tree_get(state, "mu")
    assert mu.dtype == mu_dtype
    np.testing.assert_array_equal(optimizer.state_dict()["state"][0]["exp_avg"], np.asarray(mu, np.float32))
    again = ours.from_torch(tx.init(jnp.zeros(3)), optimizer.state_dict(), lambda moments: moments[0])
    np.testing.assert_array_equal(optax.tree_utils.tree_get(again, "mu"), mu)


def test_impossible_conversions():
    module, optimizer, _, tx, params, state, _ = training(steps=1)
    saved = optimizer.state_dict()

    def to_params(weights):
        return dict(zip(module, weights, strict=True))

    with pytest.raises(ValueError, match="shape"):
        ours.from_torch(tx.init({"conv": jnp.zeros(3), "bias": jnp.zeros(5)}), saved, to_params)
    with pytest.raises(ValueError, match="returned 1 arrays"):
        ours.to_torch(state, saved, lambda tree: [tree["bias"]])
    saved["state"][0]["step"] = torch.tensor(7)
    with pytest.raises(ValueError, match="one count for all"):
        ours.from_torch(tx.init(params), saved, to_params)
    ams = dynabound.AMSBound(module.parameters())
    ams.step()
    with pytest.raises(ValueError, match="amsbound=True"):
        ours.from_torch(tx.init(params), ams.state_dict(), to_params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(release=0, bounds="linear", gamma=1.0), r"no exp_avg_sq of some parameters \(release=\[0.0\]\).*convert"),
        (dict(state_dtype="8bit"), "in 8 bits; load it into an AdaBound with state_dtype=torch.float32"),
    ],
)
def test_moments_that_optax_cannot_take(options, message):
    param = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = dynabound.AdaBound([param], **options)
    param.grad = torch.ones_like(param)
    optimizer.step()
    tx = ours.adabound(1e-3)
    with pytest.raises(ValueError, match=message):
        ours.from_torch(tx.init(jnp.ones((64, 64))), optimizer.state_dict(), lambda weights: weights[0])
