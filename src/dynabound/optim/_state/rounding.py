"""Stochastic rounding of results: the same noise in every backend, without a generator and without state.

The noise of an element is a hash of the step that is made (counted from 1), of the tensor's number of elements, and of
the element's index in memory order, all modulo 2³²::

    noise = mix(index ^ mix(step ^ mix(count)))

Its high 16 bits round the second moment, its low 16 bits the parameter. A float32 becomes a bfloat16 by adding the 16
bits to its lower half, which is then cut off: of two neighbours, each is chosen with the probability that makes the
result unbiased; exact values, infinities and NaN stay what they are.

No name or index of a parameter enters: so the bits are those of any arrangement in groups, of single steps in backward,
and of the same parameter in several processes. Tensors of equal size share their noise, which biases no element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dynabound.optim._state import eightbit


def mix(x: Any) -> Any:
    """A bijection of the 32-bit numbers that mixes all bits, of an int or of a tensor of int64, which it overwrites."""
    x ^= x >> 16
    x *= 0x21F0AAAD  # both factors are below 2³¹: the product fits into an int64
    x &= 0xFFFFFFFF
    x ^= x >> 15
    x *= 0x735A2D97
    x &= 0xFFFFFFFF
    x ^= x >> 15
    return x


def noise(like: Tensor, step: int | Tensor) -> Tensor:
    """32 random bits, as an int64, for each element of ``like`` in the ``step``-th update."""
    count = like.numel()
    seed = mix((step & 0xFFFFFFFF) ^ mix(count & 0xFFFFFFFF))
    bits = torch.empty_like(like, dtype=torch.int64)  # dense, in the memory order of ``like``
    flat = torch.arange(count, device=like.device)
    flat &= 0xFFFFFFFF
    flat ^= seed
    mixed: Tensor = mix(flat)
    return mixed.as_strided(bits.shape, bits.stride())


def round_to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """``x`` rounded stochastically by 16 random bits: a float32 that a bfloat16 can hold."""
    x = x.float()
    rounded = ((x.view(torch.int32) + bits.to(torch.int32)) & -0x10000).view(torch.float32)
    return torch.where(x == x, rounded, x)


def write_back(stored: Sequence[Tensor], results: Sequence[Tensor], step: Tensor, stochastic: bool) -> None:
    """Copy what was computed to a parameter, its moments and its largest second moment, after ``step`` steps.

    Moments in 8 bits and a second moment in bfloat16 are rounded stochastically: to nearest, 0.999·v would be v. The
    largest is rounded to nearest, because noise in a maximum only ever raises it; so are, unless ``stochastic``,
    parameters.
    """
    shifts = {
        index: shift
        for index, shift in ((0, 0), (2, 16))
        if index < len(stored) and stored[index].dtype is torch.bfloat16
    }
    if not stochastic:
        shifts.pop(0, None)
    packed = any([tensor.dtype is torch.uint8 for tensor in stored])
    bits = noise(stored[0], step + 1) if shifts or packed else step
    for index, (tensor, result) in enumerate(zip(stored, results, strict=True)):
        if tensor.dtype is torch.uint8:
            eightbit.pack(tensor, result, index > 1, bits)
        elif index in shifts:
            tensor.copy_(round_to_bfloat16(result, (bits >> shifts[index]) & 0xFFFF))
        elif result is not tensor:
            tensor.copy_(result)
