"""GradScaler: the contract of torch's fused optimizers, without writing the gradients."""

import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.optim import _fused
from helpers.cases import VARIANTS, backends

pytestmark = pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
SHAPES = ((17, 9), (5,), ())


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def step(scaler, optimizer, params, grads):
    """One step on the gradients that a backward pass of the scaled loss would give."""
    scale = scaler.scale(torch.ones(())).item() if scaler else 1.0
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad.to(p.dtype) * scale
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def snapshot(params, optimizer):
    moments = [value.clone() for p in params for value in optimizer.state[p].values()]
    return [p.detach().clone() for p in params] + moments


@pytest.mark.parametrize("variant", ["authors", "amsbound-l2", "decoupled", "maximize", "paper-box"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=lambda dtype: str(dtype)[6:])
def test_a_scaled_step_is_the_unscaled_step_bit_for_bit(variant, dtype):
    """Scales are powers of two; here they grow at every step and shrink after the infinite gradient."""
    pairs = [
        (params, AdaBound(params, **VARIANTS[variant], fused=True)) for params in (parameters(dtype) for _ in "ab")
    ]
    (params, optimizer), (others, plain) = pairs
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1)
    generator = torch.Generator().manual_seed(1)
    for t in range(20):
        grads = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if t == 7:
            grads[1][2] = float("inf")
            before = snapshot(params, optimizer)
            step(scaler, optimizer, params, grads)
            assert all(map(torch.equal, before, snapshot(params, optimizer)))
            continue
        step(scaler, optimizer, params, grads)
        step(None, plain, others, grads)
        assert all(map(torch.equal, snapshot(params, optimizer), snapshot(others, plain)))
    assert int(optimizer.state[params[0]]["step"]) == 19
    assert scaler.get_scale() == 2.0 ** (16 + 19 - 1)


def test_gradients_stay_scaled():
    """Other than torch's fused optimizers, which write the unscaled gradients back."""
    params = parameters()
    optimizer = AdaBound(params, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    step(scaler, optimizer, params, [torch.full(shape, 3.0) for shape in SHAPES])
    assert all(torch.equal(p.grad, torch.full_like(p, 24.0)) for p in params)


def test_gradients_that_were_unscaled_for_clipping():
    params, others = parameters(), parameters()
    optimizer, plain = AdaBound(params, fused=True), AdaBound(others)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for p, q in zip(params, others, strict=True):
        p.grad, q.grad = torch.full_like(p, 1024.0 * 3), torch.full_like(q, 3.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    for some, do in ((params, lambda: scaler.step(optimizer)), (others, plain.step)):
        nn.utils.clip_grad_norm_(some, 0.5)
        do()
    assert all(map(torch.equal, params, others))


def test_a_gradient_that_the_kernel_does_not_support():
    """A step with fused=True updates it in the loop, which divides by the scale too."""
    params, others = parameters(), parameters()
    optimizers = AdaBound(params, fused=True), AdaBound(others, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    params[0].grad = torch.arange(153.0).reshape(9, 17).t() * 4
    others[0].grad = torch.arange(153.0).reshape(9, 17).t()
    assert _fused._kernel.scan([params[0]], [params[0].grad], [params[0]], [params[0]], [], [torch.zeros(())])[0] == [
        None
    ]
    scaler.step(optimizers[0])
    optimizers[1].step()
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize("backend", backends())
def test_the_contract_holds_if_every_group_is_fused(backend):
    """As in torch: otherwise GradScaler unscales the gradients itself."""
    optimizer = AdaBound([torch.zeros(2)], **backend)
    fused = bool(backend.get("fused"))
    assert optimizer._step_supports_amp_scaling is fused
    optimizer.add_param_group({"params": [torch.zeros(2)], "fused": None, "foreach": None})
    assert optimizer._step_supports_amp_scaling is False
