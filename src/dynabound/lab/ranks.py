"""Several processes training one run: who am I, how many are we, what do we agree on. Alone, all of it is trivial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["add_up", "anyone", "count", "gather", "joined", "local_device", "rank", "share", "share_buffers"]


def count() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 is the one that writes."""
    return dist.get_rank() if count() > 1 else 0


@contextmanager
def joined(device: str, group: bool = False) -> Iterator[None]:
    """Join the others if ``torchrun`` has started several processes; a process alone only if it needs a ``group``."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not (several or group):
        yield
        return
    if device == "cuda" and several:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # where nccl puts what it sends of Python's objects
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if several:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()


def local_device(device: str) -> str:
    """Under ``torchrun`` each process of a machine takes a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and count() > 1 else device


def share(value: Any) -> Any:
    """What process 0 has, for all."""
    if count() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def gather(value: Any) -> list[Any]:
    """What every process has, in their order, for all."""
    if count() == 1:
        return [value]
    box: list[Any] = [None] * count()
    dist.all_gather_object(box, value)
    return box


def add_up(values: Tensor) -> Tensor:
    """The sum over all processes."""
    if count() > 1:
        dist.all_reduce(values)
    return values


def anyone(device: torch.device, *flags: bool) -> list[bool]:
    """For each flag, whether any process has raised it."""
    return (
        list(flags)
        if count() == 1
        else [value > 0 for value in add_up(torch.tensor(flags, device=device).int()).tolist()]
    )


def share_buffers(model: nn.Module) -> None:
    """Give every process the running statistics of process 0."""
    if count() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
