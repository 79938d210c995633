"""The second moment that is freed when the bounds have met."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from dynabound import AdaBound
from dynabound.lens import effective_lr
from helpers.cases import backends

LINEAR = dict(bounds="linear", gamma=0.02)  # the bounds meet at step 50


def make_gradients(steps, shape=(40, 30)):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) * 10 ** torch.linspace(-3, 1, 30) for _ in range(steps)]


def run(optimizer, grads, scheduler=None):
    (param,) = optimizer.param_groups[0]["params"]
    for grad in grads:
        param.grad = grad.to(param.dtype)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return param


def make(dtype=torch.float32, **options):
    return AdaBound([torch.nn.Parameter(torch.linspace(-1, 1, 1200).reshape(40, 30).to(dtype))], **options)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(amsbound=True, weight_decay=0.1, sqrt_decay=True),
        dict(weight_decay=0.1, decoupled_weight_decay=True, box=(-0.5, 0.5), maximize=True),
        dict(state_dtype=torch.bfloat16),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_release_at_equal_bounds_changes_no_bit(dtype, options, backend):
    grads = make_gradients(300)
    params = []
    for release in (None, 0):
        optimizer = make(dtype, release=release, **LINEAR, **options, **backend)
        params.append(run(optimizer, grads, StepLR(optimizer, 100, 0.3)))
        (state,) = optimizer.state.values()
        assert ("exp_avg_sq" in state) == (release is None)
    assert torch.equal(*params)
    assert not state.keys() & {"exp_avg_sq", "max_exp_avg_sq"}


def test_the_second_moment_lives_until_the_bounds_meet():
    optimizer = make(release=0, **LINEAR)
    run(optimizer, make_gradients(49))
    (state,) = optimizer.state.values()
    assert "exp_avg_sq" in state
    run(optimizer, make_gradients(1))
    assert "exp_avg_sq" not in state


@pytest.mark.parametrize("backend", backends())
def test_a_tolerance_frees_earlier_and_then_steps_with_final_lr(backend):
    """From step 10/γ on, "harmonic" bounds differ from α* by at most a tenth."""
    optimizer = make(release=0.1, gamma=0.1, final_lr=0.05, betas=(0.0, 0.999), **backend)
    grads = make_gradients(101)
    before = run(optimizer, grads[:99]).detach().clone()
    (state,) = optimizer.state.values()
    assert "exp_avg_sq" in state
    run(optimizer, [torch.zeros_like(grads[0])])
    param = run(optimizer, [grads[100]])
    assert "exp_avg_sq" not in state
    torch.testing.assert_close(param.detach(), before - 0.05 * grads[100])
    torch.testing.assert_close(effective_lr(optimizer, param), torch.full_like(param, 0.05))
    (bounds,) = optimizer.bounds_now()
    assert bounds.upper / 0.05 <= 1.1


def test_a_checkpoint_without_second_moments_resumes():
    grads = make_gradients(80)
    whole = make(release=0, **LINEAR)
    expected = run(whole, grads)
    first = make(release=0, **LINEAR)
    param = run(first, grads[:60])
    resumed = AdaBound([param])
    resumed.load_state_dict(first.state_dict())
    run(resumed, grads[60:])
    assert torch.equal(param, expected)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("change", [dict(gamma=1e-4), dict(bounds="harmonic"), dict(release=None)])
def test_opening_the_bounds_afterwards_raises(change, backend):
    optimizer = make(release=0, **LINEAR, **backend)
    param = run(optimizer, make_gradients(60))
    before = param.detach().clone()
    optimizer.param_groups[0].update(change)
    if change == dict(release=None):
        optimizer.param_groups[0]["bounds"] = "exponential"
    with pytest.raises(RuntimeError, match=r"second moment of a parameter .* was freed.*Nothing was updated"):
        optimizer.step()
    assert torch.equal(param, before)


def test_parameters_are_released_one_by_one():
    """The late one begins when the bounds of the other have met."""
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
    optimizer = AdaBound(params, release=0, amsbound=True, **LINEAR)
    for t in range(60):
        for param in params[: 1 + (t >= 40)]:
            param.grad = torch.ones(5)
        optimizer.step()
    assert ["exp_avg_sq" in optimizer.state[param] for param in params] == [False, True]


@pytest.mark.parametrize("options", [dict(capturable=True), dict(bounds=lambda t: (1.0, 1.0))])
def test_what_cannot_be_released_is_refused(options):
    with pytest.raises(ValueError, match=r"release=0.0, .*: memory cannot be freed"):
        make(release=0, **options)


@pytest.mark.parametrize("backend", backends())
def test_a_failed_step_frees_nothing(backend):
    optimizer = make(release=0, **LINEAR, **backend)
    run(optimizer, make_gradients(49))
    other = torch.nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3).to_sparse()
    optimizer.add_param_group(dict(params=[other]))
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert "exp_avg_sq" in optimizer.state[optimizer.param_groups[0]["params"][0]]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_distributed_checkpoint_loads_it_partially(tmp_path):
    """A new optimizer has second moments, of 0, for which the checkpoint has none: its next step frees them."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()

    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    optimizers = [AdaBound(model.parameters(), release=0, **LINEAR) for model in models]
    train(models[0], optimizers[0], 60)
    weights, state = get_state_dict(models[0], optimizers[0])
    checkpoint.save(dict(weights=weights, state=state), checkpoint_id=tmp_path, no_dist=True)
    weights, state = get_state_dict(models[1], optimizers[1])
    planner = DefaultLoadPlanner(allow_partial_load=True)
    checkpoint.load(dict(weights=weights, state=state), checkpoint_id=tmp_path, planner=planner, no_dist=True)
    set_state_dict(models[1], optimizers[1], model_state_dict=weights, optim_state_dict=state)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 5)
        assert [entry.keys() for entry in optimizer.state.values()] == [{"step", "exp_avg"}] * 2
    assert torch.equal(models[0].weight, models[1].weight)
