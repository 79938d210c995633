"""Stochastic rounding: the noise in NumPy, its uniformity, and what it does to second moments and parameters."""

import numpy as np
import torch

from dynabound.optim._state import rounding


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
