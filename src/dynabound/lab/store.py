"""Run folders: one per spec, named by its hash; every file in them is whole, and one process at a time writes.

A folder holds ``spec.json``, ``status.json``, ``environment.json``, ``metrics.jsonl``, the last two checkpoints
(``checkpoint-*.pt``, or folders ``checkpoint-*.dcp`` of sharded runs) and ``lock``. The newest checkpoint is the truth
about a run that has not ended: it contains the metrics too, and whatever was written after it is written again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dynabound._files import sync_folder, write_whole
from dynabound.lab import distributed
from dynabound.lab.checkpoints import file as checkpoint
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ENDED", "LockedError", "Run", "Store", "StoreError"]

log = logging.getLogger(__name__)
ENDED = ("finished", "diverged")
"""The states of runs that have nothing left to do."""
_KEPT = 2


class StoreError(LabError):
    """A run folder cannot be read, written or locked."""


class LockedError(StoreError):
    """Another process trains the run."""


class Store:
    """A folder of runs."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def run(self, spec: RunSpec) -> Run:
        """The run of ``spec``, which need not exist yet."""
        return Run(self.root / spec.name)

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        if not self.root.is_dir():
            return []
        folders = [folder for folder in self.root.iterdir() if (folder / "spec.json").is_file()]
        return [Run(folder) for folder in sorted(folders, key=lambda f: ((f / "spec.json").stat().st_mtime, f.name))]

    def find(self, name: str) -> Run:
        """The one run whose name begins with ``name``."""
        found = [run for run in self.runs() if run.name.startswith(name)]
        if len(found) != 1 or not name:
            among = f"{len(found)} runs begin so: {', '.join(run.name for run in found)}" if found else "there is none"
            raise StoreError(f"run {name!r} in {self.root}: {among}; see: dynabound runs --out {self.root}")
        return found[0]


