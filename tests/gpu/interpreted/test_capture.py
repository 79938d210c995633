"""Step counts on the GPU (capturable=True), and GradScaler's contract: no number is read from the GPU."""

import math

import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.optim import _fused
from dynabound.optim._gpu import kernels, launch
from dynabound.optim._scalars import scalars
from helpers.cases import VARIANTS

STEPS = (1, 2, 3, 5, 10, 24, 25, 26, 100, 999, 1000, 12_345, 10**6, 10**9)


@pytest.mark.parametrize("lr", [0.02, 0.0, torch.tensor(0.5, dtype=torch.float64)], ids=["float", "zero", "tensor"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_scalars_are_those_of_the_host(variant, lr):
    """Relative error 1e-12: the host's 1 − βᵗ has itself an error of 2^-53 / (1 − β)."""
    group = AdaBound([torch.ones(1)], **VARIANTS[variant]).param_groups[0]
    group["lr"] = lr
    steps = [torch.tensor(t - 1) for t in STEPS]
    entries = torch.zeros(len(STEPS), 8, dtype=torch.int64)
    entries[:, 6] = torch.tensor([step.data_ptr() for step in steps])
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 6e-8)):
        rows = launch._compute(kernels, entries, group, dtype)
        hosts = [scalars(group, float(lr), t, dtype) for t in STEPS]
        expected = torch.tensor([[*s[:11], 1 - s.beta1, 1 - s.beta2] for s in hosts], dtype=torch.float64)
        torch.testing.assert_close(rows[:, :13].double(), expected, rtol=tolerance, atol=torch.finfo(dtype).tiny)
    assert rows.view(torch.int32)[:, 13].tolist() == list(STEPS)


def pair(dtype=torch.float64, **options):
    start = [torch.linspace(-1, 1, n, dtype=torch.float64).to(dtype) for n in (7, 1100, 0, 3)]
    params, others = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    return params, AdaBound(params, **options, fused=True, capturable=True), others, AdaBound(others, **options)


def set_gradients(params, others, scale=1.0):
    for p, q in zip(params, others, strict=True):
        q.grad = torch.randn_like(q)
        p.grad = q.grad * scale


CAPTURED = {
    "default": {},
    "amsbound": dict(amsbound=True, weight_decay=0.1, decoupled_weight_decay=True),
    "everything": dict(box=(-1, 1), sqrt_decay=True, beta1_decay="harmonic", debias=False, maximize=True),
    "callable": dict(bounds=lambda t: (0.5, 1 + 1 / t)),
}


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("options", CAPTURED.values(), ids=CAPTURED)
def test_capturable_equals_eager(options, tensor_lr):
    torch.manual_seed(0)
    params, optimizer, others, eager = pair(**options)
    if tensor_lr:
        optimizer.param_groups[0]["lr"] = torch.tensor(1e-3, dtype=torch.float64)
    for t in range(6):
        set_gradients(params, others)
        if t % 2:
            params[1].grad = others[1].grad = None
        optimizer.step()
        eager.step()
    assert _fused.gpu_failure is None
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    assert [int(optimizer.state[p]["step"]) for p in params] == [6, 3, 6, 6]


@pytest.mark.parametrize("capturable", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scaled_gradients_give_the_unscaled_step(dtype, capturable):
    """In every bit, because scales are powers of two; and the gradients stay scaled."""
    torch.manual_seed(0)
    params, optimizer, others, eager = pair(dtype, weight_decay=0.1)
    for group in (optimizer.param_groups[0], eager.param_groups[0]):
        group["fused"], group["capturable"] = True, capturable
    for t in range(4):
        set_gradients(params, others, scale=2.0**10)
        before = [p.grad.clone() for p in params]
        kept = [p.detach().clone() for p in params]
        optimizer.grad_scale, optimizer.found_inf = torch.tensor([2.0**10]), torch.tensor([float(t == 2)])
        optimizer.step()
        if t != 2:
            eager.step()
        else:
            assert all(map(torch.equal, params, kept))
        assert all(torch.equal(p.grad, grad) for p, grad in zip(params, before, strict=True))
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(value, eager.state[q][name]) for name, value in optimizer.state[p].items())
    assert int(optimizer.state[params[0]]["step"]) == 3


def test_grad_scaler_waits_for_nothing(monkeypatch):
    """With capturable=True GradScaler's step reads no number; a step with an infinite gradient changes nothing."""
    params, optimizer, _, _ = pair(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, math.inf, 1.0):
        kept = [p.detach().clone() for p in params]
        optimizer.zero_grad()
        scaler.scale(sum(p.sum() for p in params) * factor).backward()
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "item", None)
            scaler.step(optimizer)
        scaler.update()
        assert all(map(torch.equal, params, kept)) == (factor == math.inf and len(optimizer.state) > 0)
    assert int(optimizer.state[params[0]]["step"]) == 2
