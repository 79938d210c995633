"""Run folders: one per spec, named by its hash. Files are written completely or not at all, by one process at a time.

A folder holds ``spec.json``, ``status.json``, ``environment.json``, ``metrics.jsonl``, the last two checkpoints
(``checkpoint-*.pt`` with ``checkpoint-*.pt.sha256``, or folders ``checkpoint-*.dcp`` of sharded runs) and ``lock``. The
newest checkpoint is authoritative for a run that has not ended: it contains the metrics too, and everything that was
written after it is written again. The status has the checksum of the metrics, unless the run is going on, and its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shlex
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._files import write_whole
from dynabound.lab.checkpoints import lock
from dynabound.lab.checkpoints.rotation import Checkpoints, delete
from dynabound.lab.errors import DamagedError, StoreError, first_line
from dynabound.lab.spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)
ENDED = ("finished", "diverged")
"""The states of runs that have nothing left to do."""


class Store:
    """A folder of runs."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def run(self, spec: RunSpec) -> Run:
        """The run of ``spec``, which need not exist yet."""
        return Run(self.root / spec.name, spec)

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        try:
            folders = [folder for folder in self.root.iterdir() if not folder.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise StoreError(f"{self.root}: cannot be read ({error.strerror}); {_readable(self.root)}") from error
        begun = {folder: time for folder in folders if (time := _begun(folder)) is not None}
        return [Run(folder) for folder in sorted(begun, key=lambda folder: (begun[folder], folder.name))]

    def find(self, name: str) -> Run:
        """The one run whose name begins with ``name``."""
        found = [run for run in self.runs() if run.name.startswith(name)]
        if len(found) != 1 or not name:
            matches = f"{len(found)} runs match: {', '.join(run.name for run in found)}" if found else "no run matches"
            raise StoreError(f"run {name!r} in {self.root}: {matches}; see: dynabound runs {_out(self.root)}")
        return found[0]


def _begun(folder: Path) -> float | None:
    """The time of a run's spec, or of its status if the spec is lost; None if this is not a run."""
    for name in ("spec.json", "status.json"):
        try:
            return (folder / name).stat().st_mtime
        except PermissionError:
            return 0.0
        except OSError:
            continue
    return None


class Run:
    """One run's folder."""

    def __init__(self, folder: Path, spec: RunSpec | None = None) -> None:
        self.folder = folder
        self._spec = spec
        self._checkpoints = Checkpoints(folder)

    @property
    def name(self) -> str:
        """The hash of the run's spec."""
        return self.folder.name

    # Reading: by any process, at any time.

    def spec(self) -> RunSpec:
        """The stored spec; StoreError if it is not the one that the folder is named after."""
        if self._spec is None:
            path = self.folder / "spec.json"
            try:
                self._spec = RunSpec.stored(parse_json(path.read_bytes(), dict), self.name)
            except PermissionError as error:
                raise StoreError(f"{path}: cannot be read ({error.strerror}); {_readable(self.folder)}") from error
            except (OSError, TypeError, ValueError, DamagedError) as error:
                raise StoreError(f"{path}: cannot be read ({first_line(error)}); {self.remedy}") from error
        return self._spec

    def status(self) -> dict[str, Any]:
        """``state``: new, running, stopped, finished, diverged, failed or damaged; ``step``, ``epochs`` or ``error``.

        A run is stopped if it has not ended and no process trains it: it was interrupted, or its process died.
        A run whose status is damaged is trained again from its last checkpoint, which repairs it.
        """
        status = self._stored_status()
        if status["state"] == "running" and not self.locked():
            status["state"] = "stopped"
        elif status["state"] == "damaged" and self.locked():
            return {"state": "running"}
        status.pop("metrics_sha256", None)
        return status

    def _stored_status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        try:
            return verified(parse_json(path.read_bytes(), dict))
        except FileNotFoundError:
            return {"state": "new"}
        except (OSError, DamagedError) as error:
            repair = f"repair it with: dynabound train --resume {self.name} {_out(self.folder.parent)}"
            return {"state": "damaged", "error": f"{path}: {first_line(error)}; {repair}"}

    def metrics(self, repair: bool = False) -> list[dict[str, Any]]:
        """One dict per epoch. If the file is damaged, they come from the checkpoint; ``repair`` writes them back."""
        path, status = self.folder / "metrics.jsonl", self._stored_status()
        expected = status.get("metrics_sha256")
        with contextlib.suppress(OSError, DamagedError):
            contents = path.read_bytes() if expected or path.exists() else b""
            if expected in (None, hashlib.sha256(contents).hexdigest()):
                return [parse_json(line, dict) for line in contents.splitlines()]
        state = self.load_checkpoint()
        if state is None or (status["state"] in ENDED and len(state["metrics"]) != status["epochs"]):
            raise StoreError(f"{path}: is damaged, and no checkpoint has the metrics; {self.remedy}")
        found: list[dict[str, Any]] = state["metrics"]
        log.warning("%s: is damaged; the metrics come from the last checkpoint", path)
        if repair:
            with self.lock():
                self.write_metrics(found)
        return found

    def environment(self) -> list[dict[str, Any]]:
        """The environment of each session of the run; none if the file is damaged."""
        try:
            sessions = parse_json((self.folder / "environment.json").read_bytes(), list)
        except (OSError, DamagedError):
            return []
        return [session for session in sessions if isinstance(session, dict)]

    def load_checkpoint(self, mesh: DeviceMesh | None = None) -> dict[str, Any] | None:
        """See :meth:`Checkpoints.load <dynabound.lab.checkpoints.rotation.Checkpoints.load>`."""
        state = self._checkpoints.load(mesh)
        if state is not None and state["run"] != self.name:
            raise StoreError(
                f"{self.folder}: its checkpoint belongs to run {state['run']}, not to {self.name}; {self.remedy}"
            )
        return state

    def locked(self) -> bool:
        """Whether a living process trains this run."""
        return lock.is_held(self.folder / "lock")

    # Writing: by the one process that holds the lock.

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run's lock; the operating system releases it when the process ends for any reason."""
        with lock.hold(self.folder / "lock", self.name):
            for leftover in self.folder.glob(".*.tmp"):  # of a process that was killed while writing
                delete(leftover)
            yield

    def begin(self, spec: RunSpec, *sessions: Mapping[str, Any], resume: bool = True) -> None:
        """Write what is known before training: spec, status, and the new sessions after the earlier ones."""
        earlier = self.environment() if resume else []
        self._write("spec.json", (spec.to_json() + "\n").encode())
        self._write("environment.json", _json([*earlier, *sessions]))
        self.write_status("running")

    def write_status(self, state: str, **details: Any) -> None:
        """Write the run's state."""
        self._write("status.json", _json(with_checksum({"state": state, **details})))

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Replace the metrics; not synced to disk, since the checkpoint has them too."""
        self._write("metrics.jsonl", _lines(metrics), durable=False)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint and delete all but the one before it."""
        with self._writing(self.folder):
            try:
                self._checkpoints.save({"run": self.name, **state})
            except DamagedError as error:
                raise StoreError(f"run {self.name}: its state holds more than tensors and numbers ({error})") from error

    def save_shards(self, state: dict[str, Any]) -> None:
        """As :meth:`save_checkpoint`, for a state with DTensors: every process calls this and writes its part."""
        with self._writing(self.folder):
            self._checkpoints.save_shards({"run": self.name, **state})

    def end(self, state: str, metrics: Sequence[Mapping[str, Any]], **details: Any) -> None:
        """Write the last status of a session, with the checksum of the ``metrics`` that were written before.

        Of a run that has ended, one checkpoint is kept.
        """
        if state in ENDED:
            details = {"epochs": len(metrics), **details}
        self.write_status(state, **details, metrics_sha256=hashlib.sha256(_lines(metrics)).hexdigest())
        if state in ENDED:
            self._checkpoints.prune(1)

    def remove(self) -> None:
        """Delete the run; not while it is being trained."""
        with self.lock():
            try:
                self.folder.rename(self.folder.with_name(f".removed-{self.name}-{uuid.uuid4().hex}"))
            except OSError as error:
                raise StoreError(f"{self.folder}: cannot be removed ({error.strerror})") from error
        for removed in self.folder.parent.glob(".removed-*"):  # also those of a process that was killed here
            shutil.rmtree(removed, ignore_errors=True)

    @property
    def remedy(self) -> str:
        """For an error message: what to do if the run cannot be used."""
        return f"remove the run and train it again: dynabound runs remove {self.name} {_out(self.folder.parent)}"

    def _write(self, name: str, contents: bytes, durable: bool = True) -> None:
        with self._writing(self.folder / name):
            write_whole(self.folder / name, contents, durable)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            known = (self.folder / "spec.json").is_file()
            resume = f": dynabound train --resume {self.name} {_out(self.folder.parent)}"
            raise StoreError(
                f"{path}: cannot be written ({error.strerror or error}); what was there is kept. Make room, or the "
                f"folder writable, then{resume if known else ' run the same command again'}"
            ) from error


def _readable(path: Path) -> str:
    return f"make it readable: chmod -R u+rwX {shlex.quote(str(path))}"


def _out(root: Path) -> str:
    return f"--out {shlex.quote(str(root))}"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _lines(metrics: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in metrics).encode()


def with_checksum(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` and, as ``sha256``, their checksum."""
    return {**fields, "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def verified(entry: dict[str, Any]) -> dict[str, Any]:
    """The fields of :func:`with_checksum`; DamagedError if they have changed."""
    fields = {key: value for key, value in entry.items() if key != "sha256"}
    if entry != with_checksum(fields):
        raise DamagedError("its checksum does not match")
    return fields


def parse_json(contents: bytes, kind: type) -> Any:
    """JSON of the expected type; DamagedError for anything else."""
    try:
        value = json.loads(contents)
    except ValueError as error:
        raise DamagedError(f"is not JSON ({str(error)[:80]})") from error
    if not isinstance(value, kind):
        raise DamagedError(f"holds a {type(value).__name__}, not a {kind.__name__}")
    return value
