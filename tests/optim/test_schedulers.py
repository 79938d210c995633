"""The bounds scale with lr under every scheduler, and no step divides by zero."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.optim import lr_scheduler as ls

from dynabound import AdaBound
from helpers.cases import backends
from helpers.reference import Reference

SCHEDULERS = {
    "warm-up": lambda o: ls.LambdaLR(o, lambda t: t / 10),
    "one-cycle": lambda o: ls.OneCycleLR(o, max_lr=0.01, total_steps=61),
    "cosine": lambda o: ls.CosineAnnealingLR(o, T_max=15),
    "restarts": lambda o: ls.CosineAnnealingWarmRestarts(o, T_0=7),
    "chained": lambda o: ls.ChainedScheduler([ls.LinearLR(o, 0.1, total_iters=5), ls.ExponentialLR(o, 0.95)]),
    "sequential": lambda o: ls.SequentialLR(o, [ls.ConstantLR(o, 0.2, 4), ls.ExponentialLR(o, 0.9)], [10]),
    "cyclic": lambda o: ls.CyclicLR(o, 1e-4, 1e-2, step_size_up=5, cycle_momentum=False),
}


def follow(optimizer, param, scheduler, base_lr, steps=60, **options):
    """Step optimizer and reference together, the reference with the group's current lr."""
    reference = Reference(param.detach().double().numpy(), lr=base_lr, **options)
    generator = torch.Generator().manual_seed(3)
    for t in range(steps):
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)
        group = optimizer.param_groups[0]
        reference.lr, reference.betas = float(group["lr"]), group["betas"]
        reference.product = reference.betas[0] ** reference.t
        param.grad = grad.clone()
        before = param.detach().clone()
        optimizer.step()
        expected = reference.step(grad.double().numpy())
        np.testing.assert_allclose(param.detach().double().numpy(), expected, rtol=1e-10, atol=1e-12, err_msg=str(t))
        if reference.lr == 0:
            assert torch.equal(param, before)
        scheduler.step()


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:the scheduler raises lr")
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # SequentialLR itself, in torch 2.6
def test_bounds_follow_the_scheduler(name, backend):
    param = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    optimizer = AdaBound([param], lr=2e-3, gamma=0.1, **backend)
    follow(optimizer, param, SCHEDULERS[name](optimizer), 2e-3, gamma=0.1)


@pytest.mark.parametrize("options", [*backends(), pytest.param(dict(capturable=True), id="capturable")])
def test_a_tensor_lr_that_a_scheduler_fills_in_place(options):
    param = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    lr = torch.tensor(2e-3, dtype=torch.float64)
    optimizer = AdaBound([param], lr=lr, gamma=0.1, **options)
    follow(optimizer, param, SCHEDULERS["warm-up"](optimizer), 2e-3, gamma=0.1)
    assert optimizer.param_groups[0]["lr"] is lr
    assert isinstance(optimizer.param_groups[0]["base_lr"], float)
    copied = copy.deepcopy(optimizer)
    assert copied.param_groups[0]["base_lr"] == 2e-3


@pytest.mark.parametrize("backend", [*backends(), pytest.param(dict(capturable=True), id="capturable")])
def test_constructed_with_zero_and_raised_by_hand(backend):
    """There is no base rate to scale by: final_lr is used unscaled."""
    param = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    lr = torch.tensor(0.0, dtype=torch.float64) if "capturable" in backend else 0.0
    optimizer = AdaBound([param], lr=lr, eps=0.0, weight_decay=0.1, decoupled_weight_decay=True, **backend)
    start = param.detach().clone()
    for grad in (torch.ones_like(param), torch.zeros_like(param)):
        param.grad = grad
        optimizer.step()
        assert torch.equal(param, start)
    reference = Reference(start.numpy(), lr=0.0, eps=0.0, weight_decay=0.1, decoupled_weight_decay=True)
    reference.step(np.ones(6))
    reference.step(np.zeros(6))
    optimizer.param_groups[0]["lr"] = reference.lr = 3e-3
    for _ in range(5):
        param.grad = torch.ones_like(param)
        optimizer.step()
        np.testing.assert_allclose(param.detach().numpy(), reference.step(np.ones(6)), rtol=1e-12)


