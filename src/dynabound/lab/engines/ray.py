"""Runs on a Ray cluster, or on a Ray that is started on this machine: each run is one Ray task.

Tasks send their events to an actor, the event queue; the driver polls it, and the reply to each message says whether to
stop. The driver creates a probe, a file with a random name, in its store. A task that sees the probe shares the store's
file system and trains there. Any other trains in a scratch folder, and the driver writes what it receives to the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import logging
import os
import signal
import socket
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self

import dynabound
from dynabound._extras import missing
from dynabound._files import write_whole
from dynabound.lab.checkpoints.rotation import delete
from dynabound.lab.engines import base
from dynabound.lab.engines.pool import train_on_ranks
from dynabound.lab.errors import LabError, StoreError, first_line
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.tasks.download import ensure_downloaded
from dynabound.lab.train import Progress, train

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
    crashes: int = 0
    lost_nodes: int = 0


class RayEngine:
    """Ray tasks of ``cpus`` cores and ``gpus`` GPUs each. A context manager.

    A run whose process dies resumes from its last checkpoint if its node shares the store's file system, otherwise from
    where it was last stopped; if the process dies again, the run has failed. Leaving the ``with`` statement lets every
    run save a checkpoint first.

    Args:
        address: "auto", "host:port" or "ray://host:port"; None or "local": start Ray on this machine.
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
        self._probes: dict[Path, str] = {}

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
        """The runs that fit on the current nodes."""
        return max(1, self._slots())

    def _slots(self) -> int:
        wanted = {"CPU": self._cpus} | ({"GPU": self._gpus} if self._gpus else {})
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(kind, 0) // number) for kind, number in wanted.items()) for node in nodes)

    def _check_resources(self) -> None:
        if self._slots():
            return
        request = f"{self._cpus} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
        if self._address in (None, "local"):
            raise LabError(
                f"a run asks for {request}, and this machine has {base.cores()} CPUs; ask for less, or --address"
            )
        log.warning("no node has the %s that a run asks for; waiting until there is one", request)

    def submit(self, specs: Iterable[RunSpec], store: Store) -> None:
        for spec in specs:
            self._start(_Task(spec, store))

    def events(self) -> Iterator[base.Event]:
        while self._tasks:
            yield from self._poll(stopping=False)

    def _stop(self) -> None:
        """Let running tasks save a checkpoint; cancel the waiting ones."""
        for ref, task in self._tasks.items():
            if not task.host:
                # By force: an interrupt in the middle of an import would leave a process that no later task can use.
                self._ray.cancel(ref, force=True)
        deadline = time.monotonic() + base.SHUTDOWN_TIMEOUT
        with contextlib.suppress(LabError):  # if Ray is lost, no task can be asked to stop
            while self._tasks and time.monotonic() < deadline:
                for event in self._poll(stopping=True):
                    log.debug("%s", event)
        for ref in self._tasks:
            self._ray.cancel(ref, force=True)
        self._tasks.clear()

    def _probe(self, store: Store) -> str:
        root = store.root.resolve()
        if root not in self._probes:
            root.mkdir(parents=True, exist_ok=True)
            self._probes[root] = self._connection.enter_context(
                tempfile.NamedTemporaryFile(prefix=".dynabound-probe-", dir=root)  # noqa: SIM115
            ).name
        return self._probes[root]

    def _start(self, task: _Task) -> None:
        task.attempt, task.host = next(self._attempts), ""
        folder = task.store.run(task.spec).folder
        # Only a node that does not see the store fetches the files.
        files = [self._ray.put(pack(folder))] if any(folder.glob("checkpoint-*")) else []
        probe = self._probe(task.store)
        ref = self._remote.remote(task.spec.to_dict(), task.attempt, probe, self._queue, files, self._options)
        self._tasks[ref] = task

    def _poll(self, stopping: bool) -> Iterator[base.Event]:
        try:
            ended, _ = self._ray.wait(list(self._tasks), timeout=base.PROGRESS_INTERVAL)
            messages = self._ray.get(self._queue.take.remote(stopping))  # includes all messages of ended tasks
        except self._ray.exceptions.RayError as error:
            raise LabError(
                f"--engine ray: Ray is lost ({first_line(error)}); run the same command again to resume"
            ) from error
        for message in messages:
            yield from self._receive(message)
        for ref in ended:
            if ref in self._tasks:
                yield self._end(ref, self._tasks.pop(ref), stopping)

    def _receive(self, message: dict[str, Any]) -> Iterator[base.Event]:
        attempt, host, progress = message.pop("attempt"), message.pop("host"), message.pop("progress")
        task = next((task for task in self._tasks.values() if task.attempt == attempt), None)
        if task is not None:  # otherwise it is a late event of an attempt that has failed
            task.host = host
            yield base.Event(**message, progress=Progress(**progress) if progress else None)

    def _end(self, ref: Any, task: _Task, stopping: bool) -> base.Event:
        event, node_lost = self._result(ref, task)
        # Not if another process trains the run or has completed it.
        if event.state == "failed" and task.store.run(task.spec).status()["state"] not in ENDED:
            base.record_failure(task.store, task.spec, event.error)
        if event.state != "crashed":
            return event
        task.lost_nodes += node_lost
        task.crashes += not node_lost
        retry = task.crashes < base.MAX_CRASHES and task.lost_nodes < _MAX_LOST_NODES
        event = base.handle_crash(task.store, task.spec, event.error, retry)
        if retry and not stopping:
            self._start(task)
        return event

    def _result(self, ref: Any, task: _Task) -> tuple[base.Event, bool]:
        """The last event of a Ray task that has ended, and whether its node was lost."""
        name, host, problems = task.spec.name, task.host or "?", self._ray.exceptions
        try:
            return _save_result(task, *self._ray.get(ref)), False
        except (problems.NodeDiedError, problems.LocalRayletDiedError, problems.ObjectLostError):
            return base.Event(name, "crashed", error=f"its node {host} was lost"), True
        except problems.TaskCancelledError:
            return base.Event(name, "stopped"), False
        except problems.RayTaskError as error:  # before training: a package is not installed on the node
            return base.Event(name, "failed", error=f"on {host}: {base.format_error(error.cause or error)}"), False
        except problems.RayError as error:
            reason = "" if isinstance(error, problems.WorkerCrashedError) else f": {first_line(error)}"
            return base.Event(name, "crashed", error=f"its process on {host} died{reason}"), False


