"""Every variant, backend and dtype against a float64 transcription of the paper, with a resume in the middle."""

import io
import warnings
from functools import cache, partial

import adabound
import numpy as np
import pytest
import torch
import torch_optimizer

from dynabound import AdaBound, AdaBoundW, AMSBound
from helpers.cases import PAPER, TOLERANCES, VARIANTS, backends
from helpers.reference import Reference

STEPS = 200


@cache
def gradients(dtype, shape=(5, 7), steps=STEPS, seed=0):
    """Gradients of very different scales, with elements whose gradient is always or sometimes zero."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.linspace(-4, 1, shape[0] * shape[1], dtype=torch.float64).reshape(shape)
    made = []
    for _ in range(steps):
        g = torch.randn(shape, generator=generator, dtype=torch.float64) * scale + 0.3 * scale
        g[0, 0] = 0
        g[1] *= torch.rand((), generator=generator).item() < 0.3
        made.append(g.to(dtype))
    return made


def start(dtype, shape=(5, 7)):
    return torch.linspace(-1, 1, shape[0] * shape[1], dtype=torch.float64).reshape(shape).to(dtype)


def reload(optimizer, params, **options):
    """A new optimizer for the same parameters, constructed with another lr, from a checkpoint on disk."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = type(optimizer)(params, **{**options, "lr": 7.0})
    resumed.load_state_dict(torch.load(file, weights_only=True))
    return resumed


@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_paper_in_float64(variant, backend, dtype):
    options = {**VARIANTS[variant], **backend}
    param = torch.nn.Parameter(start(dtype))
    reference = Reference(param.detach().double().numpy(), dtype=str(dtype)[6:], **VARIANTS[variant])
    optimizer = AdaBound([param], **options)
    steps = []
    for t, grad in enumerate(gradients(dtype)):
        if t == STEPS // 2:
            optimizer = reload(optimizer, [param], **options)
        param.grad = grad.clone()
        optimizer.step()
        assert torch.equal(param.grad, grad)
        steps.append(np.stack([param.detach().double().numpy(), reference.step(grad.double().numpy())]))
    found, expected = np.stack(steps, axis=1)
    np.testing.assert_allclose(found, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("package", [adabound, torch_optimizer])
@pytest.mark.parametrize("options", [{}, dict(amsbound=True), dict(weight_decay=5e-4), dict(gamma=0.1, final_lr=0.5)])
def test_equals_the_authors_package(options, package, backend):
    param = torch.nn.Parameter(start(torch.float32))
    theirs = torch.nn.Parameter(param.detach().clone())
    optimizer, other = AdaBound([param], **options, **backend), package.AdaBound([theirs], **options)
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(o, [120], 0.1) for o in (optimizer, other)]
    found, expected = [], []
    for t, grad in enumerate(gradients(torch.float32)):
        if t == STEPS // 2:
            optimizer = reload(optimizer, [param], **options, **backend)
            schedulers[0].optimizer = optimizer
        param.grad, theirs.grad = grad.clone(), grad.clone()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the authors' package calls signatures that torch has deprecated
            other.step()
            for scheduler in schedulers:
                scheduler.step()
        found.append(param.detach().clone())
        expected.append(theirs.detach().clone())
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-6, atol=1e-6)


def check_equal(make_ours, make_other, grads):
    """Both optimizers, from the same start and on the same gradients, make the same steps."""
    params = [torch.nn.Parameter(start(torch.float64)) for _ in range(2)]
    optimizers = [make([param]) for make, param in zip((make_ours, make_other), params, strict=True)]
    for grad in grads:
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(*params, rtol=1e-11, atol=1e-13)


def test_wide_bounds_are_adam():
    """(0, ∞) is Adam: an implementation independent of ours."""
    grads = [grad.where(grad != 0, 1e-3) for grad in gradients(torch.float64)]
    check_equal(
        partial(AdaBoundW, bounds=("constant", 0.0, float("inf")), weight_decay=0.1, eps=0.0),
        partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, eps=0.0),
        grads,
    )


def test_closed_bounds_are_sgd_with_dampened_momentum():
    # torch starts its buffer at g, not at (1 − β)·g: one zero gradient first makes the two the same.
    check_equal(
        partial(AdaBound, lr=1e-3, final_lr=0.01, bounds=("constant", 1.0, 1.0)),
        partial(torch.optim.SGD, lr=0.01, momentum=0.9, dampening=0.9),
        [torch.zeros(5, 7, dtype=torch.float64), *gradients(torch.float64)],
    )


@pytest.mark.parametrize(
    ("cls", "options"), [(AMSBound, dict(amsbound=True)), (AdaBoundW, dict(decoupled_weight_decay=True))]
)
def test_the_named_variants_are_adabound_with_an_option(cls, options):
    params = [torch.nn.Parameter(start(torch.float32)) for _ in range(2)]
    optimizers = [cls([params[0]], 1e-2, weight_decay=0.1), AdaBound([params[1]], 1e-2, weight_decay=0.1, **options)]
    assert {k: v for k, v in optimizers[0].param_groups[0].items() if k != "params"} == {
        k: v for k, v in optimizers[1].param_groups[0].items() if k != "params"
    }
    for grad in gradients(torch.float32, steps=10):
        for p, optimizer in zip(params, optimizers, strict=True):
            p.grad = grad.clone()
            optimizer.step()
    assert torch.equal(*params)


def test_positional_order_is_the_authors():
    group = AdaBound([torch.zeros(1)], 0.2, (0.8, 0.9), 0.3, 0.4, 0.5, 0.6, True).param_groups[0]
    names = ("lr", "betas", "final_lr", "gamma", "eps", "weight_decay", "amsbound")
    assert [group[name] for name in names] == [0.2, (0.8, 0.9), 0.3, 0.4, 0.5, 0.6, True]
    assert PAPER.keys() <= group.keys()
