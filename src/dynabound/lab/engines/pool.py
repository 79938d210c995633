"""Processes of this machine that call functions: runs, the ranks of one run, and the other work of a study."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
from typing_extensions import Self

from dynabound.lab.engines import base
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import Progress, train
from dynabound.lab.training import distributed

_REPORT_TIMEOUT = 5.0  # seconds for the other ranks to report what happened to them after one has failed


@dataclass(frozen=True)
class Parent:
    """The parent process, as a called function sees it."""

    slot: int
    """The number of this process among those that run at the same time."""
    connection: Connection

    def send(self, value: Any, kind: str = "sent") -> None:
        """Send a value to the parent."""
        with contextlib.suppress(OSError):  # it is gone; stopping() will notice
            self.connection.send((kind, value))

    def stopping(self) -> bool:
        """Whether the parent has asked to stop, or is gone."""
        return self.connection.poll()


@dataclass(frozen=True)
class Message:
    """What a process did: it ``started``, ``sent`` a value, ``returned`` one, ``raised`` a LabError, or ``died``."""

    key: Any
    kind: Literal["started", "sent", "returned", "raised", "died"]
    value: Any = None


class Pool:
    """At most ``jobs`` processes at a time, one for each function. A context manager.

    At exit, functions have ``grace`` seconds to return after they were asked to stop; then they are killed.
    """

    def __init__(self, jobs: int, grace: float = 0.0) -> None:
        self.jobs, self._grace = jobs, grace
        self._waiting: deque[tuple[Any, Callable[[Parent], object]]] = deque()
        self._running: dict[Any, tuple[Any, int, Any]] = {}  # connection: key, slot, process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.clear()
        self.stop()
        deadline = time.monotonic() + self._grace
        for connection, (_, _, process) in self._running.items():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
            connection.close()
        self._running.clear()

    @property
    def busy(self) -> bool:
        """Whether a function is waiting or running."""
        return bool(self._waiting or self._running)

    def submit(self, key: Any, function: Callable[[Parent], object], *, first: bool = False) -> None:
        """Queue a function, or put it in front of the queue; it is pickled."""
        (self._waiting.appendleft if first else self._waiting.append)((key, function))

    def stop(self) -> None:
        """Ask all running functions to stop."""
        for connection in self._running:
            with contextlib.suppress(OSError):  # the process is dead; receive() will notice
                connection.send(None)

    def receive(self, timeout: float | None = None) -> Iterator[Message]:
        """Start what can be started, wait for messages, and yield them."""
        while self._waiting and len(self._running) < self.jobs:
            yield self._start(*self._waiting.popleft())
        ready: list[Any] = wait(list(self._running), timeout)
        for connection in ready:
            key, _, process = self._running[connection]
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                process.join()
                code = process.exitcode
                kind, value = "died", f"signal {-code}" if code < 0 else f"exit code {code}"
            if kind != "sent":
                del self._running[connection]
                process.join()
                connection.close()
            yield Message(key, kind, value)

    def _start(self, key: Any, function: Callable[[Parent], object]) -> Message:
        context = base.process_context()
        slot = min(set(range(self.jobs)) - {slot for _, slot, _ in self._running.values()})
        ours, theirs = context.Pipe()
        process = context.Process(target=_call, args=(Parent(slot, theirs), function), daemon=True)
        process.start()
        theirs.close()  # otherwise the connection would stay open after the process has ended
        self._running[ours] = key, slot, process
        return Message(key, "started")


def _call(parent: Parent, function: Callable[[Parent], object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what to do
    try:
        kind, value = "returned", function(parent)
    except Exception as error:
        kind, value = "raised", error if isinstance(error, LabError) else LabError(base.format_error(error))
    parent.send(value, kind)


@dataclass
class _Job:
    """A submitted run."""

    spec: RunSpec
    store: Store
    crashes: int = 0


class LocalEngine:
    """``jobs`` runs at a time in processes that share this machine's cores, or its GPUs. A context manager.

    A run whose process dies resumes from its last checkpoint; if it dies again, the run has failed. Leaving the
    ``with`` statement, also by an exception, lets every run save a checkpoint first.
    """

    def __init__(self, jobs: int | None = None, data_dir: str | Path | None = None, device: str = "cpu") -> None:
        gpus = torch.cuda.device_count() if device == "cuda" else 0
        self.jobs = jobs or gpus or base.cores()
        self._options: dict[str, Any] = {"jobs": self.jobs, "gpus": gpus, "data_dir": data_dir, "device": device}
        self._pool = Pool(self.jobs, base.SHUTDOWN_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.__exit__(*exception)

    def submit(self, specs: Iterable[RunSpec], store: Store) -> None:
        for spec in specs:
            self._submit(_Job(spec, store))

    def _submit(self, job: _Job) -> None:
        self._pool.submit(job, partial(_run, job.spec, job.store, self._options), first=bool(job.crashes))

    def events(self) -> Iterator[base.Event]:
        while self._pool.busy:
            for message in self._pool.receive():
                yield self._event(message)

    def _event(self, message: Message) -> base.Event:
        job: _Job = message.key
        if message.kind == "started":
            return base.Event(job.spec.name, "started")
        if message.kind in ("sent", "returned"):
            event: base.Event = message.value
            return event
        job.crashes += 1
        retry = job.crashes < base.MAX_CRASHES
        if retry:
            self._submit(job)
        return base.handle_crash(job.store, job.spec, f"its process died ({message.value})", retry)


def _run(spec: RunSpec, store: Store, options: dict[str, Any], parent: Parent) -> base.Event:
    torch.set_num_threads(base.threads(spec, options["jobs"]))
    device = assign_device(options["device"], parent.slot, options["gpus"])

    def trainer(spec: RunSpec, store: Store, **callbacks: Any) -> str:
        return train(spec, store, data_dir=options["data_dir"], device=device, **callbacks).state

    return base.run_with_events(spec, store, parent.send, parent.stopping, trainer)


def assign_device(device: str, slot: int, gpus: int) -> str:
    """The device of the process in a slot: slots are assigned to GPUs round robin.

    >>> [assign_device("cuda", slot, gpus=2) for slot in range(3)]
    ['cuda:0', 'cuda:1', 'cuda:0']
    """
    return f"cuda:{slot % gpus}" if device == "cuda" and gpus else device


def run_tasks(
    tasks: Sequence[Callable[[], object]], jobs: int, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Call all tasks, which store their own results, in ``jobs`` processes; ``progress`` gets the number completed.

    LabError if a task fails, or if its process dies ``MAX_CRASHES`` times.
    """
    crashes, done = Counter[int](), 0
    with Pool(jobs) as pool:
        for key, task in enumerate(tasks):
            pool.submit(key, partial(_call_task, task))
        while pool.busy:
            for message in pool.receive():
                if message.kind == "raised":
                    # The last line of a traceback is the error.
                    raise LabError(str(message.value).strip().rpartition("\n")[-1])
                if message.kind == "died":
                    crashes[message.key] += 1
                    if crashes[message.key] == base.MAX_CRASHES:
                        raise LabError("a process that prepares the study died; run the same command again")
                    pool.submit(message.key, partial(_call_task, tasks[message.key]))
                if message.kind == "returned":
                    done += 1
                    progress(done)


