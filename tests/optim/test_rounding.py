"""Stochastic rounding: the noise in NumPy, its uniformity, and what it does to second moments and parameters."""

import numpy as np
import pytest
import torch

from dynabound import AdaBound
from dynabound.optim._state import rounding
from helpers.cases import backends

BFLOAT16 = torch.bfloat16


def noise(count, step):
    """The specification, in wrapping 32-bit arithmetic."""

    def mix(x):
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        return x ^ (x >> np.uint32(15))

    number = [np.array([value], dtype=np.uint32) for value in (step % 2**32, count)]
    return mix(np.arange(count, dtype=np.uint32) ^ mix(number[0] ^ mix(number[1])))


def test_the_noise_is_the_specification():
    for count, step in ((1, 1), (1000, 1), (1000, 2**31), (7, 2**40 + 3)):
        expected = noise(count, step).tolist()
        assert rounding.noise(torch.empty(count), step).tolist() == expected
        assert rounding.noise(torch.empty(count), torch.tensor(step)).tolist() == expected
    images = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert rounding.noise(images, 9).permute(0, 2, 3, 1).flatten().tolist() == noise(120, 9).tolist()


def test_the_noise_is_uniform_over_elements_and_over_steps():
    """Means of both halves over elements, and over steps, have the spread of independent uniform numbers."""
    values = np.stack([noise(1000, step) for step in range(1, 1001)])
    for half in (values >> 16, values & 0xFFFF):
        uniform = half / 2**16
        for axis in (0, 1):
            assert 0.8 < uniform.mean(axis).var() * 12 * 1000 < 1.2  # 1 ± 0.045 for 1,000 means
        assert abs(uniform.mean() - 0.5) < 4 / np.sqrt(12 * uniform.size)
    halves = [(values >> 16).ravel(), (values & 0xFFFF).ravel()]
    assert abs(np.corrcoef(*halves)[0, 1]) < 4e-3


def test_rounding_is_unbiased_and_keeps_what_is_exact():
    x = torch.tensor([1 + 2**-9, -3 - 2**-8, 1e-40, 2.0, -0.0, float("inf"), float("-inf"), float("nan")])
    bits = rounding.noise(torch.empty(50_000), 1) >> 16
    rounded = torch.stack([rounding.round_to_bfloat16(value.expand_as(bits), bits).double() for value in x], 1)
    torch.testing.assert_close(rounded.bfloat16().double(), rounded, rtol=0, atol=0, equal_nan=True)
    ulp = torch.tensor([2**-7, 2**-6, 2.0**-133])
    assert ((rounded[:, :3].mean(0) - x[:3].double()).abs() < 8e-3 * ulp).all()
    exact = x[3:].double().expand(len(bits), 5)
    torch.testing.assert_close(rounded[:, 3:], exact, rtol=0, atol=0, equal_nan=True)


def run(steps, dtype=torch.float32, size=1000, gradient=lambda t: 1.0, start=1.0, **options):
    """The parameter and its optimizer after some steps with the same gradient for every element."""
    param = torch.nn.Parameter(torch.full((size,), start, dtype=dtype))
    optimizer = AdaBound([param], **options)
    for t in range(steps):
        param.grad = torch.full_like(param, gradient(t))
        optimizer.step()
    return param.detach(), optimizer


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
def test_a_second_moment_in_bfloat16_follows_its_gradients(dtype, backend):
    """Rounded to nearest it would stop at 0.25, on the way to 1 as on the way to 0.01."""
    _, optimizer = run(4000, dtype, 100, lambda t: 1.0 if t < 1500 else 0.1, state_dtype=BFLOAT16, **backend)
    (state,) = optimizer.state.values()
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == BFLOAT16
    expected = 0.01 + (1 - 0.999**1500 - 0.01) * 0.999**2500
    assert state["exp_avg_sq"].double().mean().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("backend", backends())
def test_a_stochastic_parameter_learns_from_small_updates(backend):
    """500 updates of a fiftieth of a unit in the last place: to nearest, none happens."""
    options = dict(lr=1e-9, final_lr=2**-7 / 50, gamma=1.0, weight_decay=0.01, decoupled_weight_decay=True, **backend)
    exact, _ = run(500, **options)
    mean = [run(500, BFLOAT16, rounding=how, **options)[0].double().mean().item() for how in ("nearest", "stochastic")]
    assert mean[0] == 1.0
    assert mean[1] - 1 == pytest.approx(exact[0].item() - 1, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("state", [BFLOAT16, (BFLOAT16, torch.float32), (torch.float32, BFLOAT16)])
def test_backends_round_alike(state, dtype):
    """They differ where their float32 arithmetic does, mostly where a first moment lies between two neighbours."""
    torch.manual_seed(0)
    results = []
    start, grads = torch.randn(64, 32), torch.randn(20, 64, 32)
    for backend in backends():
        param = torch.nn.Parameter(start.to(dtype))
        optimizer = AdaBound([param], rounding="stochastic", amsbound=True, state_dtype=state, **backend.values[0])
        for grad in grads:
            param.grad = grad.to(dtype)
            optimizer.step()
        results.append([param.detach(), *optimizer.state[param].values()])
    for others in results[1:]:
        for ours, theirs in zip(results[0], others, strict=True):
            assert (ours.bfloat16() == theirs.bfloat16()).double().mean() > 0.95
            torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-9)


def test_noise_does_not_raise_amsbounds_maximum():
    """The maximum of 30,000 steps whose true v stays at 1/3: at most one unit in the last place above it."""
    torch.manual_seed(0)
    _, optimizer = run(30_000, size=64, gradient=lambda t: 3**-0.5, state_dtype=BFLOAT16, amsbound=True)
    (state,) = optimizer.state.values()
    assert state["max_exp_avg_sq"].max().item() <= 1 / 3 + 2**-9
    assert state["max_exp_avg_sq"].min().item() >= 1 / 3 - 2**-9


def test_a_resumed_run_rounds_as_the_uninterrupted_one():
    def step(param, optimizer, t):
        param.grad = torch.sin(torch.arange(100.0) + t).to(BFLOAT16)
        optimizer.step()

    options = dict(state_dtype=BFLOAT16, rounding="stochastic", lr=1e-2)
    params = [torch.nn.Parameter(torch.ones(100, dtype=BFLOAT16)) for _ in range(2)]
    optimizers = [AdaBound([param], **options) for param in params]
    for t in range(20):
        for index in range(2):
            step(params[index], optimizers[index], t)
        state = optimizers[1].state_dict()
        optimizers[1] = AdaBound([params[1]])
        optimizers[1].load_state_dict(state)
    assert torch.equal(*params)