class Run:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified = False

    @property
    def name(self) -> str:
        """The hash of the run's spec."""
        return self.folder.name

    # Reading: by anyone, at any time.

    def spec(self) -> RunSpec:
        """The stored spec; StoreError if it is not the one that the folder is named after."""
        path = self.folder / "spec.json"
        try:
            spec = RunSpec.from_json(path.read_text())
        except (OSError, UnicodeDecodeError, LabError) as error:
            raise StoreError(f"{path}: cannot be read ({error}); {self._remedy}") from error
        if spec.name != self.name:
            raise StoreError(f"{path}: is the spec of run {spec.name}, not of {self.name}; {self._remedy}")
        return spec

    def status(self) -> dict[str, Any]:
        """``state``: new, running, stopped, finished, diverged or failed; with ``step``, ``epochs`` or ``error``.

        A run is stopped if it has not ended and nobody is training it: it was interrupted, or its process died.
        """
        try:
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {"state": "new"}
        except (OSError, ValueError):
            status = {"state": "running"}  # training it again from the last checkpoint puts it right
        if status.get("state") == "running" and not self.locked():
            status["state"] = "stopped"
        return status

    def metrics(self) -> list[dict[str, Any]]:
        """One dict per epoch. Where the file was damaged, they come from the checkpoint."""
        path = self.folder / "metrics.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
        except FileNotFoundError:
            lines = []
        except (OSError, ValueError):
            lines = None
        expected = self.status().get("epochs")
        if lines is not None and (expected is None or len(lines) == expected):
            return lines
        log.warning("%s: is damaged; the metrics come from the last checkpoint", path)
        state = self.load_checkpoint()
        if state is None or (expected is not None and len(state["metrics"]) != expected):
            raise StoreError(f"{path}: is damaged, and no checkpoint has the metrics; {self._remedy}")
        metrics: list[dict[str, Any]] = state["metrics"]
        return metrics

    def environment(self) -> list[dict[str, Any]]:
        """What each session of the run ran on."""
        try:
            sessions: list[dict[str, Any]] = json.loads((self.folder / "environment.json").read_text())
        except (OSError, ValueError):
            return []
        return sessions

    def load_checkpoint(self, mesh: DeviceMesh | None = None) -> dict[str, Any] | None:
        """The newest checkpoint that is whole, as CPU tensors and primitives; None if there is none.

        With a mesh all its processes call this and get the same one, and what was saved in shards comes as DTensors.
        """
        paths = self._checkpoints() if mesh is None else self._common_checkpoints()
        for path in reversed(paths):
            try:
                if path.suffix == ".pt" and mesh is None:
                    return checkpoint.decode(path.read_bytes())
                from dynabound.lab.checkpoints import sharded  # takes seconds to import

                return sharded.read(path, mesh) if path.suffix == ".pt" else sharded.load(path, mesh)
            except (OSError, checkpoint.DamagedError) as error:
                if distributed.rank() == 0:
                    log.warning("%s: is damaged (%s); going back to the one before", path, error)
        return None

    def locked(self) -> bool:
        """Whether a living process trains this run."""
        try:
            with open(self.folder / "lock", "r+b") as file:
                return not _try_lock(file)
        except OSError:
            return False

    # Writing: by the one process that holds the lock.

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run's lock; the operating system releases it when the process dies, however it dies."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / "lock", "a+b")  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written ({error.strerror}); give another --out") from error
        with file:
            try:
                free = _lock_within_a_second(file)
            except OSError as error:
                raise StoreError(
                    f"{self.folder}: this file system has no file locks ({error.strerror}); "
                    "give another --out, or mount it with flock"
                ) from error
            if not free:
                file.seek(0)
                owner = file.read().decode(errors="replace") or "another process"
                raise LockedError(f"run {self.name} is being trained by {owner}; wait for it, or stop that process")
            file.truncate(0)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"pid {os.getpid()} on {socket.gethostname()} since {started}".encode())
            file.flush()
            for leftover in self.folder.glob(".*.tmp"):  # of a process that was killed while it wrote
                _delete(leftover)
            yield

    def begin(self, spec: RunSpec, session: dict[str, Any]) -> None:
        """Write what is known before training: spec, status and environment."""
        self._write("spec.json", (spec.to_json() + "\n").encode())
        self._write("environment.json", _json([*self.environment(), session]))
        self.write_status("running")

    def write_status(self, state: str, **details: Any) -> None:
        """Say how the run stands."""
        self._write("status.json", _json({"state": state, **details}))

    def write_metrics(self, metrics: list[dict[str, Any]]) -> None:
        """Replace the metrics; the checkpoint has them too, so a power cut may have these."""
        lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in metrics)
        self._write("metrics.jsonl", lines.encode(), durable=False)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint and let go of all but the one before it."""
        self._write(f"checkpoint-{state['step']:09d}.pt", self._encode(state))
        self._prune(_KEPT)

    def save_shards(self, state: dict[str, Any]) -> None:
        """The same for a state with DTensors, of which each process writes its part: all of them call this."""
        from dynabound.lab.checkpoints import sharded

        path = self.folder / f"checkpoint-{state['step']:09d}.dcp"
        temporary = path.with_name(f".{path.name}.tmp")

        def commit(rest: dict[str, Any]) -> None:
            write_whole(temporary / sharded.STATE, self._encode(rest))
            if path.exists():  # no folder can take the place of another: this name makes it the one before
                before = path.with_suffix(".before.dcp")
                _delete(before)
                path.rename(before)
            temporary.rename(path)
            _delete(path.with_suffix(".pt"))  # of the same step, but older; it would count as the newer one
            sync_folder(self.folder)
            self._prune(_KEPT)

        try:
            sharded.save(temporary, state, commit)
        except OSError as error:
            raise self._unwritable(path, error) from error
        finally:
            if distributed.rank() == 0:
                _delete(temporary)

    def _encode(self, state: dict[str, Any]) -> bytes:
        contents = checkpoint.encode(state)
        if not self._verified:  # a foreign optimizer may have a state that cannot be read back: say so now
            try:
                checkpoint.decode(contents)
            except checkpoint.DamagedError as error:
                raise StoreError(f"run {self.name}: its state holds more than tensors and numbers ({error})") from error
            self._verified = True
        return contents

    def end(self, state: str, metrics: list[dict[str, Any]], **details: Any) -> None:
        """Write the last word: metrics, status, and no more than one checkpoint."""
        self.write_metrics(metrics)
        self.write_status(state, epochs=len(metrics), **details)
        self._prune(1)

    def remove(self) -> None:
        """Delete the run; not while it is being trained."""
        with self.lock():
            doomed = self.folder.with_name(f".removed-{self.name}-{os.getpid()}")
            try:
                self.folder.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                raise StoreError(f"{self.folder}: cannot be removed ({error.strerror})") from error

    @property
    def _remedy(self) -> str:
        return f"remove the run and train it again: dynabound runs remove {self.name} --out {self.folder.parent}"

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("checkpoint-*") if path.suffix in (".pt", ".dcp"))

    def _common_checkpoints(self) -> list[Path]:
        """Those that process 0 sees; an error for all if another one does not."""
        paths: list[Path] = distributed.share(self._checkpoints())
        for number, unseen in enumerate(distributed.gather([path.name for path in paths if not path.exists()])):
            if unseen:
                raise StoreError(
                    f"{self.folder}: process {number} does not see {unseen[0]}, which process 0 sees; "
                    "--out must be a folder that all processes share"
                )
        return paths

    def _prune(self, kept: int) -> None:
        for path in self._checkpoints()[:-kept]:
            _delete(path)

    def _write(self, name: str, contents: bytes, durable: bool = True) -> None:
        path = self.folder / name
        try:
            write_whole(path, contents, durable)
        except OSError as error:
            raise self._unwritable(path, error) from error

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(
            f"{path}: cannot be written ({error.strerror}); what was there is kept. Make room, or the folder "
            f"writable, then: dynabound train --resume {self.name} --out {self.folder.parent}"
        )


def _delete(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _lock_within_a_second(file: IO[bytes]) -> bool:
    """Ask more than once: someone who looks at the run's state has the lock for an instant."""
    for _ in range(20):
        if _try_lock(file):
            return True
        time.sleep(0.05)
    return False


def _try_lock(file: IO[bytes]) -> bool:
    """Take the lock of an open file, which lasts until it is closed or its process dies; False if another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 30)  # Windows locks bytes against reading too: take one that nobody reads
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise  # there are no locks here: to wait for one would be to wait for ever
        return False
    return True