def _call_task(task: Callable[[], object], _: Parent) -> None:
    task()


def train_on_ranks(
    spec: RunSpec,
    store: Store,
    *,
    ranks: int,
    threads: int,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
    **options: Any,
) -> str:
    """:func:`~dynabound.lab.train.train` in ``ranks`` processes of ``threads`` threads each; return the run's state.

    They find each other as the processes of ``torchrun`` do. CrashedError if one dies; the others are killed.
    """
    reports: list[tuple[float, LabError | str]] = []
    stopping, deadline = False, float("inf")
    with tempfile.TemporaryDirectory(prefix="dynabound-") as folder, Pool(ranks) as pool:
        for rank in range(ranks):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks,
                         distributed.RENDEZVOUS_FILE: f"{folder}/rendezvous"}  # fmt: skip
            pool.submit(rank, partial(_run_rank, variables, threads, spec, store, options))
        while pool.busy and time.monotonic() < deadline:
            if not stopping and stop():
                stopping = True
                pool.stop()
            for message in pool.receive(base.PROGRESS_INTERVAL):
                if message.kind == "died" and not reports:
                    raise base.CrashedError(f"its rank {message.key} died ({message.value})")
                if message.kind == "raised":
                    raise message.value
                if isinstance(message.value, Progress):
                    progress(message.value)
                elif message.kind == "sent":
                    reports.append(message.value)
                    if isinstance(message.value[1], LabError):
                        deadline = min(deadline, time.monotonic() + _REPORT_TIMEOUT)
    failures = sorted(((when, end) for when, end in reports if isinstance(end, LabError)), key=lambda pair: pair[0])
    if failures:
        raise failures[0][1]  # the earliest has caused the others
    return str(reports[0][1])


def _run_rank(
    variables: dict[str, Any], threads: int, spec: RunSpec, store: Store, options: dict[str, Any], parent: Parent
) -> None:
    torch.set_num_threads(threads)
    os.environ |= {key: str(value) for key, value in variables.items()}
    end: LabError | str
    with distributed.joined(options["device"]):
        try:
            end = train(spec, store, progress=parent.send, stop=parent.stopping, **options).state
        except LabError as error:
            end = error
        except Exception as error:
            end = LabError(base.format_error(error))
        # Before leaving the process group, which makes the other ranks fail.
        parent.send((time.monotonic(), end))
