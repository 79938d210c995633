"""The interpreted kernel equals the C kernel in every bit, and the float64 transcription within its tolerances."""

import numpy as np
import pytest
import torch
from torch import nn

from dynabound import AdaBound, AdaBoundW
from dynabound.optim import _fused
from helpers.cases import TOLERANCES, VARIANTS
from helpers.reference import Reference


def gradients(params, steps, seed=1):
    """For each step gradients of very different scales, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        some = []
        for p in params:
            scale = 10 ** torch.linspace(-4, 1, p.numel()).view(p.shape)
            grad = (torch.randn(p.shape, generator=generator) + 0.3) * scale
            some.append((grad * (torch.rand(p.shape, generator=generator) < 0.9)).to(p.dtype))
        yield some


def step(optimizer, params, grads):
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    optimizer.step()


def assert_same_bits(ours, optimizer, theirs, other):
    assert _fused.gpu_failure is None
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
        for name, value in optimizer.state[p].items():
            assert torch.equal(value, other.state[q][name]), name
        assert optimizer.state[p].keys() == other.state[q].keys()


def check(start, steps, capturable=False, **options):
    """The same parameters, trained by the Triton kernel and by the C kernel."""
    ours, theirs = ([nn.Parameter(p.clone(memory_format=torch.preserve_format)) for p in start] for _ in range(2))
    optimizer, other = AdaBound(ours, **options, fused=True, capturable=capturable), AdaBound(theirs, **options)
    for grads in gradients(start, steps):
        step(optimizer, ours, grads)
        step(other, theirs, grads)
    assert_same_bits(ours, optimizer, theirs, other)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_dtype(variant, dtype):
    """100 steps of one whole block and a tail.

    The transcription follows 35 of the elements, as many as the tolerances were made for: of 1,100 some float16 numbers
    are rounded to different neighbours repeatedly, in the C kernel, too.
    """
    start = torch.linspace(-1, 1, 1100).to(dtype)
    params = [nn.Parameter(start.clone()) for _ in range(2)]
    options = VARIANTS[variant]
    optimizers = [AdaBound(params[:1], **options, fused=True), AdaBound(params[1:], **options)]
    reference = Reference(start[::32].double().numpy(), dtype=str(dtype)[6:], **options)
    for grads in gradients([start], 100):
        for optimizer, p in zip(optimizers, params, strict=True):
            step(optimizer, [p], grads)
        reference.step(grads[0][::32].double().numpy())
        assert torch.equal(*params)
        np.testing.assert_allclose(params[0].detach()[::32].double().numpy(), reference.x, **TOLERANCES[dtype])
    assert_same_bits(params[:1], optimizers[0], params[1:], optimizers[1])


FORMATS = {
    "bfloat16 state": (torch.float32, dict(state_dtype=torch.bfloat16)),
    "bfloat16 first moment": (torch.float32, dict(state_dtype=(torch.bfloat16, torch.float32))),
    "bfloat16 all": (torch.bfloat16, dict(state_dtype=torch.bfloat16)),
    "stochastic": (torch.bfloat16, dict(rounding="stochastic", weight_decay=0.1, decoupled_weight_decay=True)),
    "stochastic all": (torch.bfloat16, dict(rounding="stochastic", state_dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize(("dtype", "options"), FORMATS.values(), ids=FORMATS)
def test_every_format(dtype, options, amsbound, capturable):
    """Also the noise of stochastic rounding, of step counts on the CPU and on the GPU, in every chunk of a tensor."""
    start = [torch.linspace(-1, 1, n).to(dtype) for n in (9300, 1100, 1)]
    check(start, 5, capturable, **options, amsbound=amsbound)


BF16 = torch.bfloat16
EIGHT_BITS = [(torch.float32, "8bit"), (BF16, "8bit"), (torch.float16, "8bit"), (torch.float32, ("8bit", BF16)),
              (BF16, ("8bit", BF16))]  # fmt: skip


@pytest.mark.parametrize(("dtype", "state_dtype"), EIGHT_BITS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_in_8_bits(variant, dtype, state_dtype):
    """Whole groups, and 260 with a shorter one in each row: two chunks, in a launch of their own."""
    start = [torch.linspace(-1, 1, 4096).view(64, 64).to(dtype), torch.linspace(-1, 1, 4290).view(130, 33).to(dtype)]
    check(start, 4, **VARIANTS[variant], state_dtype=state_dtype, rounding="stochastic")


@pytest.mark.parametrize(("dtype", "state_dtype"), EIGHT_BITS)
def test_8_bits_with_step_counts_on_the_gpu_and_a_release(dtype, state_dtype):
    start = [torch.linspace(-1, 1, 8640).view(3, 2, 1440).to(dtype), torch.ones(70, dtype=dtype)]
    check(start, 3, True, state_dtype=state_dtype)
    check(start, 3, bounds="linear", gamma=0.5, release=0, state_dtype=state_dtype)


def test_what_is_not_finite_in_8_bits():
    start = [torch.linspace(-1, 1, 4096).view(64, 64)]
    params = [nn.Parameter(start[0].clone()) for _ in range(2)]
    optimizers = [AdaBound(params[:1], state_dtype="8bit", fused=True), AdaBound(params[1:], state_dtype="8bit")]
    for optimizer, p in zip(optimizers, params, strict=True):
        p.grad = torch.full_like(p, 1e-30)
        p.grad[0, 3], p.grad[1, 40], p.grad[2, 0], p.grad[3] = float("nan"), float("inf"), -1e30, 0.0
        for _ in range(3):
            optimizer.step()
    torch.testing.assert_close(*params, rtol=0, atol=0, equal_nan=True)
    assert params[0].isnan().sum() == 3 * 32  # (1e30)² is infinite, too


@pytest.mark.parametrize("tolerance", [0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_released_second_moments(dtype, tolerance):
    """The bounds meet at step 5: the last steps have no second moment."""
    start = [torch.linspace(-1, 1, n).to(dtype) for n in (1100, 3)]
    for options in (dict(), dict(amsbound=True, rounding="stochastic", weight_decay=0.1)):
        check(start, 8, bounds="linear", gamma=0.2, release=tolerance, **options)


SHAPES = {
    "many": [torch.linspace(-1, 1, n) for n in (3, 1, 1024, 9000, 8192)],
    "empty and 0-dimensional": [torch.ones(0, 3), torch.tensor(0.5), torch.ones(2)],
    "channels last": [torch.linspace(-1, 1, 840).view(2, 7, 6, 10).to(memory_format=torch.channels_last)],
    "transposed": [torch.linspace(-1, 1, 35).view(5, 7).T],
    "complex": [torch.randn(70, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))],
    "complex128": [torch.randn(70, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))],
}


@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("start", SHAPES.values(), ids=SHAPES)
def test_every_shape(start, amsbound):
    check(start, 3, amsbound=amsbound, weight_decay=0.1)


def test_tensors_that_are_not_aligned():
    """They have a launch of their own, in which a pointer may be a multiple of the element only."""
    memory = [torch.linspace(-1, 1, 4001) for _ in range(2)]
    params = [[nn.Parameter(part) for part in (some[:1100], some[1101:3000], some[3001:])] for some in memory]
    optimizers = [AdaBound(params[0], fused=True), AdaBound(params[1])]
    for grads in gradients(params[0], 3):
        for optimizer, some in zip(optimizers, params, strict=True):
            step(optimizer, some, grads)
    assert_same_bits(params[0], optimizers[0], params[1], optimizers[1])


def test_parameters_that_share_memory_are_updated_one_after_the_other():
    memory = [torch.linspace(-1, 1, 1000) for _ in range(2)]
    params = [[nn.Parameter(part) for part in (some, some[250:], some[:500])] for some in memory]
    # The decay halves the parameter at each update: then the order of the updates matters.
    optimizers = [
        AdaBoundW(some, lr=0.5, weight_decay=1.0, fused=fused) for some, fused in zip(params, (True, None), strict=True)
    ]
    for grads in gradients(params[0], 2):
        for optimizer, some in zip(optimizers, params, strict=True):
            step(optimizer, some, grads)
    assert torch.equal(*memory)


def test_sixteen_bit_rounding_is_that_of_the_c_kernel():
    """Numbers on and off the boundaries, infinities and NaN."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (50_000,), generator=generator).to(torch.int32)
    exact = torch.arange(-(2**15), 2**15, 3).to(torch.int16).view(torch.bfloat16).float()
    grads = torch.cat([bits.view(torch.float32), exact, exact * (1 + 2**-9), exact * (1 + 2**-12)])
    for dtype in (torch.bfloat16, torch.float16):
        params = [nn.Parameter(torch.zeros(len(grads), dtype=dtype)) for _ in range(2)]
        for p, fused in zip(params, (True, None), strict=True):
            optimizer = AdaBound([p], lr=1.0, bounds=("constant", 1.0, 1.0), final_lr=1.0, fused=fused)
            p.grad = torch.zeros_like(p)
            optimizer.step()
            optimizer.state[p]["exp_avg"].copy_(grads)
            optimizer.step()
        first, second = (p.detach().view(torch.int16) for p in params)
        assert torch.equal(params[0].isnan(), params[1].isnan())
        assert bool(((first == second) | params[0].isnan()).all())


def test_not_a_number_and_infinity():
    start = torch.linspace(-1, 1, 64)
    for options in ({}, dict(amsbound=True, box=(-0.5, 0.5))):
        params = [nn.Parameter(start.clone()) for _ in range(2)]
        for p, fused in zip(params, (True, None), strict=True):
            optimizer = AdaBound([p], **options, fused=fused)
            p.grad = torch.full_like(p, 1e-30)
            p.grad[::5], p.grad[1::5], p.grad[2::5] = float("nan"), float("inf"), -1e30
            for _ in range(3):
                optimizer.step()
        torch.testing.assert_close(*params, rtol=0, atol=0, equal_nan=True)
