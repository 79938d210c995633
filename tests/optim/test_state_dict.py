"""Save, resume, copy, and go on from other packages' checkpoints."""

import copy
import io
import pickle
import warnings

import adabound
import pytest
import pytorch_optimizer
import torch
from torch import nn

from dynabound import AdaBound, AMSBound
from helpers.cases import backends


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def train(model, optimizer, steps, seed, scheduler=None):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the authors' package calls signatures that torch has deprecated
            optimizer.step()
            if scheduler:
                scheduler.step()


def through_disk(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("lr", [1e-3, 5.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("backend", backends())
def test_resume_is_bit_identical_after_decay(backend, amsbound, dtype, lr):
    options = dict(amsbound=amsbound, gamma=0.05, final_lr=0.05, **backend)
    whole = network(dtype)
    optimizer = AdaBound(whole.parameters(), lr=1e-3, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.3)
    train(whole, optimizer, 12, seed=1, scheduler=scheduler)
    model = network(dtype)
    model.load_state_dict(whole.state_dict())
    resumed = AdaBound(model.parameters(), lr=lr, **options)
    again = torch.optim.lr_scheduler.StepLR(resumed, 5, gamma=0.3)
    resumed.load_state_dict(through_disk(optimizer.state_dict()))
    again.load_state_dict(scheduler.state_dict())
    train(whole, optimizer, 12, seed=2, scheduler=scheduler)
    train(model, resumed, 12, seed=2, scheduler=again)
    assert_same(whole, model)


def test_resume_after_lr_was_changed_by_hand():
    whole = network()
    optimizer = AdaBound(whole.parameters(), lr=1e-2)
    train(whole, optimizer, 5, seed=1)
    optimizer.param_groups[0]["lr"] = 2e-3
    train(whole, optimizer, 5, seed=2)
    model = copy.deepcopy(whole)
    resumed = AdaBound(model.parameters(), lr=0.5)
    resumed.load_state_dict(through_disk(optimizer.state_dict()))
    assert resumed.param_groups[0]["base_lr"] == 1e-2
    train(whole, optimizer, 5, seed=3)
    train(model, resumed, 5, seed=3)
    assert_same(whole, model)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_alone_and_alike(duplicate):
    model = network()
    optimizer = AdaBound(model.parameters(), lr=1e-2, amsbound=True, state_dtype=torch.float64)
    train(model, optimizer, 4, seed=1)
    optimizer.param_groups[0]["lr"] = 1e-3
    other_model, other = duplicate((model, optimizer))
    train(model, optimizer, 4, seed=2)
    train(other_model, other, 4, seed=2)
    assert_same(model, other_model)
    train(other_model, other, 1, seed=3)
    assert not torch.equal(model[0].weight, other_model[0].weight)


def test_the_optimizer_itself_can_be_saved():
    model = network()
    optimizer = AMSBound(model.parameters())
    train(model, optimizer, 2, seed=1)
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert repr(loaded) == repr(optimizer)


def test_state_dict_holds_primitives_and_tensors_only():
    model = network()
    optimizer = AdaBound(model.parameters(), state_dtype=torch.float64, box=(-1, 1), bounds=["constant", 0.5, 2.0])
    train(model, optimizer, 1, seed=1)

    def leaves(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from leaves(item)
        else:
            yield value

    kinds = {type(leaf) for leaf in leaves(optimizer.state_dict())}
    assert kinds <= {torch.Tensor, int, float, bool, str, type(None)}


def test_loading_does_not_alias():
    model = network()
    optimizer = AdaBound(model.parameters())
    train(model, optimizer, 2, seed=1)
    other_model = network()
    other = AdaBound(other_model.parameters())
    other.load_state_dict(optimizer.state_dict())
    before = copy.deepcopy(other.state_dict()["state"])
    train(model, optimizer, 2, seed=2)
    for key, entry in other.state_dict()["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, before[key][name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_moments_survive_in_float32(dtype):
    model = network(dtype)
    optimizer = AdaBound(model.parameters())
    train(model, optimizer, 3, seed=1)
    resumed = AdaBound(model.parameters())
    resumed.load_state_dict(state_dict=through_disk(optimizer.state_dict()))
    for p in model.parameters():
        for name in ("exp_avg", "exp_avg_sq"):
            assert resumed.state[p][name].dtype == torch.float32
            assert torch.equal(resumed.state[p][name], optimizer.state[p][name])
    short = AdaBound(model.parameters(), state_dtype=dtype)
    train(model, short, 1, seed=1)
    assert {entry["exp_avg"].dtype for entry in short.state.values()} == {dtype}


def test_second_moment_does_not_stall_in_bfloat16():
    """In bfloat16 v would stop growing at a fraction of its limit, because (1 − β₂)·g² vanishes against v."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = AdaBound([param])
    for _ in range(3000):
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert optimizer.state[param]["exp_avg_sq"].item() == pytest.approx(1 - 0.999**3000, rel=1e-4)


def test_steps_count_exactly_past_two_to_the_24():
    param = nn.Parameter(torch.ones(3))
    for backend in (dict(fused=None), dict(foreach=True), dict(fused=False), dict(capturable=True)):
        optimizer = AdaBound([param], **backend)
        param.grad = torch.ones(3)
        optimizer.step()
        optimizer.state[param]["step"].fill_(10**9)
        state = through_disk(optimizer.state_dict())
        optimizer = AdaBound([param], **backend)
        optimizer.load_state_dict(state)
        optimizer.step()
        assert int(optimizer.state[param]["step"]) == 10**9 + 1


def test_callable_bounds_are_not_part_of_the_state():
    model = network()
    bounds = lambda t: (0.5, 1 + 1 / t)  # noqa: E731
    optimizer = AdaBound(model.parameters(), bounds=bounds)
    train(model, optimizer, 2, seed=1)
    state = through_disk(optimizer.state_dict())
    with pytest.raises(ValueError, match="construct it with that callable"):
        AdaBound(model.parameters()).load_state_dict(state)
    resumed = AdaBound(model.parameters(), bounds=bounds)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["bounds"] is bounds


def damaged(state, change):
    state = copy.deepcopy(state)
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["state"][0].pop("exp_avg"), "has no exp_avg"),
        (lambda s: s["state"][1].update(exp_avg_sq=torch.zeros(9)), r"shape \(9,\), the parameter \(8,\)"),
        (lambda s: s["param_groups"][0].update(lr=float("nan")), "lr=nan"),
        (lambda s: s["param_groups"][0].update(base_lr=float("nan")), "base_lr=nan"),
        (lambda s: s["state"][0].update(exp_avg=[1.0]), "exp_avg of parameter 0 is no tensor"),
        (lambda s: s["state"][0].update(slow_buffer=torch.zeros(1)), "has also slow_buffer"),
        (lambda s: s["param_groups"][0]["params"].pop(), r"param groups of \[3\] parameters"),
        (lambda s: s["param_groups"].append({"params": []}), r"\[4, 0\] parameters, this optimizer of \[4\]"),
        (lambda s: s["param_groups"][0].pop("base_lr") and s["param_groups"][0].pop("amsbound"), "not a checkpoint"),
    ],
)
def test_a_bad_checkpoint_changes_nothing(change, message):
    model = network()
    optimizer = AdaBound(model.parameters())
    train(model, optimizer, 2, seed=1)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(damaged(optimizer.state_dict(), change))
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, entry in before["state"].items():
        for name, value in entry.items():
            assert torch.equal(after["state"][key][name], value)


def test_state_dict_hooks_see_and_replace_the_checkpoint():
    model = network()
    optimizer = AdaBound(model.parameters(), state_dtype=torch.float64)
    train(model, optimizer, 2, seed=1)
    calls, seen = [], []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": 1})
    state = optimizer.state_dict()
    assert state["note"] == 1

    def raise_lr(_, state):
        calls.append("load")
        groups = [{**group, "lr": 0.5} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(raise_lr)

    def loaded(optimizer):
        calls.append("loaded")
        seen.extend(entry["exp_avg"].dtype for entry in optimizer.state.values())

    optimizer.register_load_state_dict_post_hook(loaded)
    optimizer.load_state_dict(state)
    assert set(seen) == {torch.float64}  # a user's hook sees the moments as they were saved
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert calls == ["save", "load", "loaded"]


# ---- other packages ----


def continues_as(make_theirs, make_ours, scheduler=None, tolerance=1e-6):
    """Train with theirs, hand the checkpoint to ours, and go on with both."""
    theirs_model = network()
    theirs = make_theirs(theirs_model.parameters())
    schedule = scheduler and scheduler(theirs)
    train(theirs_model, theirs, 20, seed=1, scheduler=schedule)
    model = copy.deepcopy(theirs_model)
    ours = make_ours(model.parameters())
    ours.load_state_dict(through_disk(theirs.state_dict()))
    train(theirs_model, theirs, 20, seed=2)
    train(model, ours, 20, seed=2)
    for p, q in zip(model.parameters(), theirs_model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
    return ours


def decay(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.3)


@pytest.mark.parametrize("scheduler", [None, decay])
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_goes_on_from_the_authors_package(amsbound, weight_decay, scheduler):
    options = dict(lr=2e-3, gamma=0.05, weight_decay=weight_decay, amsbound=amsbound)
    ours = continues_as(
        lambda params: adabound.AdaBound(params, **options), lambda params: AdaBound(params, lr=2e-3), scheduler
    )
    assert ours.param_groups[0]["base_lr"] == 2e-3
    assert {int(entry["step"]) for entry in ours.state.values()} == {40}


def test_the_authors_bounds_survive_a_constructor_with_another_lr():
    continues_as(
        lambda params: adabound.AdaBound(params, lr=2e-3, gamma=0.5),
        lambda params: AdaBound(params, lr=1.0),
        decay,
    )


@pytest.mark.parametrize("scheduler", [None, decay])
@pytest.mark.parametrize("ams_bound", [False, True])
@pytest.mark.parametrize("weight_decouple", [False, True])
def test_goes_on_from_pytorch_optimizer(weight_decouple, ams_bound, scheduler):
    options = dict(lr=2e-3, gamma=0.05, weight_decay=0.01, weight_decouple=weight_decouple, ams_bound=ams_bound)
    ours = continues_as(
        lambda params: pytorch_optimizer.AdaBound(params, **options),
        lambda params: AdaBound(params, lr=2e-3),
        scheduler,
    )
    assert {int(entry["step"]) for entry in ours.state.values()} == {40}
    assert not {"ams_bound", "weight_decouple", "fixed_decay", "step"} & ours.param_groups[0].keys()


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=21)


def test_one_cycle_does_not_pass_for_the_authors_base_rate():
    """OneCycleLR overwrites initial_lr, and the authors' bounds go on scaling with the constructor's lr."""
    options = dict(lr=2e-3, gamma=0.5)
    ours = continues_as(
        lambda params: adabound.AdaBound(params, **options), lambda params: AdaBound(params, lr=2e-3), one_cycle
    )
    assert ours.param_groups[0]["base_lr"] == 2e-3


def test_a_warm_start_after_one_cycle_scales_by_the_peak():
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, adam, 20, seed=1, scheduler=one_cycle(adam))
    ours = AdaBound(model.parameters())
    ours.load_state_dict(adam.state_dict())
    assert ours.param_groups[0]["lr"] < 1e-4
    assert ours.param_groups[0]["base_lr"] == 1e-2


@pytest.mark.parametrize("name", ["LaProp", "DiffGrad", "MARS", "SWATS", "ScheduleFreeAdamW", "AdaBelief"])
def test_refuses_the_checkpoints_of_other_rules(name):
    model = network()
    theirs = getattr(pytorch_optimizer, name)(model.parameters())
    theirs.train() if hasattr(theirs, "train") else None
    train(model, theirs, 1, seed=1)
    with pytest.raises(ValueError, match="checkpoint"):
        AdaBound(model.parameters()).load_state_dict(theirs.state_dict())


def test_moments_take_the_memory_order_of_the_parameter():
    model = nn.Conv2d(3, 4, 3)
    optimizer = AdaBound(model.parameters())
    model(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    other = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    resumed = AdaBound(other.parameters())
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[other.weight]["exp_avg"].stride() == other.weight.stride()
    assert torch.equal(resumed.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_refuses_what_it_cannot_go_on_with():
    model = network()
    theirs = pytorch_optimizer.AdaBound(model.parameters(), fixed_decay=True)
    train(model, theirs, 1, seed=1)
    with pytest.raises(ValueError, match="fixed_decay=True"):
        AdaBound(model.parameters()).load_state_dict(theirs.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, sgd, 1, seed=1)
    with pytest.raises(ValueError, match="known are those of"):
        AdaBound(model.parameters()).load_state_dict(sgd.state_dict())


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_goes_on_from_adam(cls, amsgrad):
    """With bounds that never bind, AdaBound's continuation is Adam's own.

    (AMSGrad's too, although torch divides the largest v by the bias correction and we multiply the rate by it.)
    """
    ours = continues_as(
        lambda params: cls(params, lr=2e-3, weight_decay=0.01, amsgrad=amsgrad),
        lambda params: AdaBound(params, lr=1.0, bounds=("constant", 0.0, float("inf"))),
        decay,
    )
    group = ours.param_groups[0]
    assert group["base_lr"] == 2e-3
    assert group["amsbound"] is amsgrad
    assert group["decoupled_weight_decay"] is (cls is torch.optim.AdamW)


def test_a_warm_start_from_adam_feels_the_bounds_of_its_step():
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, adam, 50, seed=1)
    ours = AMSBound(model.parameters(), lr=1e-3, final_lr=0.02, gamma=0.2)
    ours.load_state_dict(adam.state_dict())
    before = [p.detach().clone() for p in model.parameters()]
    train(model, ours, 1, seed=2)
    lower, upper = 0.02 * (1 - 1 / (0.2 * 51 + 1)), 0.02 * (1 + 1 / (0.2 * 51))
    for p, q in zip(model.parameters(), before, strict=True):
        state = ours.state[p]
        assert int(state["step"]) == 51
        assert bool((state["max_exp_avg_sq"] >= state["exp_avg_sq"]).all())
        rate = (q - p).double() / state["exp_avg"].double()
        assert bool(((rate > lower * 0.99) & (rate < upper * 1.01)).all())
