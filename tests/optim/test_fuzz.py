"""The kernel against the loop on random shapes, strides, dtypes, shared memory and numbers of threads.

``DYNABOUND_FUZZ_CASES=10000 pytest tests/optim/test_fuzz.py -m slow --timeout=0`` runs that number of cases.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dynabound import AdaBound
from dynabound.optim import _fused
from dynabound.optim._state.eightbit import unpack
from helpers.cases import TOLERANCES

pytestmark = pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")

CASES = int(os.environ.get("DYNABOUND_FUZZ_CASES", "500"))
MEMORY = 1 << 15
"""The largest number of elements of a parameter: enough for four threads."""

sizes = st.sampled_from([0, 1, 2, 3, 7, 16, 63, 64, 65, 130])
shapes = st.one_of(
    st.tuples(),
    st.tuples(st.integers(0, MEMORY)),
    st.tuples(sizes, sizes),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(2, 300), st.sampled_from([32, 63, 96, 1056])),
)
layouts = st.sampled_from(["contiguous", "transposed", "channels-last", "every second"])
views = st.tuples(shapes, layouts, st.floats(0, 1))
options = st.fixed_dictionaries(
    dict(
        amsbound=st.booleans(),
        weight_decay=st.sampled_from([0.0, 0.0, 0.1]),
        decoupled_weight_decay=st.booleans(),
        maximize=st.booleans(),
        box=st.sampled_from([None, None, (-0.5, 0.5)]),
        lr=st.sampled_from([1e-3, 0.1]),
        gamma=st.sampled_from([1e-3, 0.5]),
        state_dtype=st.sampled_from(
            [None, None, torch.float32, torch.float64, torch.bfloat16, (torch.bfloat16, torch.float32), "8bit", "8bit"]
        ),
        rounding=st.sampled_from(["nearest", "stochastic"]),
        release=st.sampled_from([None, None, 1.0]),  # with gamma=0.5 freed in the second step
    )
)
dtypes = st.sampled_from([*TOLERANCES, torch.complex64, torch.complex128])
cases = dict(
    views=st.lists(views, min_size=1, max_size=6),
    shared=st.booleans(),
    dtype=dtypes,
    gradient=st.sampled_from(["own", "own", "transposed", "expanded", "one for all", "another parameter"]),
    options=options,
    threads=st.sampled_from([1, 2, 3, 4]),
    level=st.integers(0, 2),
    seed=st.integers(0, 2**16),
)


def arrange(memory, view):
    """A view into ``memory`` with the shape, the memory order and the relative offset of ``view``."""
    shape, layout, offset = view
    step = 2 if layout == "every second" else 1
    count = torch.Size(shape).numel()
    start = int(offset * (memory.numel() - step * count))
    part = memory[start : start + step * count : step]
    if layout == "transposed" and len(shape) > 1:
        return part.view(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "channels-last" and len(shape) == 4:
        n, c, h, w = shape
        return part.view(n, h, w, c).permute(0, 3, 1, 2)
    return part.view(shape)


def set_gradients(params, kind, generator):
    for index, p in enumerate(params):
        dtype = p.dtype.to_real()
        values = torch.randn((*p.shape, 2), generator=generator, dtype=torch.float64).to(dtype)
        grad = (
            torch.view_as_complex(values.float() if dtype.itemsize == 2 else values)
            if p.is_complex()
            else values[..., 0]
        )
        grad = grad.to(p.dtype)
        grad = torch.empty_like(p).copy_(grad)
        if kind == "transposed" and p.dim() == 2:
            grad = grad.t().contiguous().t()
        elif kind == "expanded" and p.numel():
            grad = grad.flatten()[0].expand(p.shape)
        elif kind == "one for all" and index and params[0].shape == p.shape:
            grad = params[0].grad
        elif kind == "another parameter" and index and params[index - 1].shape == p.shape:
            grad = params[index - 1].data
        p.grad = grad


def train(fused, views, shared, dtype, gradient, options, seed):
    generator = torch.Generator().manual_seed(seed)
    counts = [2 * torch.Size(shape).numel() + 9 for shape, _, _ in views]
    memory = [torch.randn(count, generator=generator).to(dtype) for count in ([max(counts)] if shared else counts)]
    params = [nn.Parameter(arrange(memory[0 if shared else i], view)) for i, view in enumerate(views)]
    optimizer = AdaBound(params, fused=fused, **options)
    for _ in range(2):
        set_gradients(params, gradient, generator)
        optimizer.step()
    return torch.cat(memory), optimizer.state


def assert_mostly_close(ours, theirs, rtol, atol):
    assert ours.shape == theirs.shape
    assert ours.isclose(theirs, rtol=rtol, atol=atol).sum() >= 0.999 * ours.numel()


def check(views, shared, dtype, gradient, options, threads, level, seed):
    """With any number of threads and any instructions the kernel changes memory and state exactly as the loop does."""
    # Where one parameter reads what another writes, the order of the updates matters: it is the loop's if the kernel
    # supports all parameters. Other parameters follow in a foreach call, which reads all gradients first.
    if gradient == "another parameter" or (shared and (options["weight_decay"] or options["box"])):
        views = [(shape, "contiguous", offset) for shape, _, offset in views]
        options = {**options, "state_dtype": None}
        gradient = "own" if shared else gradient
    before, best = torch.get_num_threads(), _fused.LEVEL
    try:
        torch.set_num_threads(threads)
        _fused.LEVEL = min(level, best)
        memory, state = train(None, views, shared, dtype, gradient, options, seed)
    finally:
        torch.set_num_threads(before)
        _fused.LEVEL = best
    expected, expected_state = train(False, views, shared, dtype, gradient, options, seed)
    tolerance = TOLERANCES[dtype.to_real()]
    if dtype.itemsize == 2:  # several updates may cancel: then a unit in the last place of the start is the limit
        tolerance = {**tolerance, "atol": 8 * tolerance["atol"]}
    if any(each["exp_avg"].dtype == torch.bfloat16 for each in state.values()):
        # Moments that differ by a unit of float32 may be rounded apart: 2⁻⁷ of a step.
        tolerance = {**tolerance, "atol": max(tolerance["atol"], options["lr"] * 2**-7)}
    # Moments in 8 bits that differ by a unit of float32 may be rounded to other codes: rarely, but then far apart.
    packed = any(tensor.dtype == torch.uint8 for each in state.values() for tensor in each.values())
    assert_close = assert_mostly_close if packed else torch.testing.assert_close
    assert_close(memory, expected, **tolerance)
    for (param, ours), theirs in zip(state.items(), expected_state.values(), strict=True):
        assert ours["step"] == theirs["step"] == 2
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"step", "max_exp_avg_sq"}:
            moments = [unpack(each[name], param, name != "exp_avg") for each in (ours, theirs)]
            coarsest = min((dtype.to_real(), moments[0].dtype.to_real()), key=lambda d: torch.finfo(d).bits)
            assert_close(*moments, **TOLERANCES[coarsest])


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(**cases)
def test_the_kernel_is_the_loop(**case):
    check(**case)


@pytest.mark.slow
@settings(max_examples=CASES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(**cases)
def test_the_kernel_is_the_loop_in_many_cases(**case):
    check(**case)
