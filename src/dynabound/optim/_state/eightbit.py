"""Moments in 8 bits: codes of groups of 32 elements and their scale, rounded stochastically.

A moment is one tensor of uint8 with the parameter's rows (its first dimension). A row of n elements, in the order of
``flatten``, takes ⌈n/32⌉ groups of 36 bytes: 32 codes, and the scale s as a float32; zeros fill the last group.
Rows are independent, so that the tensor is sharded among processes as the parameter is. With q a code::

    m = s·q/(254 − |q|)    q from −127 to 127, s the largest |m| of the group
    v = (s·q)²             q from 0 to 255, 255·s the largest √v of the group

Of the two neighbouring codes each is chosen with the probability that makes m and v unbiased: rounded to nearest, small
elements of m would never change, and no v would. A v > 0 has at least the code 1, because a v of 0 would make its rate
jump to the upper bound.
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
    groups = moment.view(moment.shape[0], moment.shape[1] // _BYTES, _BYTES)
    codes, scale = groups[..., :GROUP], groups[..., GROUP:].contiguous().view(torch.float32)
    if second:
        x = (codes * scale).square()
    else:
        q = codes.view(torch.int8).float()
        x = q / (254 - q.abs()) * scale
    return x.flatten(1)[:, : math.prod(param.shape[1:])].reshape(param.shape)


def pack(packed: Tensor, moment: Tensor, second: bool, bits: Tensor) -> None:
    """Round ``moment`` to ``packed`` by 32 random bits for each element."""
    x = _group(moment.float())
    # The high bits of a product depend on all bits: other noise for m than for v, and than for the parameter.
    noise = (_group(bits if second else (bits * 0x9E3779B1) & 0xFFFFFFFF) >> 16).float()
    magnitude = x.sqrt() if second else x.abs()
    scale = magnitude.amax(2, keepdim=True)
    if second:
        scale = scale / 255
    y = magnitude / torch.where(scale > 0, scale, 1)
    if second:
        q = y.floor()
        up = (y - q) * (y + q) / (2 * q + 1)
    else:
        q = (254 * y / (1 + y)).floor()
        up = (y * (254 - q) - q) * (253 - q) / 254
    codes = (q + (noise < up * 65536)).nan_to_num()  # where an element is not finite, neither is the scale
    codes = codes.clamp(max=255).maximum((x > 0).float()) if second else codes.clamp(max=127) * x.nan_to_num().sign()
    codes = codes.to(torch.uint8) if second else codes.to(torch.int8).view(torch.uint8)
    packed.copy_(torch.cat([codes, scale.view(torch.uint8)], 2).flatten(1))


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
