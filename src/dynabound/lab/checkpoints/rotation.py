"""The checkpoints of one run: save a new one and delete the oldest, load the newest intact one.

A checkpoint is a file ``checkpoint-STEP.pt`` or, for a sharded run, a folder ``checkpoint-STEP.dcp``.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._files import sync_folder
from dynabound.lab.checkpoints import file
from dynabound.lab.errors import DamagedError, StoreError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)
_KEPT = 2


class Checkpoints:
    """The checkpoints in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked = False

    def paths(self) -> list[Path]:
        """All of them, the newest last."""
        return sorted(path for path in self.folder.glob("checkpoint-*") if path.suffix in (".pt", ".dcp"))

    def load(self, mesh: DeviceMesh | None = None) -> dict[str, Any] | None:
        """The newest intact checkpoint, as CPU tensors and primitives; None if there is none.

        With a mesh, all its processes call this and get the same checkpoint; sharded tensors are DTensors.
        """
        for path in reversed(self.paths() if mesh is None else self._common_paths()):
            try:
                return _read(path, mesh)
            except (OSError, DamagedError) as error:
                if mesh is None or mesh.get_rank() == 0:
                    log.warning("%s: is damaged (%s); using the one before", path, error)
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint and delete all but the one before it; the first one must be readable."""
        file.write(self.folder / f"checkpoint-{state['step']:09d}.pt", state, check=not self._checked)
        self._checked = True
        self.prune(_KEPT)

    def save_shards(self, state: dict[str, Any]) -> None:
        """As :meth:`save`, for a state with DTensors: every process calls this and writes its part."""
        from dynabound.lab.checkpoints import sharded
        from dynabound.lab.training import distributed

        path = self.folder / f"checkpoint-{state['step']:09d}.dcp"
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            sharded.save(temporary, state)
            if distributed.rank() == 0:
                self._replace(temporary, path)
        finally:
            if distributed.rank() == 0:
                delete(temporary)

    def _replace(self, temporary: Path, path: Path) -> None:
        if path.exists():  # a folder cannot replace another: this name sorts before the new one
            before = path.with_suffix(".before.dcp")
            delete(before)
            path.rename(before)
        temporary.rename(path)
        self._delete(path.with_suffix(".pt"))  # of the same step, but older; it would sort as the newer one
        sync_folder(self.folder)
        self.prune(_KEPT)

    def prune(self, kept: int) -> None:
        """Delete all but the ``kept`` newest, and checksums whose checkpoint is gone."""
        for path in self.paths()[:-kept]:
            self._delete(path)
        for checksum in self.folder.glob("checkpoint-*.pt.sha256"):
            if not checksum.with_suffix("").exists():
                delete(checksum)

    def _delete(self, path: Path) -> None:
        delete(path)
        delete(file.checksum_path(path))

    def _common_paths(self) -> list[Path]:
        """The paths that process 0 sees; StoreError in all processes if another process does not see them."""
        from dynabound.lab.training import distributed

        paths: list[Path] = distributed.broadcast(self.paths())
        for number, unseen in enumerate(distributed.gather([path.name for path in paths if not path.exists()])):
            if unseen:
                raise StoreError(
                    f"{self.folder}: process {number} does not see {unseen[0]}, which process 0 sees; "
                    "--out must be a folder that all processes share"
                )
        return paths


def _read(path: Path, mesh: DeviceMesh | None) -> dict[str, Any]:
    if path.suffix == ".pt" and mesh is None:
        return file.read(path)
    from dynabound.lab.checkpoints import sharded  # takes seconds to import

    return sharded.read_file(path, mesh) if path.suffix == ".pt" else sharded.load(path, mesh)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
