"""The interpreted kernel equals the C kernel in every bit, and the float64 transcription within its tolerances."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.optim import _fused
from dynabound.optim._gpu import launch
from helpers.cases import TOLERANCES, VARIANTS
from helpers.reference import Reference

STEPS = 100


def optimizers(dtype, options, monkeypatch):
    """The same parameters twice: for the Triton kernel and for the C kernel."""


@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_c_kernel(variant, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator).to(dtype) for shape in ((5, 7), (1,), (1100,))]
    ours, c = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    triton_, other = AdaBound(ours, **VARIANTS[variant], fused=True), AdaBound(c, **VARIANTS[variant])
    for _ in range(STEPS):
        for p, q in zip(ours, c, strict=True):
            scale = 10 ** torch.linspace(-4, 1, p.numel()).view_as(p)
            p.grad = (torch.randn(p.shape, generator=generator) * scale + 0.3 * scale).to(dtype)
            q.grad = p.grad.clone()
        triton_.step()
        other.step()
        assert _fused.gpu_failure is None
    for p, q in zip(ours, c, strict=True):
        assert torch.equal(p, q)
        for name, value in triton_.state[p].items():
            assert torch.equal(value, other.state[q][name]), name
