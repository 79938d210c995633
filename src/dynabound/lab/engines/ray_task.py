"""A run as a Ray task, on its node. See :mod:`dynabound.lab.engines.ray`, which submits it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dynabound._files import write_whole
from dynabound.lab.engines.base import PROGRESS_INTERVAL, Event, run_with_events
from dynabound.lab.engines.spawn import train_on_ranks
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Run, Store
from dynabound.lab.tasks.download import ensure_downloaded
from dynabound.lab.train import train

__all__ = ["execute", "locked_temporary_folder", "pack", "unpack"]

LOCK_GRACE = 60.0
"""Seconds for which a new folder may be unlocked without being deleted: its process is about to lock it."""


@contextlib.contextmanager
def locked_temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent``, deleted at exit. Folders left by killed processes are deleted first."""
    for lock in parent.glob(f"{prefix}*/lock"):
        with contextlib.suppress(OSError):  # another process is deleting it too
            if time.time() - lock.stat().st_mtime > LOCK_GRACE and not Run(lock.parent).locked():
                shutil.rmtree(lock.parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder, Run(Path(folder)).lock():
        yield Path(folder)


def pack(folder: Path) -> dict[str, bytes]:
    """The files of a run by name, but no links; the status comes last, so that the others exist when it is written."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    paths = sorted(files, key=lambda path: path.name == "status.json")
    kept = [path for path in paths if path.name not in ("lock", "spec.json", "environment.json")]
    contents = {}
    for path in kept:
        with contextlib.suppress(FileNotFoundError):  # deleted by the process that trains the run
            contents[str(path.relative_to(folder))] = path.read_bytes()
    return contents


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write what :func:`pack` read; its checkpoints replace the existing ones."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, contents)
    new = {Path(name).parts[0] for name in files if name.startswith("checkpoint-")}
    for path in folder.glob("checkpoint-*") if new else ():
        if path.name not in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def execute(
    fields: dict[str, Any], attempt: int, marker: str, queue: Any, files: list[Any], options: dict[str, Any]
) -> tuple[str, str, dict[str, Any], dict[str, bytes]]:
    """The Ray task: train a run and return state and error, and session and files if the driver cannot see them."""
    import ray

    spec = RunSpec.from_dict(fields)
    torch.set_num_threads(options["threads"])
    sender = _Sender(ray, queue, attempt)
    with contextlib.ExitStack() as stack:
        shared = Path(marker).exists()
        scratch = locked_temporary_folder(Path(tempfile.gettempdir()), "dynabound-scratch-")
        store = Store(Path(marker).parent if shared else stack.enter_context(scratch))
        sender.send(Event(spec.name, "started"))
        if not shared:
            sender.unannounced = store.run(spec)
            if files:
                unpack(ray.get(files[0]), sender.unannounced.folder)
        event = run_with_events(spec, store, sender.send, sender.stop, _trainer(**options))
        sender.flush()
        run = store.run(spec)
        return event.state, event.error, *(({}, {}) if shared else ((run.environment() or [{}])[-1], pack(run.folder)))


def _trainer(*, ranks: int, threads: int, data_dir: str | None, device: str) -> Callable[..., str]:
    def trainer(spec: RunSpec, store: Store, **callbacks: Any) -> str:
        ensure_downloaded(spec.task, data_dir)
        options = {"data_dir": data_dir, "device": device, **callbacks}
        if ranks > 1:
            return train_on_ranks(spec, store, ranks=ranks, threads=threads, **options)
        return train(spec, store, **options).state

    return trainer


class _Sender:
    """Sends a task's events to the driver, at most every ``PROGRESS_INTERVAL`` s; the reply says whether to stop."""

    def __init__(self, ray: Any, queue: Any, attempt: int) -> None:
        self._ray, self._queue, self._attempt = ray, queue, attempt
        self._messages: list[dict[str, Any]] = []
        self._reply: Any = None
        self._stopped, self._time = False, 0.0
        self.unannounced: Run | None = None
        """A run in a scratch folder whose session the driver has not received yet."""

    def send(self, event: Event) -> None:
        last: dict[str, Any] = self._messages[-1] if self._messages else {"state": ""}
        if last["state"] == "running" and not last["progress"]["metrics"] and "session" not in last:
            self._messages.pop()  # this event replaces it
        message = {**dataclasses.asdict(event), "attempt": self._attempt, "host": socket.gethostname()}
        if self.unannounced and event.progress:
            message["session"] = self.unannounced.environment()[-1]
            self.unannounced = None
        self._messages.append(message)
        self.stop()

    def stop(self) -> bool:
        if time.monotonic() - self._time < PROGRESS_INTERVAL:
            return self._stopped
        if self._reply is None or self._ray.wait([self._reply], timeout=0)[0]:
            self._exchange()
        return self._stopped

    def flush(self) -> None:
        """Return when all messages have arrived."""
        self._exchange()
        self._exchange()

    def _exchange(self) -> None:
        try:
            self._stopped = self._stopped or (self._reply is not None and self._ray.get(self._reply))
        except self._ray.exceptions.RayError:  # the driver is gone
            self._stopped = True
        self._reply, self._messages = self._queue.put.remote(self._messages), []
        self._time = time.monotonic()
