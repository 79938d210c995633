"""DTensors: tensors that are sharded among processes. Does not import torch.distributed."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor may be sharded among processes, as FSDP2's parameters are."""
    return hasattr(tensor, "full_tensor")


def same_placement(tensors: list[Any]) -> bool:
    """Whether all are DTensors with the same mesh and placements."""
    first = tensors[0]
    return all(
        is_dtensor(other) and other.device_mesh == first.device_mesh and other.placements == first.placements
        for other in tensors
    )


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A full tensor, placed like ``like`` if that is a DTensor; every process must hold the full tensor."""
    if is_dtensor(tensor) or not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    placed = cast(DTensor, like)
    copies = DTensor.from_local(tensor, placed.device_mesh, [Replicate()] * placed.device_mesh.ndim, run_check=False)
    return copies.redistribute(placements=placed.placements)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a DTensor, which is a collective call; any other tensor unchanged."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
