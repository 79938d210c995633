"""Where runs execute. An engine takes specs and a store, and tells how the runs go: here, in processes of this machine.

Whatever happens to a run is in the store: an engine's events are only for those who watch.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch
from typing_extensions import Self

from dynabound._files import write_whole
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import LockedError, Store
from dynabound.lab.train import Progress, train

__all__ = ["DEATHS", "PATIENCE", "REFRESH", "DiedError", "Engine", "Event", "LocalEngine", "attend", "cores", "explain",
           "lost", "placed", "processes", "record_failure"]  # fmt: skip

log = logging.getLogger(__name__)
REFRESH = 0.2  # seconds between two words about the same run
PATIENCE = 30.0  # seconds for a run to save itself when it is told to stop
DEATHS = 2  # so often a run may kill its process until it is given up
_FRAMES = 4  # of a traceback that are told


class DiedError(LabError):
    """A process that a run needs has died."""


@dataclass(frozen=True)
class Event:
    """What happened to a run.

    It was ``started``, ``retried`` or ``stopped``, is ``running``, or ended as ``finished``, ``diverged``, ``failed``.
    What only an engine hears: it ``died``, and is to be retried or given up.
    """

    run: str
    state: str
    progress: Progress | None = None
    error: str = ""


class Engine(Protocol):
    """What a study needs to know about the place where its runs execute."""

    @property
    def jobs(self) -> int:
        """How many runs go on at the same time."""

    def run(self, specs: Sequence[RunSpec], store: Store) -> Iterator[Event]:
        """Bring all ``specs`` to their end in ``store``; a run that fails does not keep the others from going on.

        ``specs`` may grow at its end while the events are read. What an engine takes no notice of is given to it again.
        """


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """``jobs`` processes that share out this machine's cores, or its GPUs. To be used in a ``with`` statement.

    A process that dies is replaced, and its run goes on from its last checkpoint; if it dies again, the run has failed.
    Leaving the ``with`` statement, in whichever way, lets every run that goes on save itself first.
    """

    def __init__(self, jobs: int | None = None, data_dir: str | Path | None = None, device: str = "cpu") -> None:
        self._gpus = torch.cuda.device_count() if device == "cuda" else 0
        self.jobs = jobs or self._gpus or cores()
        self._options: dict[str, Any] = {"data_dir": data_dir, "device": device}
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.tell(None)
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._workers.clear()

    def run(self, specs: Sequence[RunSpec], store: Store) -> Iterator[Event]:
        """See :meth:`Engine.run`."""
        queue: deque[RunSpec] = deque()
        deaths: dict[str, int] = {}
        taken = 0
        while True:
            new, taken = specs[taken:], len(specs)
            queue.extend(new)
            deaths |= dict.fromkeys((spec.name for spec in new), 0)
            yield from self._start(queue, store)
            busy = {worker.connection: worker for worker in self._workers if worker.spec}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]
                spec = worker.spec
                if spec is None:
                    continue
                event = worker.hear()
                if event is not None:
                    yield event
                    continue
                self._workers.remove(worker)
                deaths[spec.name] += 1
                again = deaths[spec.name] < DEATHS
                if again:
                    queue.appendleft(spec)
                yield lost(store, spec, f"its process died ({worker.end(0)})", again)

    def _start(self, queue: deque[RunSpec], store: Store) -> Iterator[Event]:
        """Give every idle worker a run; hire workers as long as there are runs for them."""
        while queue:
            worker = next((worker for worker in self._workers if worker.spec is None), None)
            if worker is None:
                if len(self._workers) >= self.jobs:
                    return
                seat = min(set(range(self.jobs)) - {worker.seat for worker in self._workers})
                device = placed(self._options["device"], seat, self._gpus)
                worker = _Worker(seat, max(1, cores() // self.jobs), {**self._options, "device": device})
                self._workers.append(worker)
            spec = queue.popleft()
            worker.begin(spec, store)
            yield Event(spec.name, "started")


def placed(device: str, seat: int, gpus: int) -> str:
    """The device of the worker on a seat: in turn each of the GPUs.

    >>> [placed("cuda", seat, gpus=2) for seat in range(3)]
    ['cuda:0', 'cuda:1', 'cuda:0']
    """
    return f"cuda:{seat % gpus}" if device == "cuda" and gpus else device


def processes() -> Any:
    """How processes are made: by a server that has torch loaded already, where the system has such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # What a run would import by itself takes longer than many a run: torch's compiler, which the first optimizer asks
    # for, and the embedded data.
    context.set_forkserver_preload([__name__, "torch._dynamo", "sklearn.datasets"])
    return context


