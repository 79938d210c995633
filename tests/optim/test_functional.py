"""The functional form: torch's argument names, and the numbers of the optimizer."""

import importlib
import inspect

import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.optim.adabound import adabound
from helpers.cases import VARIANTS, backends
from helpers.functional import arguments


def test_names_and_order_are_those_of_torch():
    """Of ``torch.optim.functional.adam`` in torch 2.15, which older versions have as ``torch.optim.adam.adam``."""
    try:
        module = importlib.import_module("torch.optim.functional")
    except ModuleNotFoundError:
        module = importlib.import_module("torch.optim.adam")
    theirs, ours = (inspect.signature(function).parameters for function in (module.adam, adabound))
    positional = [name for name, each in theirs.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert list(ours)[:14] == [*positional, "decoupled_weight_decay"][:14]
    assert {name for name in theirs if name not in ours} == {"amsgrad"}
    for name, each in theirs.items():
        if name in ours:
            assert (each.kind, each.default) == (ours[name].kind, ours[name].default), name


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_optimizer(variant, backend):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 5, generator=generator)
    param = nn.Parameter(start.clone())
    optimizer = AdaBound([param], **VARIANTS[variant], **backend)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    x, m, v, largest = start.clone(), *torch.zeros(3, 4, 5).unbind()
    t = torch.zeros((), dtype=torch.int64)
    for _ in range(5):
        param.grad = torch.randn(4, 5, generator=generator)
        extra = [largest] if optimizer.param_groups[0]["amsbound"] else []
        adabound([x], [param.grad.clone()], [m], [v], extra, [t], **arguments(optimizer))
        optimizer.step()
        scheduler.step()
        assert torch.equal(x, param)
    assert int(t) == 5


@pytest.mark.parametrize("backend", backends())
def test_scaled_gradients(backend):
    tensors = torch.ones(3), torch.zeros(3), torch.zeros(3), torch.zeros((), dtype=torch.int64)
    others = [tensor.clone() for tensor in tensors]
    options = arguments(AdaBound([torch.zeros(3)], maximize=True, **backend))
    for (x, m, v, t), grad, scaling in (
        (tensors, torch.full((3,), 6.0), dict(grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0))),
        (tensors, torch.full((3,), 6.0), dict(found_inf=torch.tensor(1.0))),
        (others, torch.full((3,), 3.0), {}),
    ):
        adabound([x], [grad], [m], [v], [], [t], **options, **scaling)
    assert all(map(torch.equal, tensors, others))
