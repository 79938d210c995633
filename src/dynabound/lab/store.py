"""Run folders: one per spec, named by its hash. Files are written completely or not at all, by one process at a time.

A folder holds ``spec.json``, ``status.json``, ``environment.json``, ``metrics.jsonl``, the last two checkpoints
(``checkpoint-*.pt`` with ``checkpoint-*.pt.sha256``, or folders ``checkpoint-*.dcp`` of sharded runs) and ``lock``. The
newest checkpoint is authoritative for a run that has not ended: it contains the metrics too, and everything that was
written after it is written again. Status, environment and each line of metrics contain their own checksums; status and
checkpoints name their run, and the checksums of environment and metrics include its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._files import read_regular, write_whole
from dynabound.lab.checkpoints import file, lock
from dynabound.lab.checkpoints.contents import check_metrics, check_result
from dynabound.lab.checkpoints.rotation import Checkpoints, delete
from dynabound.lab.errors import DamagedError, LabError, LockedError, StoreError
from dynabound.lab.spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ENDED", "LockedError", "Run", "Store", "StoreError", "parse_json", "signed", "verified"]

log = logging.getLogger(__name__)
ENDED = ("finished", "diverged")
"""The states of runs that have nothing left to do."""
_STATES = ("new", "running", "stopped", "failed", *ENDED)
# Version 0.1 wrote no checksums. An entry without one may only have the keys of that version: otherwise damage to the
# key "sha256" itself would go unnoticed.
_OLD_STATUS = frozenset({"state", "step", "epochs", "error"})
_OLD_SESSION = frozenset({
    "dynabound", "torch", "python", "platform", "device", "seed", "threads", "ranks", "fsdp", "data", "commit",
    "started", "shared",
})  # fmt: skip
_OLD_METRICS = frozenset({"epoch", "step", "lr", "lower", "upper", "rates", "seconds"}).union(
    f"{split}_{what}" for split in ("train", "valid", "test") for what in ("loss", "accuracy", "perplexity")
)


class Store:
    """A folder of runs."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def run(self, spec: RunSpec) -> Run:
        """The run of ``spec``, which need not exist yet."""
        folders = [self.root / name for name in spec.names]
        old = (folder for folder in folders[1:] if (folder / "spec.json").is_file())
        return Run(next(old, folders[0]), spec)

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        ages: dict[Path, float] = {}
        refused = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for folder in self.root.iterdir():
                # A folder may be removed at any moment, and one that cannot be read must not hide the others.
                try:
                    if not folder.name.startswith("."):
                        ages[folder] = _age(folder)
                except PermissionError as error:
                    refused = error
                except OSError:
                    pass
        if refused and not ages:
            raise StoreError(f"{self.root}: cannot be read ({refused.strerror}); {_readable(self.root)}") from refused
        return [Run(folder) for folder in sorted(ages, key=lambda folder: (ages[folder], folder.name))]

    def find(self, name: str) -> Run:
        """The one run whose name begins with ``name``."""
        found = [run for run in self.runs() if run.name.startswith(name)]
        if len(found) != 1 or not name:
            matches = f"{len(found)} runs match: {', '.join(run.name for run in found)}" if found else "no run matches"
            raise StoreError(f"run {name!r} in {self.root}: {matches}; see: dynabound runs {_out(self.root)}")
        return found[0]


