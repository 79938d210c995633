"""Moments in 8 bits: codes of groups of 32 elements and their scale, rounded stochastically.

A moment is one tensor of uint8 with the parameter's rows (its first dimension). A row of n elements, in the order of
``flatten``, takes ⌈n/32⌉ groups of 36 bytes: first all codes, where zeros fill the last group, then the scale s of each
group as a float32. Rows are independent, so that the tensor is sharded among processes as the parameter is. With q a
code::

    m = sign(q)·(s·q)²    q from −127 to 127, 127·s the largest √|m| of the group
    v = (s·q)²            q from 0 to 255, 255·s the largest √v of the group

Of the two neighbouring codes each is chosen with the probability that makes m and v unbiased: rounded to nearest, small
elements of m would never change, and no v would. A v > 0 has at least the code 1, because a v of 0 would make its rate
jump to the upper bound. The kernel gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dynabound._dtensor import is_dtensor

GROUP = 32
_BYTES = GROUP + 4
_SMALL = 4096
"""Tensors with fewer elements keep moments in full precision."""


def applies(param: Tensor) -> bool:
    """Whether the moments of ``param`` are kept in 8 bits: if it is a matrix of some size, or has more dimensions."""
    if not param.is_floating_point() or param.dim() < 2 or param.numel() < _SMALL:
        return False
    sharded_by_row = {str(placement) for placement in getattr(param, "placements", ())} <= {"R", "S(0)"}
    return sharded_by_row and math.prod(param.shape[1:]) >= GROUP


def packed_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The shape of a moment in 8 bits, for a parameter of ``shape``."""
    return shape[0], -(-math.prod(shape[1:]) // GROUP) * _BYTES


def zeros(param: Tensor) -> Tensor:
    """A moment of 0, a DTensor if ``param`` is one."""
    local = param.to_local() if is_dtensor(param) else param  # type: ignore[attr-defined]
    packed = torch.zeros(packed_shape(local.shape), dtype=torch.uint8, device=param.device)
    return _place(packed, param, packed_shape(param.shape))


def unpack(moment: Tensor, param: Tensor, second: bool) -> Tensor:
    """A moment of ``param`` as floating-point numbers: what is not in 8 bits is returned as it is."""
    if moment.dtype is not torch.uint8:
        return moment
    if is_dtensor(moment):
        local = unpack(moment.to_local(), param.to_local(), second)  # type: ignore[attr-defined]
        return _place(local, param, param.shape)
    codes, scales = _split(moment)
    roots = (codes if second else codes.view(torch.int8)) * scales
    x = roots * (roots if second else roots.abs())
    return x.flatten(1)[:, : math.prod(param.shape[1:])].reshape(param.shape)


def pack(packed: Tensor, moment: Tensor, second: bool, bits: Tensor) -> None:
    """Round ``moment`` to ``packed`` by 32 random bits for each element."""
    x = _group(moment.float())
    noise = (_group(bits) >> (16 if second else 8)) & 0xFFFF  # other bits for m than for v and for the parameter
    roots = x.abs().double().sqrt().float()  # by way of float64, because torch's root of a float32 is not exact
    top = 255 if second else 127
    largest = roots.amax(2, keepdim=True)
    scales = largest / largest.new_full((), top)
    y = roots * torch.where(largest > 0, largest.new_full((), top) / largest, 0)
    y = torch.where(y < top, y, top)  # also where an element is not finite, and neither is the scale
    q = y.floor()
    codes = q + (noise.float() * (2 * q + 1) < (y - q) * (y + q) * 65536)
    codes = codes.maximum((x > 0).float()) if second else torch.where(x.signbit(), -codes, codes)
    codes = codes.to(torch.uint8) if second else codes.to(torch.int8).view(torch.uint8)
    for stored, values in zip(_split(packed), (codes, scales), strict=True):
        stored.copy_(values)


def _split(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the codes and of the scales, both with dimensions (rows, groups, elements)."""
    groups = moment.shape[1] // _BYTES
    codes, scales = moment[:, : groups * GROUP], moment[:, groups * GROUP :]
    return codes.view(-1, groups, GROUP), scales.view(torch.float32).unsqueeze(2)


def _group(x: Tensor) -> Tensor:
    """Rows of groups."""
    x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    return F.pad(x, (0, -x.shape[1] % GROUP)).view(x.shape[0], -(-x.shape[1] // GROUP), GROUP)


def _place(local: Tensor, param: Tensor, shape: Sequence[int]) -> Tensor:
    """A shard as a DTensor of ``shape`` with the placements of ``param``, if that is one."""
    if not is_dtensor(param):
        return local
    from torch.distributed.tensor import DTensor

    assert isinstance(param, DTensor)
    stride = torch.empty(torch.Size(shape), device="meta").stride()
    return DTensor.from_local(
        local, param.device_mesh, param.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
