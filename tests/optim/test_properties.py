"""For all shapes, dtypes and hyper-parameters the backends agree and the rates lie within the bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynabound import AdaBound
from dynabound.optim import _fused
from helpers.cases import BACKENDS, TOLERANCES
from helpers.reference import Reference

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
hypers = st.fixed_dictionaries(
    dict(
        lr=st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
        betas=st.tuples(st.sampled_from([0.0, 0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.9, 0.999])),
        final_lr=st.sampled_from([0.0, 1e-3, 0.1]),
        gamma=st.sampled_from([1e-12, 1e-3, 0.5, 10.0]),
        eps=st.sampled_from([0.0, 1e-8, 1e-2]),
        amsbound=st.booleans(),
        maximize=st.booleans(),
        debias=st.booleans(),
        sqrt_decay=st.booleans(),
        beta1_decay=st.sampled_from([1.0, 0.9, "harmonic"]),
        bounds=st.sampled_from(["harmonic", "exponential", "linear", ("constant", 0.5, 2.0)]),
    )
)
decays = st.fixed_dictionaries(
    dict(
        weight_decay=st.sampled_from([0.0, 0.1]),
        decoupled_weight_decay=st.booleans(),
        box=st.sampled_from([None, (-0.5, 1.0)]),
    )
)
gradient_scales = st.lists(st.sampled_from([0.0, 1e-6, 1.0, 30.0]), min_size=1, max_size=6)


def walk(shapes, dtype, options, scales, seed):
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = AdaBound(params, **options)
    for scale in scales:
        for p in params:
            p.grad = (torch.randn(p.shape, generator=generator) * scale).to(dtype)
        optimizer.step()
    return params


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(shapes, min_size=1, max_size=3),
    st.sampled_from(list(TOLERANCES)),
    hypers,
    decays,
    gradient_scales,
    st.sampled_from([None, torch.float64, torch.float32]),
    st.integers(0, 9),
)
def test_backends_agree(shapes, dtype, hyper, decay, scales, state_dtype, seed):
    results = {
        name: walk(shapes, dtype, {**hyper, **decay, "state_dtype": state_dtype, **backend}, scales, seed)
        for name, backend in BACKENDS.items()
        if name != "fused" or _fused.AVAILABLE
    }
    tolerance = TOLERANCES[dtype]
    for name, params in results.items():
        for p, q in zip(params, results["loop"], strict=True):
            torch.testing.assert_close(p, q, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(hypers, gradient_scales, st.sampled_from(list(BACKENDS)), st.integers(0, 9))
def test_every_rate_lies_within_the_bounds(hyper, scales, backend, seed):
    if backend == "fused" and not _fused.AVAILABLE:
        pytest.skip("the C kernel was not built")
    generator = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.zeros(20, dtype=torch.float64))
    optimizer = AdaBound([p], **hyper, **BACKENDS[backend])
    reference = Reference(np.zeros(20), **hyper)  # for its bounds only
    for scale in scales:
        p.grad = torch.randn(20, generator=generator, dtype=torch.float64) * scale
        p.data.zero_()
        optimizer.step()
        reference.t += 1
        rate = (-p.detach() / optimizer.state[p]["exp_avg"])[optimizer.state[p]["exp_avg"] != 0]
        final_lr = hyper["final_lr"] * (hyper["lr"] > 0) / (reference.t**0.5 if hyper["sqrt_decay"] else 1)
        lower, upper = (multiple * final_lr for multiple in reference.multiples())
        # The reference's 1 − 1/(γt+1) is itself only good to 1e-16 of 1, and rates are recovered by a division.
        assert bool((rate >= lower * (1 - 1e-9) - 1e-15).all())
        assert bool((rate <= upper * (1 + 1e-9)).all())
