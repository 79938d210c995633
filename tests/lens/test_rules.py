"""Which optimizers' rates are known: registered ones, and those inside wrappers."""

import pytest
import torch
from torch import nn, optim

from dynabound.lens import Rates, effective_lr, register
from dynabound.lens.rules import RULES


class Unknown(torch.optim.Optimizer):
    """An optimizer of the user's."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            self.state[param]["size"] = param.grad.abs()


def test_unknown_optimizers_are_named_and_can_be_registered():
    param = nn.Parameter(torch.ones(2))
    optimizer = Unknown([param], lr=0.3)
    with pytest.raises(TypeError, match=r"type Unknown: the rates of ASGD, AdaBound, Adadelta, .* are known.*register"):
        effective_lr(optimizer, param)
    register(Unknown, lambda group, state, param: Rates(group["lr"] / state["size"]))
    try:
        param.grad = torch.tensor([1.0, -2.0])
        optimizer.step()
        assert effective_lr(optimizer, param).tolist() == pytest.approx([0.3, 0.15])
    finally:
        del RULES[Unknown]


class Wrapper:
    """What wrappers have in common: the optimizer inside, under one of three names."""

    def __init__(self, name, optimizer):
        setattr(self, name, optimizer)


@pytest.mark.parametrize(
    "names", [["optimizer"], ["_base_optimizer"], ["base_optimizer"], ["optimizer", "base_optimizer"]]
)
def test_wrapped_optimizers_are_unwrapped(names):
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.tensor([1.0, 2.0])
    inner = wrapped = optim.Adam([param], lr=0.1)
    for name in names:
        wrapped = type("Wrapped", (Wrapper, torch.optim.Optimizer), {})(name, wrapped)
    inner.step()
    assert torch.equal(effective_lr(wrapped, param), effective_lr(inner, param))


@pytest.mark.parametrize(
    ("cls", "rule"), [(int, max), (optim.Adam([nn.Parameter(torch.ones(2))]), max), (optim.Adam, "lr / sqrt(v)")]
)
def test_bad_registrations_are_refused(cls, rule):
    with pytest.raises(TypeError, match="must be a"):
        register(cls, rule)