def _age(folder: Path) -> float:
    """The time of a run's spec, or of its status if the spec is lost; FileNotFoundError if this is not a run."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return (folder / "spec.json").lstat().st_mtime
        return (folder / "status.json").lstat().st_mtime
    except PermissionError:
        return folder.stat().st_mtime


class Run:
    """One run's folder."""

    def __init__(self, folder: Path, spec: RunSpec | None = None) -> None:
        self.folder = folder
        self._spec = spec
        self._checkpoints = Checkpoints(folder)
        self._verified = False

    @property
    def name(self) -> str:
        """The hash of the run's spec."""
        return self.folder.name

    # Reading: by any process, at any time.

    def spec(self) -> RunSpec:
        """The stored spec; StoreError if it is not the one that the folder is named after."""
        path = self.folder / "spec.json"
        try:
            spec = RunSpec.from_json(read_regular(path).decode())
        except PermissionError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); {_readable(self.folder)}") from error
        except (OSError, UnicodeDecodeError, LabError) as error:
            raise StoreError(f"{path}: cannot be read ({_first_line(error)}); {self.remedy}") from error
        if self.name not in spec.names:
            raise StoreError(f"{path}: is the spec of run {spec.name}, not of {self.name}; {self.remedy}")
        return spec

    def status(self) -> dict[str, Any]:
        """``state``: new, running, stopped, finished, diverged, failed or damaged; ``step``, ``epochs`` or ``error``.

        A run is stopped if it has not ended and no process trains it: it was interrupted, or its process died.
        A run whose status is damaged is trained again from its last checkpoint, which repairs it.
        """
        try:
            status = self._stored_status()
        except FileNotFoundError:
            return {"state": "new"}
        except DamagedError as error:
            if self.locked():
                return {"state": "running"}
            return {"state": "damaged", "error": f"{self.folder / 'status.json'}: {error}; {self._retrain}"}
        if status["state"] == "running" and not self.locked():
            status["state"] = "stopped"
        return {key: value for key, value in status.items() if key not in ("metrics_sha256", "run")}

    def _stored_status(self) -> dict[str, Any]:
        try:
            status = verified(parse_json(read_regular(self.folder / "status.json"), dict), _OLD_STATUS)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DamagedError(f"cannot be read ({error.strerror or error})") from error
        if not isinstance(status.get("state"), str) or status["state"] not in _STATES:
            raise DamagedError("it has no state")
        if not all(isinstance(status.get(key, 0), int) for key in ("epochs", "step")):
            raise DamagedError("its counts are not numbers")
        if not isinstance(status.get("error", ""), str):
            raise DamagedError("its error is not a text")
        if status.get("run", self.name) != self.name:
            raise DamagedError(f"belongs to run {status['run']}")
        return status

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """A value that changes whenever the status or the metrics are written."""
        found = []
        for name in ("status.json", "metrics.jsonl"):
            with contextlib.suppress(OSError):
                stat = (self.folder / name).lstat()
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def metrics(self) -> list[dict[str, Any]]:
        """One dict per epoch. If the file is damaged, they come from the checkpoint."""
        path = self.folder / "metrics.jsonl"
        try:
            status = self._stored_status()
        except (FileNotFoundError, DamagedError):
            status = {}
        try:
            contents = read_regular(path)
            lines = [verified(parse_json(line, dict), _OLD_METRICS, self.name) for line in contents.splitlines()]
            if status.get("metrics_sha256") in (None, hashlib.sha256(contents).hexdigest()):
                return self._checked(lines, status)
        except FileNotFoundError:
            if not (status.get("metrics_sha256") or status.get("epochs") or status.get("state") == "finished"):
                return []
        except (OSError, DamagedError):
            pass
        log.warning("%s: is damaged; the metrics come from the last checkpoint", path)
        state = self.load_checkpoint()
        with contextlib.suppress(DamagedError):
            if state is not None:
                return self._checked(state["metrics"], status)
        raise StoreError(f"{path}: is damaged, and no checkpoint has the metrics; {self.remedy}")

    def _checked(self, metrics: list[dict[str, Any]], status: dict[str, Any]) -> list[dict[str, Any]]:
        """``metrics``; DamagedError if they are not those of this run in this state."""
        check_result(self._spec or self.spec(), status.get("state"), check_metrics(metrics))
        if status.get("epochs") not in (None, len(metrics)):
            raise DamagedError("the status has another number of epochs")
        return metrics

    def environment(self) -> list[dict[str, Any]]:
        """The environment of each session of the run; damaged entries are left out."""
        try:
            entries = parse_json(read_regular(self.folder / "environment.json"), list)
        except (OSError, DamagedError):
            return []
        sessions = []
        for entry in entries:
            with contextlib.suppress(DamagedError):
                sessions.append(verified(entry, _OLD_SESSION, self.name))
        return sessions

    def load_checkpoint(self, mesh: DeviceMesh | None = None) -> dict[str, Any] | None:
        """See :meth:`Checkpoints.load <dynabound.lab.checkpoints.rotation.Checkpoints.load>`."""
        state = self._checkpoints.load(mesh)
        if state is not None and state.get("run", self.name) != self.name:
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

    def begin(self, spec: RunSpec, *sessions: dict[str, Any], resume: bool = True) -> None:
        """Write what is known before training: spec, status, and the new sessions after the earlier ones."""
        earlier = self.environment() if resume else []
        self._write("spec.json", (spec.to_json() + "\n").encode())
        self._write("environment.json", _json([signed(each, self.name) for each in (*earlier, *sessions)]))
        self.write_status("running")

    def write_status(self, state: str, **details: Any) -> None:
        """Write the run's state, with the checksum of its metrics."""
        status = {"state": state, **details, "run": self.name}
        if state != "running":  # until then the metrics change without the status
            with contextlib.suppress(OSError):
                status["metrics_sha256"] = hashlib.sha256(read_regular(self.folder / "metrics.jsonl")).hexdigest()
        self._write("status.json", _json(signed(status)))

    def write_metrics(self, metrics: list[dict[str, Any]]) -> None:
        """Replace the metrics; not synced to disk, since the checkpoint has them too."""
        lines = "".join(json.dumps(signed(line, self.name), allow_nan=False) + "\n" for line in metrics)
        self._write("metrics.jsonl", lines.encode(), durable=False)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint and delete all but the one before it."""
        self._verify(state)
        with self._writing(self.folder):
            self._checkpoints.save({"run": self.name, **state})

    def save_shards(self, state: dict[str, Any]) -> None:
        """As :meth:`save_checkpoint`, for a state with DTensors: every process calls this and writes its part."""
        with self._writing(self.folder):
            self._checkpoints.save_shards({"run": self.name, **state})

    def _verify(self, state: dict[str, Any]) -> None:
        """Check before the first checkpoint that the state can be read back: an optimizer may keep other objects."""
        if not self._verified:
            try:
                file.verify_readable(state)
            except DamagedError as error:
                raise StoreError(f"run {self.name}: its state holds more than tensors and numbers ({error})") from error
            self._verified = True

    def end(self, state: str, metrics: list[dict[str, Any]], **details: Any) -> None:
        """Write the final metrics and status, and keep no more than one checkpoint."""
        self.write_metrics(metrics)
        self.write_status(state, epochs=len(metrics), **details)
        self._checkpoints.prune(1)

    def remove(self) -> None:
        """Delete the run; not while it is being trained."""
        if self.folder.is_symlink():
            raise StoreError(f"{self.folder}: is a symbolic link; remove what it points to, {self.folder.resolve()}")
        with self.lock():
            trash = self.folder.with_name(f".removed-{self.name}-{secrets.token_hex(8)}")
            try:
                for folder in self.folder.glob("*.dcp"):
                    if not folder.is_symlink():
                        folder.chmod(0o700)  # otherwise its contents could not be deleted
                self.folder.rename(trash)
                shutil.rmtree(trash)
            except OSError as error:
                with contextlib.suppress(OSError):
                    trash.rename(self.folder)  # the remaining files keep their folder's name
                raise StoreError(f"{self.folder}: cannot be removed ({error.strerror})") from error
        for leftover in self.folder.parent.glob(".removed-*"):  # of a process that was killed while removing
            with contextlib.suppress(OSError):
                if not lock.is_held(leftover / "lock"):
                    delete(leftover)

    @property
    def remedy(self) -> str:
        """For an error message: what to do if the run cannot be used."""
        return f"remove the run and train it again: dynabound runs remove {self.name} {_out(self.folder.parent)}"

    @property
    def _retrain(self) -> str:
        return f"repair it with: dynabound train --resume {self.name} {_out(self.folder.parent)}"

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


def _first_line(error: Exception) -> str:
    """For a message: the first line; of an OSError without the path, which the message contains already."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return reason.partition("\n")[0][:300]


