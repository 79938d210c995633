"""Several processes training one run: who am I, how many are we, what do we agree on. Alone, all of it is trivial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynabound.lab.errors import LabError

__all__ = ["MEETING", "add_up", "anyone", "count", "gather", "joined", "local_device", "rank", "share", "share_buffers"]

MEETING = "DYNABOUND_MEETING"
"""The environment variable of a file by which the processes of one machine find each other."""


def count() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 is the one that writes."""
    return dist.get_rank() if count() > 1 else 0


@contextmanager
def joined(device: str, group: bool = False) -> Iterator[None]:
    """Join the others if ``torchrun`` has started several processes; a process alone only if it needs a ``group``."""
    several = _several()
    if not (several or group):
        yield
        return
    where = local_device(device)
    if device == "cuda" and several:
        torch.cuda.set_device(where)  # where nccl puts what it sends of Python's objects
    try:
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo", **_meeting(several))
    except (RuntimeError, ValueError) as error:
        raise LabError(f"the processes of this run cannot find each other ({_first_line(error)})") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _meeting(several: bool) -> dict[str, Any]:
    """How the processes find each other: as ``torchrun`` says, unless there is a file for it."""
    if not several:
        return {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    if MEETING not in os.environ:
        return {}
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ[MEETING], count)  # type: ignore[attr-defined]
    return {"store": store, "rank": number, "world_size": count}


def local_device(device: str) -> torch.device:
    """The device, if it can be used; under ``torchrun`` each process of a machine takes a GPU of its own."""
    name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and _several() else device
    try:
        where = torch.device(name)
        torch.zeros(1, device=where)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"device={device!r}: cannot be used here ({_first_line(error)}); try cpu") from None
    return where


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
