"""Runs in worker processes of this machine."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self

from dynabound.lab.engines.base import (
    MAX_CRASHES,
    SHUTDOWN_TIMEOUT,
    Event,
    cores,
    handle_crash,
    run_with_events,
    start_process,
    threads,
)
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train

__all__ = ["LocalEngine", "assign_device"]


@dataclass
class _Job:
    """A submitted run."""

    spec: RunSpec
    store: Store
    crashes: int = 0


class LocalEngine:
    """``jobs`` worker processes that share this machine's cores, or its GPUs. A context manager.

    A worker that dies is replaced, and its run resumes from the last checkpoint; if it dies again, the run has failed.
    Leaving the ``with`` statement, also by an exception, lets every run save a checkpoint first.
    """

    def __init__(self, jobs: int | None = None, data_dir: str | Path | None = None, device: str = "cpu") -> None:
        self._gpus = torch.cuda.device_count() if device == "cuda" else 0
        self.jobs = jobs or self._gpus or cores()
        self._options: dict[str, Any] = {"data_dir": data_dir, "device": device}
        self._workers: list[_Worker] = []
        self._queue: deque[_Job] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.send(None)
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        self._workers.clear()

    def submit(self, specs: Iterable[RunSpec], store: Store) -> None:
        """See :meth:`Engine.submit <dynabound.lab.engines.base.Engine.submit>`."""
        self._queue.extend(_Job(spec, store) for spec in specs)

    def events(self) -> Iterator[Event]:
        """See :meth:`Engine.events <dynabound.lab.engines.base.Engine.events>`."""
        while True:
            yield from self._start_jobs()
            busy = {worker.connection: worker for worker in self._workers if worker.job}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]
                job = worker.job
                if job is None:
                    continue
                event = worker.receive()
                if event is not None:
                    yield event
                    continue
                self._workers.remove(worker)
                job.crashes += 1
                retry = job.crashes < MAX_CRASHES
                if retry:
                    self._queue.appendleft(job)
                yield handle_crash(job.store, job.spec, f"its process died ({worker.join(0)})", retry)

    def _start_jobs(self) -> Iterator[Event]:
        """Give every idle worker a job; spawn up to ``jobs`` workers."""
        while self._queue:
            worker = next((worker for worker in self._workers if worker.job is None), None)
            if worker is None:
                if len(self._workers) >= self.jobs:
                    return
                slot = min(set(range(self.jobs)) - {worker.slot for worker in self._workers})
                device = assign_device(self._options["device"], slot, self._gpus)
                worker = _Worker(slot, self.jobs, {**self._options, "device": device})
                self._workers.append(worker)
            job = self._queue.popleft()
            worker.start(job)
            yield Event(job.spec.name, "started")


def assign_device(device: str, slot: int, gpus: int) -> str:
    """The device of the worker in a slot: slots are assigned to GPUs round robin.

    >>> [assign_device("cuda", slot, gpus=2) for slot in range(3)]
    ['cuda:0', 'cuda:1', 'cuda:0']
    """
    return f"cuda:{slot % gpus}" if device == "cuda" and gpus else device


class _Worker:
    """Parent-side handle of a worker process."""

    def __init__(self, slot: int, jobs: int, options: dict[str, Any]) -> None:
        self.slot = slot
        self.connection, self.process = start_process(_work, jobs, options)
        self.job: _Job | None = None

    def start(self, job: _Job) -> None:
        self.job = job
        self.send((job.spec.to_dict(), str(job.store.root)))

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the process is dead: receive() will notice
            self.connection.send(message)

    def receive(self) -> Event | None:
        """The next event; None if the process is dead."""
        try:
            event: Event = self.connection.recv()
        except (EOFError, OSError):
            return None
        if event.last:
            self.job = None
        return event

    def join(self, seconds: float) -> str:
        """Join for ``seconds``, then kill; return the exit reason."""
        self.process.join(seconds or 1.0)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _work(connection: Connection, jobs: int, options: dict[str, Any]) -> None:
    """The worker process: train the runs that it receives until it receives None, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what to do

    def emit(event: Event) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; recv() will notice
            connection.send(event)

    def trainer(spec: RunSpec, store: Store, **callbacks: Any) -> str:
        torch.set_num_threads(threads(spec, jobs))
        return train(spec, store, **options, **callbacks).state

    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        spec, store = RunSpec.from_dict(message[0]), Store(message[1])
        # Any message during a run, or the end of the connection, is the request to stop.
        emit(run_with_events(spec, store, emit, connection.poll, trainer))