class _Worker:
    """One process, as its employer sees it."""

    def __init__(self, seat: int, threads: int, options: dict[str, Any]) -> None:
        self.seat = seat
        context = processes()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, threads, options), daemon=True)
        self.process.start()
        theirs.close()  # or else the end of the process would not be the end of the connection
        self.spec: RunSpec | None = None

    def begin(self, spec: RunSpec, store: Store) -> None:
        self.spec = spec
        self.tell((spec.to_dict(), str(store.root)))

    def tell(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError:  # it is dead: hear() will notice
            return

    def hear(self) -> Event | None:
        """What it says; None if it is dead."""
        try:
            event: Event = self.connection.recv()
        except (EOFError, OSError):
            return None
        if event.state != "running":
            self.spec = None
        return event

    def end(self, seconds: float) -> str:
        """Wait so long for its end, then make an end; how it ended."""
        self.process.join(seconds or 1.0)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _work(connection: Connection, threads: int, options: dict[str, Any]) -> None:
    """The life of a worker: until it is told None, or its employer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the employer tells what to do
    torch.set_num_threads(threads)

    def say(event: Event) -> None:
        with contextlib.suppress(OSError):  # the employer is gone, as is about to be found out
            connection.send(event)

    def alone(spec: RunSpec, store: Store, **listeners: Any) -> str:
        return train(spec, store, **options, **listeners).state

    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        spec, store = RunSpec.from_dict(message[0]), Store(message[1])
        say(attend(spec, store, say, connection.poll, alone))  # anything on the line, even its end, is the wish to stop


def attend(
    spec: RunSpec, store: Store, say: Callable[[Event], None], stop: Callable[[], bool], train: Callable[..., str]
) -> Event:
    """Train a run until it ends or ``stop`` says so: the last event. Whatever goes wrong is told in the store, too.

    ``train`` is given the spec, the store, ``progress`` and ``stop``, and returns the state.
    """
    last, waiting = 0.0, False

    def progress(progress: Progress) -> None:
        nonlocal last
        if progress.metrics or time.monotonic() - last >= REFRESH:
            last = time.monotonic()
            say(Event(spec.name, "running", progress))

    while True:
        try:
            return Event(spec.name, train(spec, store, progress=progress, stop=stop))
        except LockedError as error:
            # A process of an earlier, killed command may still be saving this run, or another command be training it.
            if not waiting:
                log.warning("%s; waiting", error)
                waiting = True
            time.sleep(REFRESH)
            if stop():
                return Event(spec.name, "stopped")
        except DiedError as error:
            return Event(spec.name, "died", error=str(error))
        except Exception as error:  # whatever it is, the other runs go on
            text = explain(error)
            record_failure(store, spec, text)
            return Event(spec.name, "failed", error=text)


def explain(error: BaseException) -> str:
    """What a person needs to know: the message of an error of ours, the end of the traceback of any other."""
    if isinstance(error, LabError):
        return str(error)
    return "".join(traceback.format_exception(error, limit=-_FRAMES, chain=False)).strip()


def lost(store: Store, spec: RunSpec, error: str, again: bool) -> Event:
    """A run has lost its process: it is tried ``again``, or has failed."""
    if again:
        return Event(spec.name, "retried", error=error)
    record_failure(store, spec, error)
    return Event(spec.name, "failed", error=error)


def record_failure(store: Store, spec: RunSpec, error: str) -> None:
    """Leave word of a failure in the store, if that takes it."""
    run = store.run(spec)
    try:
        with run.lock():
            if not (run.folder / "spec.json").exists():
                write_whole(run.folder / "spec.json", (spec.to_json() + "\n").encode())
            run.write_status("failed", error=error)
    except (LabError, OSError):
        return
