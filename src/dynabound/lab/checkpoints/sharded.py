"""A checkpoint of a sharded model: a folder to which every process writes its own part.

torch.distributed.checkpoint writes and reads the shards. ``state.pt`` has everything that is not sharded, a list of
what is, and the checksum of every file.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import tensor as dtensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from dynabound._files import digest
from dynabound.lab.checkpoints import file
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.training import distributed

STATE = "state.pt"
"""The file of what is not sharded."""
_INDEX = ".metadata"  # torch's own list of the shards, a pickle
_CLASSES = {
    *(("torch.distributed.checkpoint.metadata", name) for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "_MEM_FORMAT_ENCODING", "StorageMeta",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *((module, f"{system}Path") for module in ("pathlib", "pathlib._local") for system in ("Posix", "Windows")),
}  # fmt: skip
"""What such a list is made of."""


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write ``state``, a dict of dicts with DTensors, into ``folder``; all processes call this.

    If one of them fails, all raise: LabError, or an OSError for any other exception.
    """
    shards: dict[tuple[Any, ...], DTensor] = {}
    rest = _take_out(state, (), shards)
    entries = [
        {"path": path, "dtype": tensor.dtype, "size": tuple(tensor.shape), "dim": _dimension(tensor)}
        for path, tensor in shards.items()
    ]
    try:
        save_shards({_name(path): tensor for path, tensor in shards.items()}, checkpoint_id=folder)
    except CheckpointException as error:
        raise OSError(0, str(_first(error))) from None
    digests = _digests(folder)
    fault = None
    if distributed.rank() == 0:
        try:
            file.write(folder / STATE, {**rest, "shards": entries, "files": digests})
        except OSError as error:
            fault = str(error)
    fault = distributed.broadcast(fault)
    if fault:
        raise OSError(0, fault)


def load(folder: Path, mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """The state that :func:`save` wrote with any number of processes; DamagedError if a bit has changed.

    With a mesh, all its processes call this and each reads its part; without, one process reads everything to the CPU.
    """
    state = read_file(folder / STATE, mesh, lambda state: _verify(folder, state["files"], mesh))
    index = state.pop("shards")
    tensors = {_name(entry["path"]): _empty(entry, mesh) for entry in index}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is intended
            load_shards(tensors, checkpoint_id=folder, no_dist=mesh is None)
    except CheckpointException as error:
        raise DamagedError(str(_first(error))) from None
    for entry in index:
        *parents, last = entry["path"]
        table = state
        for key in parents:
            table = table[key]
        table[last] = tensors[_name(entry["path"])]
    return state


def read_file(
    path: Path, mesh: DeviceMesh | None, verify: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """The state in a file, read by each process of the mesh; if one of them fails, all raise."""
    state: dict[str, Any] = {}
    fault = None
    try:
        state = file.read(path)
        verify(state)
    except (OSError, DamagedError) as error:
        fault = str(error)
    for each in [fault] if mesh is None else distributed.gather(fault):
        if each:
            raise DamagedError(each)
    return state


def _take_out(tree: dict[Any, Any], path: tuple[Any, ...], shards: dict[tuple[Any, ...], DTensor]) -> dict[Any, Any]:
    rest = {}
    for key, value in tree.items():
        if isinstance(value, DTensor):
            shards[(*path, key)] = value
        else:
            rest[key] = _take_out(value, (*path, key), shards) if isinstance(value, dict) else value
    return rest


def _name(path: Iterable[Any]) -> str:
    return "/".join(map(str, path))


def _dimension(tensor: DTensor) -> int | None:
    """The dimension along which a tensor is sharded; None if every process has all of it."""
    (placement,) = tensor.placements
    return placement.dim if isinstance(placement, dtensor.Shard) else None


def _empty(entry: dict[str, Any], mesh: DeviceMesh | None) -> Tensor:
    if mesh is None:
        return torch.empty(entry["size"], dtype=entry["dtype"])
    placement = dtensor.Replicate() if entry["dim"] is None else dtensor.Shard(entry["dim"])
    return dtensor.empty(entry["size"], dtype=entry["dtype"], device_mesh=mesh, placements=[placement])


def _first(error: CheckpointException) -> BaseException:
    """One process's exception out of torch's collection of tracebacks."""
    return next(iter(error.failures.values()))[0]


def _digests(folder: Path) -> dict[str, str]:
    """The checksum of every file in ``folder``; LabError if process 0 does not see what another one has written."""
    seen = distributed.gather(sorted(path.name for path in folder.iterdir()))
    for names in seen:
        for name in set(names) - set(seen[0]):
            raise LabError(
                f"{folder}: process 0 does not see {name}, which another one wrote; "
                "--out must be a folder that all processes share"
            )
    mine = {name: digest(folder / name) for name in seen[0][distributed.rank() :: distributed.world_size()]}
    return {name: found for part in distributed.gather(mine) for name, found in part.items()}


def _verify(folder: Path, digests: dict[str, str], mesh: DeviceMesh | None) -> None:
    """Check the files of the shards; with a mesh, this process checks its share of them."""
    first, step = (0, 1) if mesh is None else (distributed.rank(), distributed.world_size())
    for name in sorted(digests)[first::step]:
        if digest(folder / name) != digests[name]:
            raise DamagedError(f"the checksum of {name} does not match")
    with (folder / _INDEX).open("rb") as index:
        try:
            _Index(index).load()
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamagedError(f"its index cannot be read ({error})") from None


class _Index(pickle.Unpickler):
    """Reads torch's list of shards, before torch does, to make sure that reading it runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a list of shards")
