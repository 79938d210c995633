"""A checkpoint of a sharded model: a folder to which every process writes its own part.

It holds ``state.pt`` with everything that is not sharded and an index of the shards, and the files that
torch.distributed.checkpoint writes for the shards. torch itself would store the index as a pickle, and unpickling can
run any code; here it consists of primitives, with the checksum of every file.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed import tensor as dtensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load as read_shards
from torch.distributed.checkpoint.state_dict_saver import save as write_shards
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.futures import Future

from dynabound._files import open_regular
from dynabound.lab.checkpoints import file
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.training import distributed

__all__ = ["STATE", "load", "read_file", "save"]

STATE = "state.pt"
"""The file of what is not sharded."""


class _Place(NamedTuple):
    """Where a shard is, with the field names that torch's reader expects, and the checksum of the file."""

    relative_path: str
    offset: int
    length: int
    digest: str
    transform_descriptors: None = None


def save(folder: Path, state: dict[str, Any], commit: Callable[[dict[str, Any]], None]) -> None:
    """Write the shards among the tensors of ``state``, a dict of dicts, into ``folder``; all processes call this.

    When all are done, one of them calls ``commit`` with the rest of the state and the index. If one of them fails, all
    raise: the same LabError, or an OSError for any other exception.
    """
    shards: dict[tuple[Any, ...], DTensor] = {}
    rest = _take_out(state, (), shards)
    entries: list[dict[str, Any]] = [
        {"path": path, "dtype": tensor.dtype, "size": tuple(tensor.shape), "dim": _dimension(path, tensor)}
        for path, tensor in shards.items()
    ]

    def finish(metadata: Metadata) -> None:
        commit({**rest, "shards": [{**entry, "chunks": _chunks(metadata, _name(entry["path"]))} for entry in entries]})

    try:
        write_shards({_name(path): tensor for path, tensor in shards.items()}, storage_writer=_Writer(folder, finish))
    except CheckpointException as error:
        failure = _first(error)
        raise failure if isinstance(failure, LabError) else OSError(0, str(failure)) from None


def load(folder: Path, mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """The state that :func:`save` wrote with any number of processes; DamagedError if a bit has changed.

    With a mesh, all its processes call this and each reads its part; without, one process reads everything to the CPU.
    """
    state = read_file(folder / STATE, mesh, lambda state: _verify(folder, state, mesh))
    try:
        return _insert_shards(folder, state, mesh)
    except CheckpointException as error:
        raise DamagedError(str(_first(error))) from None
    except (LookupError, TypeError, ValueError, RuntimeError) as error:  # the same in all processes
        raise DamagedError(f"its index is damaged ({error})") from None


def _insert_shards(folder: Path, state: dict[str, Any], mesh: DeviceMesh | None) -> dict[str, Any]:
    index = state.pop("shards")
    tensors = {_name(entry["path"]): _empty(entry, mesh) for entry in index}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is intended
        read_shards(tensors, storage_reader=_Reader(folder, index), no_dist=mesh is None)
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
    digest, fault = "", None
    try:
        state, digest = file.read(path)
        verify(state)
    except (OSError, DamagedError) as error:
        fault = str(error)
    answers = [(digest, fault)] if mesh is None else distributed.gather((digest, fault))
    for _, fault in answers:
        if fault:
            raise DamagedError(fault)
    if len(set(answers)) > 1:
        raise LabError(f"{path}: differs between processes; --out must be a folder that they share")
    return state


class _Writer(FileSystemWriter):
    """Adds checksums to torch's index of the shards, and passes it to ``commit`` instead of pickling it."""

    def __init__(self, folder: Path, commit: Callable[[Metadata], None]) -> None:
        super().__init__(folder)
        self._commit = commit

    def write_data(self, plan: Any, planner: Any) -> Future[Any]:
        results = super().write_data(plan, planner).value()
        digests: dict[str, str] = {}
        for number, result in enumerate(results):
            where = result.storage_data
            if where.relative_path not in digests:
                digests[where.relative_path] = _digest(Path(self.path) / where.relative_path)
            place = _Place(where.relative_path, where.offset, where.length, digests[where.relative_path])
            results[number] = replace(result, storage_data=place)
        done: Future[Any] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        metadata.storage_data = {written.index: written.storage_data for part in results for written in part}
        for name in {place.relative_path for place in metadata.storage_data.values()}:
            if not (Path(self.path) / name).is_file():
                raise LabError(
                    f"{self.path}: process 0 does not see {name}, which another one wrote; "
                    "--out must be a folder that all processes share"
                )
        self._commit(metadata)


class _Reader(FileSystemReader):
    """Reads shards by the given index instead of a pickled one."""

    def __init__(self, folder: Path, index: list[dict[str, Any]]) -> None:
        super().__init__(folder)
        self._index = index

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        places = {}
        for entry in self._index:
            name = _name(entry["path"])
            boxes = [ChunkStorageMetadata(torch.Size(start), torch.Size(size)) for start, size, _ in entry["chunks"]]
            properties = TensorProperties(dtype=entry["dtype"])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(entry["size"]), boxes)
            places.update({MetadataIndex(name, start): _Place(*place) for start, _, place in entry["chunks"]})
        return Metadata(tensors, storage_data=places)


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


def _dimension(path: tuple[Any, ...], tensor: DTensor) -> int | None:
    """The dimension along which a tensor is sharded; None if every process has all of it."""
    (placement,) = tensor.placements
    if isinstance(placement, dtensor.Shard):
        return placement.dim
    if isinstance(placement, dtensor.Replicate):
        return None
    raise LabError(f"{_name(path)} is a DTensor of {placement}: only Shard and Replicate can be saved")


def _chunks(metadata: Metadata, name: str) -> list[tuple[Any, ...]]:
    """Where each part of a tensor begins, how large it is, and where it is kept."""
    boxes = cast(TensorStorageMetadata, metadata.state_dict_metadata[name]).chunks
    places = (metadata.storage_data[MetadataIndex(name, box.offsets)] for box in boxes)
    return [(tuple(box.offsets), tuple(box.sizes), tuple(place)) for box, place in zip(boxes, places, strict=True)]


def _first(error: CheckpointException) -> BaseException:
    """One process's exception out of torch's collection of tracebacks."""
    return next(iter(error.failures.values()))[0]


def _verify(folder: Path, state: dict[str, Any], mesh: DeviceMesh | None) -> None:
    """Check the files of the shards; with a mesh, this process checks its share of them."""
    try:
        digests = {place[0]: place[3] for entry in state["shards"] for _, _, place in entry["chunks"]}
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"its index is damaged ({error})") from None
    first, step = (0, 1) if mesh is None else (distributed.rank(), distributed.world_size())
    for name in sorted(digests)[first::step]:
        if Path(name).name != name or _digest(folder / name) != digests[name]:
            raise DamagedError(f"the checksum of {name} does not match")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(open_regular(path), "rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _empty(entry: dict[str, Any], mesh: DeviceMesh | None) -> Tensor:
    if mesh is None:
        return torch.empty(entry["size"], dtype=entry["dtype"])
    placement = dtensor.Replicate() if entry["dim"] is None else dtensor.Shard(entry["dim"])
    return dtensor.empty(entry["size"], dtype=entry["dtype"], device_mesh=mesh, placements=[placement])
