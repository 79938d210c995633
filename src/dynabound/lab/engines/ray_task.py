"""A run as a Ray task: what happens on a node. See :mod:`dynabound.lab.engines.ray_driver`, which sends it there."""

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
from dynabound.lab.engines.local import REFRESH, Event, attend
from dynabound.lab.engines.spawn import train_on_ranks
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Run, Store
from dynabound.lab.tasks.download import obtain
from dynabound.lab.train import train

__all__ = ["execute", "held", "pack", "unpack"]

_NEWBORN = 60.0  # seconds in which a folder that is not locked may be one that is about to be


@contextlib.contextmanager
def held(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent`` for as long as this lasts; those that killed processes have left are deleted."""
    for lock in parent.glob(f"{prefix}*/lock"):
        with contextlib.suppress(OSError):  # another process deletes it, too
            if time.time() - lock.stat().st_mtime > _NEWBORN and not Run(lock.parent).locked():
                shutil.rmtree(lock.parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder, Run(Path(folder)).lock():
        yield Path(folder)


def pack(folder: Path) -> dict[str, bytes]:
    """What a run has become, file by file; the status last, which says that the others are there."""
    paths = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == "status.json")
    kept = [path for path in paths if path.name not in ("lock", "spec.json", "environment.json")]
    files = {}
    for path in kept:
        with contextlib.suppress(FileNotFoundError):  # whoever trains the run has let go of it
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write what :func:`pack` read; the checkpoints among it take the place of those that are there."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, contents)
    new = {Path(name).parts[0] for name in files if name.startswith("checkpoint-")}
    for path in folder.glob("checkpoint-*") if new else ():
        if path.name not in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def execute(
    fields: dict[str, Any], token: str, mailbox: Any, files: list[Any], options: dict[str, Any]
) -> tuple[str, str, dict[str, Any], dict[str, bytes]]:
    """The task: train, tell, and return state and error and, if the driver cannot see them, session and files."""
    import ray

    spec = RunSpec.from_dict(fields)
    torch.set_num_threads(options["threads"])
    line = _Line(ray, mailbox)
    with contextlib.ExitStack() as stack:
        shared = Path(token).exists()
        temporary = Path(tempfile.gettempdir())
        store = Store(Path(token).parent if shared else stack.enter_context(held(temporary, "dynabound-scratch-")))
        line.say(Event(spec.name, "started"))
        if not shared:
            line.run = store.run(spec)
            if files:
                unpack(ray.get(files[0]), line.run.folder)
        event = attend(spec, store, line.say, line.stop, _trainer(**options))
        line.flush()
        run = store.run(spec)
        return event.state, event.error, *(({}, {}) if shared else ((run.environment() or [{}])[-1], pack(run.folder)))


def _trainer(*, ranks: int, threads: int, data_dir: str | None, device: str) -> Callable[..., str]:
    def trainer(spec: RunSpec, store: Store, **listeners: Any) -> str:
        obtain(spec.task, data_dir)
        options = {"data_dir": data_dir, "device": device, **listeners}
        if ranks > 1:
            return train_on_ranks(spec, store, count=ranks, threads=threads, **options)
        return train(spec, store, **options).state

    return trainer


class _Line:
    """A task's line to the driver: it talks at most every ``REFRESH`` seconds, and learns then whether to stop."""

    def __init__(self, ray: Any, mailbox: Any) -> None:
        self._ray, self._mailbox = ray, mailbox
        self._letters: list[dict[str, Any]] = []
        self._answer: Any = None
        self._stopped, self._time = False, 0.0
        self.run: Run | None = None
        """Whose beginning the driver has to be told, since it cannot see it."""

    def say(self, event: Event) -> None:
        last: dict[str, Any] = self._letters[-1] if self._letters else {"state": ""}
        if last["state"] == "running" and not last["progress"]["metrics"] and "session" not in last:
            self._letters.pop()  # it is out of date
        self._letters.append({**dataclasses.asdict(event), "host": socket.gethostname()})
        if self.run and event.progress:
            self._letters[-1]["session"] = self.run.environment()[-1]
            self.run = None
        self.stop()

    def stop(self) -> bool:
        if time.monotonic() - self._time < REFRESH:
            return self._stopped
        if self._answer is None or self._ray.wait([self._answer], timeout=0)[0]:
            self._exchange()
        return self._stopped

    def flush(self) -> None:
        """Return when all that was said has arrived."""
        self._exchange()
        self._exchange()

    def _exchange(self) -> None:
        try:
            self._stopped = self._stopped or (self._answer is not None and self._ray.get(self._answer))
        except self._ray.exceptions.RayError:  # the driver is gone
            self._stopped = True
        self._answer, self._letters = self._mailbox.tell.remote(self._letters), []
        self._time = time.monotonic()
