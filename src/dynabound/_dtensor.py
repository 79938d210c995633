"""DTensors, of which each process has a part, without importing torch.distributed."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor may be cut up among processes, as FSDP2's parameters are."""
    return hasattr(tensor, "full_tensor")


def same_placement(tensors: list[Any]) -> bool:
    """Whether all are DTensors that are cut in the same way."""
    first = tensors[0]
    return all(
        is_dtensor(other) and other.device_mesh == first.device_mesh and other.placements == first.placements
        for other in tensors
    )


def cut(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as a DTensor, if ``like`` is one: each process, which has all of it, keeps its part."""
    if is_dtensor(tensor) or not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    placed = cast(DTensor, like)
    copies = DTensor.from_local(tensor, placed.device_mesh, [Replicate()] * placed.device_mesh.ndim, run_check=False)
    return copies.redistribute(placements=placed.placements)


def whole(tensor: Tensor) -> Tensor:
    """All of a DTensor, which all processes must ask for together; any other tensor as it is."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
