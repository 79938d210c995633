"""Several processes that train one run: rank, world size and collectives, which do nothing in a single process."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynabound.lab.errors import LabError, first_line

RENDEZVOUS_FILE = "DYNABOUND_RENDEZVOUS_FILE"
"""The environment variable with the file through which the processes of one machine find each other."""


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 is the one that writes."""
    return dist.get_rank() if world_size() > 1 else 0


@contextmanager
def joined(device: str, group: bool = False) -> Iterator[None]:
    """Join the process group if ``torchrun`` has started several processes, or if ``group`` asks for one."""
    several = _several()
    if not (several or group):
        yield
        return
    where = local_device(device)
    if device == "cuda" and several:
        torch.cuda.set_device(where)  # nccl sends pickled objects through the current device
    try:
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo", **_rendezvous(several))
    except (RuntimeError, ValueError) as error:
        raise LabError(
            f"the processes of this run cannot find each other ({first_line(error)}); start them with torchrun, or "
            "unset WORLD_SIZE"
        ) from error
    try:
        yield
    except BaseException as error:
        # Its frames may hold a DistributedDataParallel, which can block forever if it is freed after its group.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()  # a model in a cycle may hold the group until the process exits, where gloo's threads abort it
        dist.destroy_process_group()


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or "1") > 1


def _rendezvous(several: bool) -> dict[str, Any]:
    """How the processes find each other: by RENDEZVOUS_FILE if it is set, otherwise as ``torchrun`` arranges it."""
    if not several:
        return {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    if RENDEZVOUS_FILE not in os.environ:
        return {}
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ[RENDEZVOUS_FILE], size)  # type: ignore[attr-defined]
    return {"store": store, "rank": number, "world_size": size}


def local_device(device: str) -> torch.device:
    """The device; LabError if it cannot be used. Under ``torchrun`` each process of a machine uses a GPU of its own."""
    name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and _several() else device
    try:
        where = torch.device(name)
        torch.zeros(1, device=where).item()  # a device without memory (meta) cannot compute
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise LabError(f"device={device!r}: cannot be used here ({first_line(error)}); try cpu") from None
    return where


def broadcast(value: Any) -> Any:
    """The value of process 0, in all processes."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def gather(value: Any) -> list[Any]:
    """The values of all processes by rank, in all processes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def any_rank(device: torch.device, *flags: bool) -> list[bool]:
    """For each flag, whether it is set in any process."""
    if world_size() == 1:
        return list(flags)
    return [value > 0 for value in all_reduce_sum(torch.tensor(flags, device=device).int()).tolist()]


def broadcast_buffers(model: nn.Module) -> None:
    """Give every process the running statistics of process 0."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