@pytest.mark.parametrize("backend", [*backends(), pytest.param(dict(capturable=True), id="capturable")])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_a_probe_step_creates_the_state_and_does_not_count(backend, tensor_lr):
    """torch.distributed.checkpoint creates the state of a new optimizer with such a step."""
    start = torch.linspace(-1, 1, 6, dtype=torch.float64)
    options = dict(lr=torch.tensor(1e-3) if tensor_lr else 1e-3, weight_decay=0.1, amsbound=True, **backend)
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [AdaBound([param], **options) for param in params]
    _init_optim_state(optimizers[0])
    (state,) = optimizers[0].state.values()
    assert state["step"] == 0
    assert not any(state[name].any() for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    assert torch.equal(params[0], start)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        grad = torch.randn(6, generator=generator, dtype=torch.float64)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
    assert torch.equal(*params)
    assert optimizers[0].state[params[0]]["step"] == 5


def test_a_step_at_lr_0_changes_nothing_not_even_by_the_box():
    param = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = AdaBound([param], lr=0.0, box=(-1, 1))
    param.grad = torch.ones(1)
    optimizer.step()
    assert param.item() == 3.0
    optimizer.param_groups[0]["lr"] = 1e-3
    optimizer.step()
    assert param.item() == 1.0


@pytest.mark.parametrize("when", ["before", "after steps", "after decay"])
def test_added_groups_have_their_own_bounds(when):
    first, second = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    optimizer = AdaBound([first], lr=1e-3, gamma=0.1)
    scheduler = ls.StepLR(optimizer, 4, 0.1)
    generator = torch.Generator().manual_seed(0)
    if when != "before":
        for _ in range(2 if when == "after steps" else 6):
            first.grad = torch.randn(3, generator=generator, dtype=torch.float64)
            optimizer.step()
            scheduler.step()
    optimizer.add_param_group({"params": [second], "lr": 5e-3, "final_lr": 0.7})
    assert optimizer.param_groups[1]["base_lr"] == 5e-3
    reference = Reference(np.ones(3), lr=5e-3, final_lr=0.7, gamma=0.1)
    for t in range(10):
        if t == 5:
            optimizer.param_groups[1]["lr"] = reference.lr = 1e-3
        first.grad, second.grad = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(2))
        optimizer.step()
        np.testing.assert_allclose(second.detach().numpy(), reference.step(second.grad.numpy()), rtol=1e-12)


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_a_scheduler_does_not_change_the_defaults_of_groups_that_are_added_later(tensor_lr):
    first, second, third = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = AdaBound([first], lr=torch.tensor(1e-3) if tensor_lr else 1e-3)
    scheduler = ls.ExponentialLR(optimizer, 0.1)
    first.grad = torch.ones(2)
    optimizer.step()
    scheduler.step()
    optimizer.add_param_group({"params": [second], "lr": 5e-4})
    optimizer.add_param_group({"params": [third]})
    now = [(bounds.lr, bounds.base_lr, bounds.final_lr) for bounds in optimizer.bounds_now()]
    assert now == [pytest.approx(row) for row in [(1e-4, 1e-3, 0.01), (5e-4, 5e-4, 0.05), (1e-3, 1e-3, 0.1)]]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_an_invalid_lr_set_by_hand_raises_before_any_update(bad):
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = AdaBound([{"params": params[:1]}, {"params": params[1:]}])
    optimizer.param_groups[1]["lr"] = bad
    for p in params:
        p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=f"lr={bad}"):
        optimizer.step()
    assert all(torch.equal(p, torch.ones(3)) for p in params)


