"""The table of cases: variants, backends, dtypes with their tolerances, invalid hyper-parameters."""

import math

import pytest
import torch

from dynabound.optim import _fused

PAPER = dict(debias=False, sqrt_decay=True, eps=0.0)
"""Exactly Algorithm 2; with amsbound=True, Algorithm 3."""

VARIANTS = {
    "authors": {},
    "authors-fast-bounds": dict(gamma=0.1, final_lr=0.03),
    "amsbound": dict(amsbound=True),
    "l2": dict(weight_decay=0.05),
    "amsbound-l2": dict(amsbound=True, weight_decay=0.05),
    "decoupled": dict(weight_decay=0.05, decoupled_weight_decay=True, lr=0.02),
    "fully-decoupled": dict(weight_decay=0.01, decoupled_weight_decay="fully", lr=0.02),
    "maximize": dict(maximize=True, weight_decay=0.01),
    "paper": PAPER,
    "paper-amsbound": dict(**PAPER, amsbound=True),
    "paper-box": dict(**PAPER, box=(-0.5, 0.75), lr=0.05),
    "paper-beta1-geometric": dict(**PAPER, beta1_decay=0.95),
    "paper-beta1-harmonic": dict(**PAPER, beta1_decay="harmonic", amsbound=True),
    "debiased-beta1-geometric": dict(beta1_decay=0.9),
    "debiased-beta1-harmonic": dict(beta1_decay="harmonic"),
    "exponential": dict(bounds="exponential", gamma=0.02),
    "linear": dict(bounds="linear", gamma=0.02),
    "sgd": dict(bounds=("constant", 1.0, 1.0), final_lr=0.01),
    "adam": dict(bounds=("constant", 0.0, math.inf)),
    "no-momentum": dict(betas=(0.0, 0.9)),
    "one-sided-box": dict(box=(-math.inf, 0.1), lr=0.05, maximize=True),
}

BACKENDS = {
    "loop": dict(foreach=False, fused=False),
    "foreach": dict(foreach=True),
    "fused": dict(fused=True),
}


def backends():
    """The backends as pytest parameters; fused is skipped where the kernel was not built."""
    needs_kernel = pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
    return [
        pytest.param(options, id=name, marks=needs_kernel if name == "fused" else ())
        for name, options in BACKENDS.items()
    ]


# The tolerance of a 200-step trajectory against the float64 reference, which rounds its parameter to the dtype at
# every step. The arithmetic differs only in rounding: one part in 2^53 or 2^24 at each of a dozen operations of 200
# steps for float64 and float32. The 16-bit dtypes compute in float32, so they agree except in rare steps where
# the two values lie on different sides of a rounding boundary: a few units in the last place (2^-8, 2^-11).
TOLERANCES = {
    torch.float64: dict(rtol=1e-11, atol=1e-13),
    torch.float32: dict(rtol=2e-5, atol=2e-6),
    torch.bfloat16: dict(rtol=2**-6, atol=2**-10),
    torch.float16: dict(rtol=2**-9, atol=2**-13),
}

NUMBER_NAMES = ("lr", "final_lr", "eps", "weight_decay")
INVALID = [
    *[(name, value, ValueError) for name in NUMBER_NAMES for value in (-1.0, math.nan, math.inf, -math.inf)],
    *[(name, value, TypeError) for name in (*NUMBER_NAMES, "gamma") for value in ("1", None, True, 1j, [0.1])],
    *[("gamma", value, ValueError) for value in (0, -1e-3, math.nan, math.inf)],
    *[("lr", value, ValueError) for value in (torch.tensor([1e-3, 1e-3]), torch.tensor(-1.0), torch.tensor(math.nan))],
    *[("betas", value, ValueError) for value in ((0.9,), (0.9, 0.99, 0.999), (1.0, 0.9), (0.9, 1.0), (-0.1, 0.9))],
    *[("betas", value, ValueError) for value in ((0.9, math.nan), (math.inf, 0.9))],
    *[("betas", value, TypeError) for value in (0.9, None, "ab", ("0.9", 0.999), (True, 0.9))],
    *[("box", value, ValueError) for value in ((1.0, -1.0), (0.0,), (math.nan, 1.0), (0, 1, 2))],
    *[("box", value, TypeError) for value in (1.0, "01", ("a", "b"))],
    *[("bounds", value, ValueError) for value in ("cubic", "", "constant", ("constant", 1.0), ("linear", 1.0, 2.0))],
    *[("bounds", value, ValueError) for value in (("constant", 2.0, 1.0), ("constant", -1.0, 1.0))],
    *[("bounds", value, ValueError) for value in (("constant", math.nan, 1.0), ("constant", math.inf, math.inf))],
    *[("bounds", value, TypeError) for value in (None, 3)],
    *[("beta1_decay", value, ValueError) for value in (0.0, 1.5, -1.0, math.nan)],
    *[("beta1_decay", value, TypeError) for value in ("geometric", None, True)],
    *[("state_dtype", value, ValueError) for value in (torch.int32, torch.complex64, "float31", torch.float16)],
    *[("state_dtype", value, ValueError) for value in ((torch.bfloat16,), (torch.bfloat16, torch.int8))],
    *[("state_dtype", value, TypeError) for value in (32, (torch.bfloat16, None))],
    *[("rounding", value, ValueError) for value in (None, "up", torch.bfloat16)],
    *[
        (name, value, TypeError)
        for name in (
            "amsbound",
            "decoupled_weight_decay",
            "maximize",
            "capturable",
            "differentiable",
            "debias",
            "sqrt_decay",
        )
        for value in (None, 1, "yes")
    ],
    *[(name, value, TypeError) for name in ("foreach", "fused") for value in (1, "yes")],
]
"""(name, value, exception): invalid hyper-parameters that the constructor and add_param_group must reject."""
