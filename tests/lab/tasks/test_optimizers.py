import pytest
import torch
from torch.nn import Parameter

from dynabound import AdaBound, AMSBound
from dynabound.lab.tasks.optimizers import OPTIMIZERS, OptimizerError, build, default_lr, default_weight_decay

DIRECT = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "sgdm": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, momentum=0.9),
    "sgdm-dampened": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, momentum=0.9, dampening=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.05, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "adabound": lambda p: AdaBound(p, lr=0.05, weight_decay=0.1),
    "amsbound": lambda p: AMSBound(p, lr=0.05, weight_decay=0.1),
    "torch.optim:RAdam": lambda p: torch.optim.RAdam(p, lr=0.05, weight_decay=0.1),
}


def walk(make):
    torch.manual_seed(0)
    param = Parameter(torch.randn(7))
    optimizer = make([param])
    for _ in range(5):
        param.grad = torch.randn(7)
        optimizer.step()
    return param.detach()


def test_weight_decay_is_the_given_one():
    for name in DIRECT:
        assert build(name, [Parameter(torch.zeros(1))], 0.1, weight_decay=0.0).param_groups[0]["weight_decay"] == 0
    assert default_weight_decay("adamw", 5e-4) == 1e-2
    assert default_weight_decay("adam", 5e-4) == default_weight_decay("torch.optim:RAdam", 5e-4) == 5e-4


@pytest.mark.parametrize("name", DIRECT)
def test_a_name_is_the_optimizer_it_says(name):
    assert torch.equal(walk(DIRECT[name]), walk(lambda p: build(name, p, 0.05, 0.1)))


def test_every_name_is_tested():
    assert OPTIMIZERS.keys() == DIRECT.keys() - {"torch.optim:RAdam"} | {"csgd"}


def test_csgd_divides_the_averaged_gradients_by_their_weights():
    param, start, grads = Parameter(torch.tensor([1.0, -2.0])), torch.tensor([1.0, -2.0]), torch.randn(6, 2)
    optimizer = build("csgd", [param], 0.5)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    expected = start.double()
    for step in range(1, 7):
        weights = 0.9 ** torch.arange(step - 1, -1, -1, dtype=torch.float64)
        expected = expected - 0.5 * (weights @ grads[:step].double()) / weights.sum()
    assert torch.allclose(param.detach().double(), expected, rtol=1e-6, atol=1e-6)


def test_options_reach_the_optimizer():
    group = build(
        "adabound", [Parameter(torch.zeros(1))], 0.1, options={"final_lr": 0.5, "betas": (0.8, 0.9)}
    ).param_groups[0]
    assert (group["final_lr"], group["betas"], group["lr"]) == (0.5, (0.8, 0.9), 0.1)
    group = build("sgdm-dampened", [Parameter(torch.zeros(1))], 0.1, options={"momentum": 0.5}).param_groups[0]
    assert (group["momentum"], group["dampening"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adabond", {}, "optimizer='adabond': must be sgd, .*did you mean adabound"),
        ("adabound", {"final_lrs": 1}, "opt final_lrs=1: adabound takes .*did you mean final_lr"),
        ("adabound", {"final_lr": -1}, "final_lr"),
        ("adam", {"betas": (0.9, 2.0)}, "optimizer='adam': .*beta"),
        ("adam", {"betas": (0.9,)}, r"optimizer='adam': IndexError: .*; change its options"),
        ("amsbound", {"nonsense": 1}, "nonsense"),
        ("sgdm-dampened", {"dampening": 0.5}, "opt dampening: sgdm-dampened sets it to the momentum; leave it out"),
        ("no.such.module:Thing", {}, "cannot be imported"),
        ("torch.optim:Thing", {}, "cannot be imported"),
        ("torch.nn:Linear", {}, "must be a subclass of torch.optim.Optimizer"),
    ],
)
def test_mistakes_are_named(name, options, message):
    with pytest.raises(OptimizerError, match=message):
        build(name, [Parameter(torch.zeros(1))], 0.1, options=options)


def test_language_models_get_the_papers_rate_for_sgd():
    assert default_lr("sgd", text=True) == 10
    assert default_lr("sgd") == 0.1
    assert default_lr("adabound", text=True) == default_lr("adabound") == default_lr("torch.optim:RAdam") == 1e-3
