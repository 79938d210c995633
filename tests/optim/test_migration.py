"""Resume from checkpoints of other packages and of torch's Adam."""

import copy

import adabound
import pytest
import pytorch_optimizer
import torch

from dynabound import AdaBound, AMSBound
from helpers.small_network import network, through_disk, train


def continues_as(make_theirs, make_ours, scheduler=None, tolerance=1e-6):
    """Train with theirs, load the checkpoint into ours, and continue with both."""
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


def one_cycle(optimizer):
    """It overwrites initial_lr, but the authors' bounds still scale with the constructor's lr."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=21)


@pytest.mark.parametrize("scheduler", [None, decay, one_cycle])
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_resumes_from_the_authors_package(amsbound, weight_decay, scheduler):
    options = dict(lr=2e-3, gamma=0.05, weight_decay=weight_decay, amsbound=amsbound)
    ours = continues_as(
        lambda params: adabound.AdaBound(params, **options), lambda params: AdaBound(params, lr=2e-3), scheduler
    )
    assert ours.param_groups[0]["base_lr"] == 2e-3
    assert {int(entry["step"]) for entry in ours.state.values()} == {40}


def test_the_authors_groups_keep_their_common_final_lr():
    def groups(params):
        first, *others = params
        return [{"params": [first], "lr": 1e-4}, {"params": others}]

    ours = continues_as(
        lambda params: adabound.AdaBound(groups(params), lr=2e-3, gamma=0.05),
        lambda params: AdaBound(groups(params), lr=2e-3),
        decay,
    )
    assert [group["final_lr"] for group in ours.param_groups] == [0.1, 0.1]


def test_the_authors_bounds_survive_a_constructor_with_another_lr():
    continues_as(
        lambda params: adabound.AdaBound(params, lr=2e-3, gamma=0.5),
        lambda params: AdaBound(params, lr=1.0),
        decay,
    )


@pytest.mark.parametrize("scheduler", [None, decay])
@pytest.mark.parametrize("ams_bound", [False, True])
@pytest.mark.parametrize("fixed_decay", [False, True])
@pytest.mark.parametrize("weight_decouple", [False, True])
def test_resumes_from_pytorch_optimizer(weight_decouple, fixed_decay, ams_bound, scheduler):
    decay = dict(weight_decay=0.01, weight_decouple=weight_decouple, fixed_decay=fixed_decay)
    options = dict(lr=2e-3, gamma=0.05, ams_bound=ams_bound, **decay)
    if weight_decouple and fixed_decay and scheduler:
        return  # our decay follows the schedule, theirs does not
    ours = continues_as(
        lambda params: pytorch_optimizer.AdaBound(params, **options),
        lambda params: AdaBound(params, lr=2e-3),
        scheduler,
    )
    assert {int(entry["step"]) for entry in ours.state.values()} == {40}
    assert not {"ams_bound", "weight_decouple", "fixed_decay", "step"} & ours.param_groups[0].keys()


class AuthorsAdaBoundW(adabound.AdaBound):
    """The AdaBoundW of the authors' repository, as a formula: x − step − λ·x."""

    def step(self):
        (group,) = self.param_groups
        before = [p.detach().clone() for p in group["params"]]
        weight_decay, group["weight_decay"] = group["weight_decay"], 0
        super().step()
        group["weight_decay"] = weight_decay
        for p, old in zip(group["params"], before, strict=True):
            p.data -= weight_decay * old


def test_resumes_from_the_authors_adaboundw():
    """The kind of decay is not in the checkpoint: it is the constructor's."""
    continues_as(
        lambda params: AuthorsAdaBoundW(params, lr=2e-3, gamma=0.05, weight_decay=0.01),
        lambda params: AdaBound(params, lr=2e-3, decoupled_weight_decay="fully"),
    )


def test_a_warm_start_after_one_cycle_scales_by_the_peak():
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, adam, 20, seed=1, scheduler=one_cycle(adam))
    ours = AdaBound(model.parameters())
    ours.load_state_dict(adam.state_dict())
    assert ours.param_groups[0]["lr"] < 1e-4
    assert ours.param_groups[0]["base_lr"] == 1e-2


@pytest.mark.parametrize("name", ["LaProp", "DiffGrad", "MARS", "SWATS", "ScheduleFreeAdamW", "AdaBelief"])
def test_rejects_the_checkpoints_of_other_optimizers(name):
    model = network()
    theirs = getattr(pytorch_optimizer, name)(model.parameters())
    theirs.train() if hasattr(theirs, "train") else None
    train(model, theirs, 1, seed=1)
    with pytest.raises(ValueError, match="checkpoint"):
        AdaBound(model.parameters()).load_state_dict(theirs.state_dict())


def test_rejects_unknown_state_in_the_checkpoints_of_others():
    model = network()
    adam = torch.optim.Adam(model.parameters())
    train(model, adam, 1, seed=1)
    state = adam.state_dict()
    state["state"][0]["slow_buffer"] = torch.zeros(1)
    with pytest.raises(ValueError, match="has also slow_buffer"):
        AdaBound(model.parameters()).load_state_dict(state)


def test_rejects_rules_that_it_does_not_have():
    model = network()
    theirs = pytorch_optimizer.AdaBound(model.parameters())
    theirs.param_groups[0]["adam_debias"] = True
    train(model, theirs, 1, seed=1)
    with pytest.raises(ValueError, match="adam_debias=True"):
        AdaBound(model.parameters()).load_state_dict(theirs.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, sgd, 1, seed=1)
    with pytest.raises(ValueError, match="supported are those of"):
        AdaBound(model.parameters()).load_state_dict(sgd.state_dict())


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_resumes_from_adam(cls, amsgrad):
    """With bounds that never bind, AdaBound's continuation is Adam's own.

    (AMSGrad's too, although torch divides the largest v by the bias correction and we multiply the rate by it.)
    """
    said = "decoupled_weight_decay" in cls([torch.zeros(1)]).param_groups[0]  # not in torch 2.6
    options = {} if said else dict(decoupled_weight_decay=cls is torch.optim.AdamW)
    ours = continues_as(
        lambda params: cls(params, lr=2e-3, weight_decay=0.01, amsgrad=amsgrad),
        lambda params: AdaBound(params, lr=1.0, bounds=("constant", 0.0, float("inf")), **options),
        decay,
    )
    group = ours.param_groups[0]
    assert group["base_lr"] == 2e-3
    assert group["amsbound"] is amsgrad
    assert group["decoupled_weight_decay"] is (cls is torch.optim.AdamW)


def test_a_warm_start_from_adam_uses_the_bounds_of_its_step():
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
