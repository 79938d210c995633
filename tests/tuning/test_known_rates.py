"""final_lr from a known rate of SGD or Adam, compared with the steps of those optimizers."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.tuning import final_lr_from_adam, final_lr_from_sgd
from dynabound.tuning.known_rates import adams_rates


@pytest.mark.parametrize(("momentum", "dampening"), [(0.9, 0.0), (0.9, 0.9), (0.5, 0.25), (0.0, 0.0)])
def test_the_same_steps_as_sgd(momentum: float, dampening: float) -> None:
    """Under a constant gradient both settle at the same step."""
    theirs, ours = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, dampening=dampening)
    final_lr = final_lr_from_sgd(0.1, momentum, dampening)
    bound = AdaBound([ours], betas=(momentum, 0.999), final_lr=final_lr, bounds=("constant", 1.0, 1.0))
    for _ in range(300):
        before = theirs.item(), ours.item()
        theirs.grad, ours.grad = torch.ones(1), torch.ones(1)
        sgd.step()
        bound.step()
    assert theirs.item() - before[0] == pytest.approx(ours.item() - before[1], rel=1e-4)


def test_the_same_first_order_decrease_as_adam() -> None:
    """With v = g² one step of Adam lowers the loss by α·Σ|g|, and one of SGD by α*·Σg²."""
    torch.manual_seed(0)
    first, second = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(2, 3))
    adam = torch.optim.Adam([{"params": first}, {"params": second, "lr": 0.03}], lr=0.01, eps=1e-12)
    first.grad, second.grad = torch.randn(5), torch.randn(2, 3)
    adam.step()
    decrease = 0.01 * first.grad.abs().sum() + 0.03 * second.grad.abs().sum()
    energy = first.grad.square().sum() + second.grad.square().sum()
    assert final_lr_from_adam(adam) == pytest.approx((decrease / energy).item(), rel=1e-5)


def test_elements_that_never_had_a_gradient_do_not_count() -> None:
    weight = nn.Parameter(torch.zeros(2))
    adam = torch.optim.Adam([weight], lr=0.01, eps=0)
    weight.grad = torch.tensor([2.0, 0.0])
    adam.step()
    assert final_lr_from_adam(adam) == pytest.approx(0.005)


@pytest.mark.parametrize(("gradients", "uneven"), [([1.0, 1.0, 4.0], False), ([1.0, 1.0, 1.0, 20.0], True)])
def test_rates_are_uneven_if_most_are_above_twice_their_mean(gradients: list[float], uneven: bool) -> None:
    """The harmonic mean of lr/√v, also where a group has a tenth of the learning rate."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in gradients]
    adam = torch.optim.Adam([{"params": weights[:1], "lr": 0.001}, {"params": weights[1:]}], lr=0.01, eps=0)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = torch.full((1,), gradient)
    weights[0].grad = weights[0].grad / 10
    adam.step()
    found = adams_rates(adam)
    assert found.mean == pytest.approx(statistics.harmonic_mean([0.01 / gradient for gradient in gradients]))
    assert found.uneven == uneven


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Half precision overflows if it is summed: 100 · 100² is above 65504."""
    weight = nn.Parameter(torch.zeros(100, dtype=dtype))
    adam = torch.optim.Adam([weight], lr=0.01, eps=1e-4, betas=(0.0, 0.0))
    weight.grad = torch.full((100,), 100, dtype=dtype) * (1 + 1j if dtype.is_complex else 1)
    adam.step()
    assert final_lr_from_adam(adam) == pytest.approx(1e-4, rel=1e-2)


def test_moments_in_8_bits_are_unpacked() -> None:
    """Under a constant gradient of 2 every rate lr/√v is lr/2."""
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = AdaBound([weight], lr=0.01, eps=0, state_dtype="8bit")
    for _ in range(3):
        weight.grad = torch.full_like(weight, 2.0)
        optimizer.step()
    assert final_lr_from_adam(optimizer) == pytest.approx(0.005, rel=1e-3)


def test_tiny_rates_are_not_rounded_to_zero() -> None:
    assert final_lr_from_sgd(1e-13, 0.9) == pytest.approx(1e-12)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"momentum=1.0: must be in \[0, 1\)"):
        final_lr_from_sgd(0.1, 1.0)
    with pytest.raises(ValueError, match="lr=0"):
        final_lr_from_sgd(0)
    with pytest.raises(ValueError, match="dampening=-1"):
        final_lr_from_sgd(0.1, 0.9, -1)
    with pytest.raises(ValueError, match="lr=inf"):
        final_lr_from_sgd(math.inf)
    with pytest.raises(ValueError, match="optimizer=Adam: its state must hold"):
        final_lr_from_adam(torch.optim.Adam([nn.Parameter(torch.zeros(1))]))