def _start_event_queue(ray: Any) -> Any:
    """An actor on the driver's node, which lives as long as the driver."""

    class EventQueue:  # not of this module, so that its process need not import torch
        def __init__(self) -> None:
            self.messages: list[Any] = []
            self.stopping = False

        def put(self, message: Any) -> bool:
            self.messages += [message] if message else []
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


def _save_result(task: _Task, state: str, error: str, session: dict[str, Any], files: dict[str, bytes]) -> base.Event:
    """The last event of a run; what a task returned that does not see the store is written first."""
    run = task.store.run(task.spec)
    try:
        if session:
            with run.lock():
                run.begin(task.spec, {**session, "shared": False})
                unpack(files, run.folder)
    except (StoreError, OSError) as problem:
        state, error = "failed", f"{problem}; run the same command again when this is solved"
    return base.Event(task.spec.name, state, error=error)


@contextlib.contextmanager
def connected(address: str | None, modules: Sequence[str]) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster or, without an address, started here; a connection is left open."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise it reports dead workers on standard output
    try:
        import ray
    except ModuleNotFoundError as error:
        raise LabError(f"--engine ray: {missing(error, 'ray')}") from None
    if ray.is_initialized():
        yield ray
        return
    local = address in (None, "", "local")
    code = [Path(dynabound.__file__).parent, *filter(None, map(_source_path, modules))]
    with tempfile.TemporaryDirectory(prefix="dynabound-") as empty:
        # Without a working directory, Ray's workers would import files of this process's.
        environment = {"py_modules": list(map(str, code)), "working_dir": empty}
        here = {"address": "local", "num_cpus": base.cores(), "include_dashboard": False}
        try:
            if not local:
                check_reachable(str(address))
            with _own_sigterm():
                # The terminal shows the progress of the runs instead of Ray's messages.
                ray.init(**(here if local else {"address": address}), runtime_env=environment,
                         logging_level=logging.ERROR, log_to_driver=False)  # fmt: skip
        except Exception as error:  # Ray raises Exception itself if a node has not started after 30 s
            where = "--engine ray: Ray cannot be started here" if local else f"--address {address}: no Ray answers"
            remedy = "run the same command again, or --engine local" if local else "start one: ray start --head"
            raise LabError(f"{where} ({first_line(error)}); {remedy}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM. Ray replaces it by one that prints a stack of addresses and aborts."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at ``address``: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _source_path(name: str) -> Path | None:
    """Where the code of a module is, to be sent to the nodes; None for an installed one, which they must have too."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a foreign module may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise LabError(f"module {name!r}: cannot be imported ({reason}); install or repair it here") from None
    file = module.__path__[0] if hasattr(module, "__path__") else getattr(module, "__file__", None)
    if file is None:  # built into Python
        return None
    path = Path(file)
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return None if any(path.is_relative_to(folder) for folder in installed) else path


def pack(folder: Path) -> dict[str, bytes]:
    """The files of a run by name; the status comes last, so that the others exist when it is written."""
    files = (path for path in folder.rglob("*") if path.is_file())
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
            delete(path)


def execute(
    fields: dict[str, Any], attempt: int, probe: str, queue: Any, files: list[Any], options: dict[str, Any]
) -> tuple[str, str, dict[str, Any], dict[str, bytes]]:
    """The Ray task: train a run and return state and error, and session and files if the driver cannot see them."""
    import ray

    spec = RunSpec.from_dict(fields)
    torch.set_num_threads(options["threads"])
    sender = _Sender(ray, queue, attempt)
    sender.send(base.Event(spec.name, "started"))
    shared = Path(probe).exists()
    with tempfile.TemporaryDirectory(prefix="dynabound-") as scratch:
        store = Store(Path(probe).parent if shared else scratch)
        run = store.run(spec)
        if files and not shared:
            unpack(ray.get(files[0]), run.folder)
        event = base.run_with_events(spec, store, sender.send, sender.stop, partial(_train, **options))
        sender.flush()
        if shared:
            return event.state, event.error, {}, {}
        return event.state, event.error, (run.environment() or [{}])[-1], pack(run.folder)


def _train(spec: RunSpec, store: Store, *, ranks: int, threads: int, data_dir: str | None, **options: Any) -> str:
    """Train a run on this node; return its state."""
    ensure_downloaded(spec.task, data_dir)
    if ranks > 1:
        return train_on_ranks(spec, store, ranks=ranks, threads=threads, data_dir=data_dir, **options)
    return train(spec, store, data_dir=data_dir, **options).state


class _Sender:
    """Sends a task's events to the driver; the reply to each message says whether to stop."""

    def __init__(self, ray: Any, queue: Any, attempt: int) -> None:
        self._ray, self._put, self._attempt = ray, queue.put.remote, attempt
        self._reply, self._asked, self._stopped = self._put(None), time.monotonic(), False

    def send(self, event: base.Event) -> None:
        self._reply = self._put({**dataclasses.asdict(event), "attempt": self._attempt, "host": socket.gethostname()})

    def stop(self) -> bool:
        """Whether to stop; asks the driver at most every ``PROGRESS_INTERVAL`` s, and does not wait for the answer."""
        if time.monotonic() - self._asked >= base.PROGRESS_INTERVAL and self._ray.wait([self._reply], timeout=0)[0]:
            self.flush()
            self._reply, self._asked = self._put(None), time.monotonic()
        return self._stopped

    def flush(self) -> None:
        """Return when all messages have arrived: they arrive in order."""
        try:
            self._stopped = self._stopped or self._ray.get(self._reply)
        except self._ray.exceptions.RayError:  # the driver is gone
            self._stopped = True
