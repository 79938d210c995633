"""What an engine is, and what all engines share. An engine executes runs and emits events; results are in stores."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dynabound._files import write_whole
from dynabound.lab.errors import LabError, LockedError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks.catalog import TASKS
from dynabound.lab.train import Progress

log = logging.getLogger(__name__)
PROGRESS_INTERVAL = 0.2
"""Seconds between two progress events of a run."""
SHUTDOWN_TIMEOUT = 30.0
"""Seconds that a run has to save its checkpoint when it is asked to stop."""
MAX_CRASHES = 2
"""A run whose process has crashed this often has failed."""
_FRAMES = 4  # of a traceback that an error message quotes


class CrashedError(LabError):
    """A process that a run needs has died."""


@dataclass(frozen=True)
class Event:
    """What happened to a run.

    ``state`` is ``started``, ``running`` or ``retried`` while the run is under way, and ``finished``, ``diverged``,
    ``failed`` or ``stopped`` at its end. Inside an engine, ``crashed`` becomes a retry or a failure.
    """

    run: str
    state: str
    progress: Progress | None = None
    error: str = ""

    @property
    def last(self) -> bool:
        """Whether this is the run's last event."""
        return self.state not in ("started", "running", "retried")


class Engine(Protocol):
    """Where the runs of a study are executed."""

    @property
    def jobs(self) -> int:
        """How many runs are executed at the same time."""

    def submit(self, specs: Iterable[RunSpec], store: Store) -> None:
        """Queue runs, to be trained in ``store``; also while :meth:`events` is being read."""

    def events(self) -> Iterator[Event]:
        """Execute what was submitted and yield events until every run has had its last one.

        A run that fails does not stop the others.
        """


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(spec: RunSpec, jobs: int) -> int:
    """The threads of a run when ``jobs`` of them share this machine: OMP_NUM_THREADS, or the cores divided by ``jobs``.

    A small model has one: more of them wait for each other longer than they compute.

    >>> threads(RunSpec("digits"), jobs=1)
    1
    """
    if spec.model == "perceptron" or TASKS[spec.task].source is None:
        return 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, cores() // jobs)


def limit_threads(spec: RunSpec) -> None:
    """Let this process, which trains ``spec`` alone, use no more threads than a run on its own has."""
    torch.set_num_threads(min(torch.get_num_threads(), threads(spec, jobs=1)))


def process_context() -> Any:
    """The multiprocessing context of worker processes: a fork server with torch loaded, if the system has fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Imports take longer than many runs: torch's compiler (the first optimizer imports it) and the embedded data too.
    context.set_forkserver_preload([__name__, "torch._dynamo", "sklearn.datasets"])
    return context


def run_with_events(
    spec: RunSpec, store: Store, emit: Callable[[Event], None], stop: Callable[[], bool], trainer: Callable[..., str]
) -> Event:
    """Train a run until it ends or ``stop()`` is true; return its last event. A failure is recorded in the store too.

    ``trainer(spec, store, progress=…, stop=…)`` returns the run's state.
    """
    last, waiting = 0.0, False

    def progress(progress: Progress) -> None:
        nonlocal last
        if progress.metrics or time.monotonic() - last >= PROGRESS_INTERVAL:
            last = time.monotonic()
            emit(Event(spec.name, "running", progress))

    while True:
        try:
            return Event(spec.name, trainer(spec, store, progress=progress, stop=stop))
        except LockedError as error:
            # A process of an earlier, killed command may still be saving this run, or another command may train it.
            if not waiting:
                log.warning("%s; waiting", error)
                waiting = True
            time.sleep(PROGRESS_INTERVAL)
            if stop():
                return Event(spec.name, "stopped")
        except CrashedError as error:
            return Event(spec.name, "crashed", error=str(error))
        except Exception as error:  # any exception: the other runs continue
            text = format_error(error)
            record_failure(store, spec, text)
            return Event(spec.name, "failed", error=text)


def format_error(error: BaseException) -> str:
    """The message of a LabError, or the end of the traceback of any other error."""
    if isinstance(error, LabError):
        return str(error)
    return "".join(traceback.format_exception(error, limit=-_FRAMES, chain=False)).strip()


def handle_crash(store: Store, spec: RunSpec, error: str, retry: bool) -> Event:
    """The event of a run whose process has died: it is retried, or recorded as failed."""
    if retry:
        return Event(spec.name, "retried", error=error)
    record_failure(store, spec, error)
    return Event(spec.name, "failed", error=error)


def record_failure(store: Store, spec: RunSpec, error: str) -> None:
    """Write a run's failure into the store, if it can be written."""
    run = store.run(spec)
    try:
        with run.lock():
            if not (run.folder / "spec.json").exists():
                write_whole(run.folder / "spec.json", (spec.to_json() + "\n").encode())
            run.write_status("failed", error=error)
    except (LabError, OSError):
        return