OWN_RATES = {
    "one-cycle": (lambda o: ls.OneCycleLR(o, max_lr=0.1, total_steps=50), "lr to 0.1, 100 times"),
    "cyclic": (lambda o: ls.CyclicLR(o, 1e-3 / 4, 0.1, step_size_up=3, cycle_momentum=False), "final_lr=0.1 becomes "),
    "swa": (lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=1), "final_lr=0.1 becomes 5."),
}


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", OWN_RATES)
def test_a_scheduler_that_raises_the_bounds_warns_once(name, tensor_lr):
    scheduler, becomes = OWN_RATES[name]
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = AdaBound([param], lr=torch.tensor(1e-3) if tensor_lr else 1e-3)
    schedule = scheduler(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):
            param.grad = torch.ones(3)
            optimizer.step()
            schedule.step()
    assert len(caught) == 1
    assert becomes in str(caught[0].message)
    assert "Construct the optimizer with lr = the scheduler's highest rate" in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("scheduler", "lr"),
    [*((make, 0.1) for make, _ in OWN_RATES.values()), (lambda o: ls.LambdaLR(o, lambda step: 1 + step), 1e-3)],
    ids=[*OWN_RATES, "proportional"],
)
def test_nothing_warns_at_the_highest_rate_or_where_the_bounds_are_meant(scheduler, lr):
    """A factor on the constructor's lr is meant for the bounds too."""
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = AdaBound([param], lr=lr)
    schedule = scheduler(optimizer)
    for _ in range(8):
        param.grad = torch.ones(3)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("options", [{}, dict(sqrt_decay=True), dict(bounds="linear"), dict(bounds=("constant", 0, 2))])
def test_bounds_now_are_those_of_the_next_step(options):
    """Measured: a gradient so small that every rate is the upper bound, or so large that it is the lower one."""
    optimizer_options = dict(lr=1e-3, final_lr=0.2, gamma=0.3, betas=(0.0, 0.0), debias=False, eps=0.0, **options)
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = AdaBound([param], **optimizer_options)
    scheduler = ls.ExponentialLR(optimizer, 0.5)
    for step in range(1, 5):
        (now,) = optimizer.bounds_now()
        before = param.detach().clone()
        param.grad = torch.tensor([1e-30, 1e30], dtype=torch.float64)
        optimizer.step()
        upper, lower = ((before - param.detach()) / param.grad).tolist()
        if now.lower:  # a step of 1e30 · lower leaves nothing of the parameter: measured on its own
            assert now.lower == pytest.approx(lower, rel=1e-6)
        assert now.upper == pytest.approx(upper, rel=1e-6)
        assert (now.step, now.lr, now.base_lr) == (step, 1e-3 * 0.5 ** (step - 1), 1e-3)
        assert now.final_lr == pytest.approx(0.2 * 0.5 ** (step - 1))
        assert now.sgd_share == pytest.approx((now.lower / now.upper) ** 0.5)
        param.data.zero_()
        scheduler.step()


def test_bounds_now_of_every_group():
    first, second, third = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    groups = [
        {"params": [first, third]},
        {"params": [second], "bounds": lambda t: (1.0, 1.0), "lr": torch.tensor(0.5)},
        {"params": [torch.nn.Parameter(torch.ones(1))], "bounds": ("constant", 0.0, float("inf")), "final_lr": 0.0},
    ]
    optimizer = AdaBound(groups)
    for p in (first, second):
        p.grad = torch.ones(2)
    optimizer.step()
    optimizer.step()
    assert [now.step for now in optimizer.bounds_now()] == [3, 3, 1]
    assert [now.sgd_share for now in optimizer.bounds_now()][1:] == [1.0, 0.0]
    assert optimizer.bounds_now()[2][1:3] == (0.0, 0.0)
    assert optimizer.state.keys() == {first, second}
