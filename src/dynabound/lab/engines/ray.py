"""Runs on a Ray cluster, or on a Ray that is started on this machine: each run is one Ray task.

Tasks send their events to an actor, the event queue; the driver polls it, and the reply to each message says whether to
stop. The driver creates a marker folder with a random name in its store. A task that sees the marker shares the store's
file system and trains there. Any other trains in a scratch folder, and the driver writes what it receives to the store.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from dynabound.lab.engines.base import (
    MAX_CRASHES,
    PROGRESS_INTERVAL,
    SHUTDOWN_TIMEOUT,
    Event,
    cores,
    format_error,
    handle_crash,
    record_failure,
)
from dynabound.lab.engines.ray_connection import connected
from dynabound.lab.engines.ray_task import execute, locked_temporary_folder, pack, unpack
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Run, Store, StoreError
from dynabound.lab.train import Progress

__all__ = ["RayEngine"]

log = logging.getLogger(__name__)
_MAX_LOST_NODES = 10  # more than MAX_CRASHES: a lost node is rarely the fault of the run


@dataclass
class _Task:
    """A submitted run, as the driver sees it."""

    spec: RunSpec
    store: Store
    attempt: int = 0
    """Unique among the Ray tasks of this engine."""
    host: str = ""
    """The node of the attempt; empty until it has started."""
    copy: _Copy | None = None
    """Set if the attempt trains where the store is not visible."""
    crashes: int = 0
    lost_nodes: int = 0


class RayEngine:
    """Ray tasks of ``cpus`` cores and ``gpus`` GPUs each. A context manager.

    A run whose process dies resumes from its last checkpoint if its node shares the store's file system, otherwise from
    where it was last stopped; if the process dies again, the run has failed. Leaving the ``with`` statement lets every
    run save a checkpoint first.

    Args:
        address: "auto", "host:port" or "ray://host:port"; None or "local": start Ray on this machine, for this
            process alone.
        cpus: cores of a run, and its threads.
        gpus: GPUs of a run.
        ranks: processes of a run, which share its cores and GPUs.
        data_dir: where a node looks for data first, and downloads it to.
        device: "cpu" or "cuda".
        modules: names of modules whose code is sent to the nodes, as dynabound's own is.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: int = 1,
        gpus: float = 0,
        ranks: int = 1,
        data_dir: str | Path | None = None,
        device: str = "cpu",
        modules: Sequence[str] = (),
    ) -> None:
        self._address, self._cpus, self._gpus, self._modules = address, cpus, gpus, modules
        self._options = {
            "ranks": ranks,
            "threads": max(1, cpus // ranks),
            "device": device,
            "data_dir": str(Path(data_dir).resolve()) if data_dir else None,
        }
        self._tasks: dict[Any, _Task] = {}
        self._attempts = itertools.count(1)
        self._markers: dict[Path, Path] = {}
        self._marker_stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._ray = stack.enter_context(connected(self._address, self._modules))
            self._check_resources()
            self._queue = _start_event_queue(self._ray)
            self._remote = self._ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0)(execute)
            self._connection = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection:
            self._stop()

    @property
    def jobs(self) -> int:
        """See :attr:`Engine.jobs <dynabound.lab.engines.base.Engine.jobs>`; the runs that fit on the current nodes."""
        return max(1, sum(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"]))

    def _fit(self, resources: dict[str, float]) -> int:
        runs = resources.get("CPU", 0) // self._cpus
        return int(min(runs, resources.get("GPU", 0) // self._gpus) if self._gpus else runs)

    def _check_resources(self) -> None:
        if any(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"]):
            return
        request = f"{self._cpus} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
        if self._address in (None, "local"):
            raise LabError(f"a run asks for {request}, and this machine has {cores()} CPUs; ask for less, or --address")
        log.warning("no node has the %s that a run asks for; waiting until there is one", request)

    def submit(self, specs: Iterable[RunSpec], store: Store) -> None:
        """See :meth:`Engine.submit <dynabound.lab.engines.base.Engine.submit>`."""
        for spec in specs:
            self._start(_Task(spec, store))

    def events(self) -> Iterator[Event]:
        """See :meth:`Engine.events <dynabound.lab.engines.base.Engine.events>`."""
        while self._tasks:
            yield from self._poll(stopping=False)
        self._remove_markers()

    def _stop(self) -> None:
        """Let running tasks save a checkpoint; cancel the waiting ones."""
        for ref, task in self._tasks.items():
            if not task.host:
                # By force: an interrupt in the middle of an import would leave a process that no later task can use.
                self._ray.cancel(ref, force=True)
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        with contextlib.suppress(LabError):  # if Ray is lost, no task can be asked to stop
            while self._tasks and time.monotonic() < deadline:
                for event in self._poll(stopping=True):
                    log.debug("%s", event)
        for ref, task in self._tasks.items():
            self._ray.cancel(ref, force=True)
            _close_copy(task)
        self._tasks.clear()
        self._remove_markers()

    def _marker(self, store: Store) -> Path:
        root = store.root.resolve()
        if root not in self._markers:
            root.mkdir(parents=True, exist_ok=True)
            self._markers[root] = self._marker_stack.enter_context(locked_temporary_folder(root, ".dynabound-probe-"))
        return self._markers[root]

    def _remove_markers(self) -> None:
        self._marker_stack.close()
        self._markers.clear()

    def _start(self, task: _Task) -> None:
        task.attempt, task.host, task.copy = next(self._attempts), "", None
        folder = task.store.run(task.spec).folder
        # Only a node that does not see the store fetches the files.
        files = [self._ray.put(pack(folder))] if any(folder.glob("checkpoint-*")) else []
        marker = str(self._marker(task.store))
        ref = self._remote.remote(task.spec.to_dict(), task.attempt, marker, self._queue, files, self._options)
        self._tasks[ref] = task

    def _poll(self, stopping: bool) -> Iterator[Event]:
        try:
            ended, _ = self._ray.wait(list(self._tasks), timeout=PROGRESS_INTERVAL)
            messages = self._ray.get(self._queue.take.remote(stopping))  # includes all messages of ended tasks
        except self._ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            raise LabError(f"--engine ray: Ray is lost ({reason}); run the same command again to resume") from error
        for message in messages:
            yield from self._receive(message)
        for ref in ended:
            if ref in self._tasks:
                yield self._end(ref, self._tasks.pop(ref), stopping)

    def _receive(self, message: dict[str, Any]) -> Iterator[Event]:
        attempt, host, session = message.pop("attempt"), message.pop("host"), message.pop("session", None)
        progress = message.pop("progress")
        event = Event(**message, progress=Progress(**progress) if progress else None)
        ref, task = next((item for item in self._tasks.items() if item[1].attempt == attempt), (None, None))
        if task is None:  # late event of an attempt that has failed
            return
        task.host = host
        try:
            _open_copy(task, session)
            if task.copy and event.progress and event.progress.metrics:
                task.copy.add(event.progress.metrics)
        except (StoreError, OSError) as error:
            self._ray.cancel(ref, force=True)
            del self._tasks[ref]
            event = _fail(task, str(error))
        yield event

    def _end(self, ref: Any, task: _Task, stopping: bool) -> Event:
        event, node_lost = self._result(ref, task)
        _close_copy(task)
        if event.state == "failed":
            return _fail(task, event.error)
        if event.state != "crashed":
            return event
        task.lost_nodes += node_lost
        task.crashes += not node_lost
        retry = task.crashes < MAX_CRASHES and task.lost_nodes < _MAX_LOST_NODES
        event = handle_crash(task.store, task.spec, event.error, retry)
        if retry and not stopping:
            self._start(task)
        return event

    def _result(self, ref: Any, task: _Task) -> tuple[Event, bool]:
        """The last event of a Ray task that has ended, and whether its node was lost."""
        name, host, problems = task.spec.name, task.host or "?", self._ray.exceptions
        try:
            return _save_result(task, *self._ray.get(ref)), False
        except (problems.NodeDiedError, problems.LocalRayletDiedError, problems.ObjectLostError):
            return Event(name, "crashed", error=f"its node {host} was lost"), True
        except problems.TaskCancelledError:
            return Event(name, "stopped"), False
        except problems.RayTaskError as error:  # before training: a package is not installed on the node
            return Event(name, "failed", error=f"on {host}: {format_error(error.cause or error)}"), False
        except problems.RayError as error:
            reason = "" if isinstance(error, problems.WorkerCrashedError) else f": {str(error).partition(chr(10))[0]}"
            return Event(name, "crashed", error=f"its process on {host} died{reason}"), False


def _start_event_queue(ray: Any) -> Any:
    """An actor on the driver's node, which lives as long as the driver."""

    class EventQueue:  # not of this module, so that its process need not import torch
        def __init__(self) -> None:
            self.messages: list[Any] = []
            self.stopping = False

        def put(self, messages: list[Any]) -> bool:
            self.messages += messages
            return self.stopping

        def take(self, stopping: bool) -> list[Any]:
            self.stopping = stopping
            messages, self.messages = self.messages, []
            return messages

    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=True
    )
    restart = {"max_restarts": -1, "max_task_retries": -1}
    return ray.remote(EventQueue).options(num_cpus=0, scheduling_strategy=place, **restart).remote()


def _save_result(task: _Task, state: str, error: str, session: dict[str, Any], files: dict[str, bytes]) -> Event:
    """Write the files that a task returned."""
    try:
        _open_copy(task, session)
        if task.copy:
            task.copy.write(files)
    except (StoreError, OSError) as problem:
        return Event(task.spec.name, "failed", error=str(problem))
    return Event(task.spec.name, state, error=error)


def _fail(task: _Task, error: str) -> Event:
    """Record a failure, unless another process trains the run or has completed it."""
    _close_copy(task)
    if task.store.run(task.spec).status()["state"] not in ("running", *ENDED):
        record_failure(task.store, task.spec, error)
    return Event(task.spec.name, "failed", error=error)


def _open_copy(task: _Task, session: dict[str, Any] | None) -> None:
    """Start the driver's copy of a run that trains where the store is not visible; only such a run sends a session."""
    if session and task.copy is None:
        task.copy = _Copy(task.store.run(task.spec), task.spec, session)


def _close_copy(task: _Task) -> None:
    if task.copy:
        task.copy.close()
        task.copy = None


class _Copy:
    """The driver's copy of a run that is trained where the store is not visible."""

    def __init__(self, run: Run, spec: RunSpec, session: dict[str, Any]) -> None:
        self._run = run
        with contextlib.ExitStack() as stack:
            stack.enter_context(run.lock())
            self._metrics = run.metrics()
            run.begin(spec, {**session, "shared": False})
            self._locked = stack.pop_all()

    def add(self, metrics: dict[str, Any]) -> None:
        self._metrics = [*self._metrics[: metrics["epoch"] - 1], metrics]
        self._run.write_metrics(self._metrics)

    def write(self, files: dict[str, bytes]) -> None:
        try:
            unpack(files, self._run.folder)
        except OSError as error:
            remedy = "make room, or the folder writable, then run the same command again"
            raise StoreError(f"{self._run.folder}: cannot be written ({error.strerror}); {remedy}") from error

    def close(self) -> None:
        self._locked.close()