def signed(fields: dict[str, Any], run: str = "") -> dict[str, Any]:
    """``fields`` and their checksum, in which the name of their ``run`` is included."""
    return {**fields, "sha256": hashlib.sha256((json.dumps(fields, sort_keys=True) + run).encode()).hexdigest()}


def verified(entry: Any, unsigned: frozenset[str] = frozenset(), run: str = "") -> dict[str, Any]:
    """The fields of :func:`signed`; DamagedError if they changed, or have no checksum and keys beyond ``unsigned``.

    A checksum without the name of the ``run``, as version 0.2.0 wrote it, is accepted; that of another run is not.
    """
    if not isinstance(entry, dict):
        raise DamagedError(f"holds a {type(entry).__name__}, not a dict")
    fields = {key: value for key, value in entry.items() if key != "sha256"}
    if entry not in (signed(fields, run), signed(fields)) if "sha256" in entry else not unsigned.issuperset(fields):
        raise DamagedError("its checksum does not match")
    return fields


def parse_json(contents: bytes, kind: type) -> Any:
    """JSON of the expected type; DamagedError for anything else, including numbers or nesting that Python rejects."""
    try:
        value = json.loads(contents, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is not JSON ({str(error)[:80]})") from error
    if not isinstance(value, kind):
        raise DamagedError(f"holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")  # the JSON standard has neither NaN nor Infinity
