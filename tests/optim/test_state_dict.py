"""Save, resume and copy."""

import copy
import pickle

import pytest
import torch
from torch import nn

from dynabound import AdaBound
from helpers.cases import backends
from helpers.small_network import network, through_disk, train


def assert_same(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("lr", [1e-3, 5.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("backend", backends())
def test_resume_is_bit_identical_after_decay(backend, amsbound, dtype, lr):
    options = dict(amsbound=amsbound, gamma=0.05, final_lr=0.05, **backend)
    first = network(dtype)
    optimizer = AdaBound(first.parameters(), lr=1e-3, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.3)
    train(first, optimizer, 12, seed=1, scheduler=scheduler)
    model = network(dtype)
    model.load_state_dict(first.state_dict())
    resumed = AdaBound(model.parameters(), lr=lr, **options)
    again = torch.optim.lr_scheduler.StepLR(resumed, 5, gamma=0.3)
    resumed.load_state_dict(through_disk(optimizer.state_dict()))
    again.load_state_dict(scheduler.state_dict())
    train(first, optimizer, 12, seed=2, scheduler=scheduler)
    train(model, resumed, 12, seed=2, scheduler=again)
    assert_same(first, model)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_are_equal_and_independent(duplicate):
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


def test_state_dict_contains_primitives_and_tensors_only():
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
        (lambda s: s.clear(), "state_dict without state, param_groups: must be"),
        (lambda s: s.pop("state"), "state_dict without state: must be"),
        (
            lambda s: s["state"][3].update(exp_avg=torch.zeros(3, device="meta")),
            "exp_avg of parameter 3 is on the meta",
        ),
        (
            lambda s: s["state"][3].update(exp_avg=torch.zeros(3) * 1j),
            "exp_avg of parameter 3 has dtype torch.complex64",
        ),
        (lambda s: s["param_groups"][0]["params"].pop(), r"param groups of \[3\] parameters"),
        (lambda s: s["param_groups"].append({"params": []}), r"\[4, 0\] parameters, this optimizer of \[4\]"),
        (lambda s: s["param_groups"][0].pop("base_lr") and s["param_groups"][0].pop("amsbound"), "not a checkpoint"),
    ],
)
def test_an_invalid_checkpoint_changes_nothing(change, message):
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


def test_moments_get_the_memory_order_of_the_parameter():
    model = nn.Conv2d(3, 4, 3)
    optimizer = AdaBound(model.parameters())
    model(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    other = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    resumed = AdaBound(other.parameters())
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[other.weight]["exp_avg"].stride() == other.weight.stride()
    assert torch.equal(resumed.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


class WithSlowWeights(AdaBound):
    """A subclass with state of its own, as timm's Lookahead stores it."""

    def step(self, closure=None):
        super().step(closure)
        for param, state in self.state.items():
            slow = state.setdefault("slow", param.detach().clone())
            slow.lerp_(param.detach(), 0.5)
            param.data.copy_(slow)
            state["calls"] = state.get("calls", 0) + 1


def test_state_of_a_subclass_survives_a_resume():
    first, second = network(), network()
    optimizer = WithSlowWeights(first.parameters(), lr=0.01)
    train(first, optimizer, 3, seed=1)
    second.load_state_dict(first.state_dict())
    resumed = WithSlowWeights(second.parameters(), lr=1.0)
    checkpoint = through_disk(optimizer.state_dict())
    resumed.load_state_dict(checkpoint)
    train(first, optimizer, 3, seed=2)
    train(second, resumed, 3, seed=2)
    assert_same(first, second)
    assert {state["calls"] for state in resumed.state.values()} == {6}
    assert checkpoint["state"][0]["calls"] == 3
    assert not torch.equal(checkpoint["state"][0]["slow"], resumed.state[second[0].weight]["slow"])


def test_state_that_a_wrapper_stores_before_the_first_step():
    param = nn.Parameter(torch.ones(2))
    optimizer = AdaBound([param])
    optimizer.state[param]["slow"] = torch.zeros(2)
    again = AdaBound([param])
    again.load_state_dict(optimizer.state_dict())
    param.grad = torch.ones(2)
    again.step()
    assert again.state[param].keys() == {"slow", "step", "exp_avg", "exp_avg_sq"}
