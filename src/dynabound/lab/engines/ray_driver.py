"""Runs on a Ray cluster, or on a Ray of this machine: each run is one task. No Ray type leaves this file.

Driver and tasks talk through an actor, the mailbox: what a task tells lies there until the driver takes it, and the
answer to whatever is told is whether to stop. A task that sees the token which the driver has put into its store
trains in that store. One that does not trains in a scratch folder, and the driver copies what it hears into the store.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Self

import dynabound
from dynabound.lab.engines.local import DEATHS, PATIENCE, REFRESH, Event, cores, explain, lost, record_failure
from dynabound.lab.engines.ray_task import execute, held, pack, unpack
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Run, Store, StoreError
from dynabound.lab.train import Progress

__all__ = ["RayEngine"]

log = logging.getLogger(__name__)
_LOSSES = 10  # nodes that a run may lose until it is given up: their end is rarely its fault


class RayEngine:
    """Tasks of ``cpus`` cores and ``gpus`` GPUs each on the Ray at ``address``. To be used in a ``with`` statement.

    Without an address, Ray is started on this machine, for this process alone. A run that loses its process goes on
    from its last checkpoint if its node shares the store's file system, and else from where it was last stopped; if it
    kills its process again, it has failed. Leaving the ``with`` statement lets every run save itself first.

    Args:
        address: "auto", "host:port", "ray://host:port"; None: of this machine.
        cpus: cores of a run, and its threads.
        gpus: GPUs of a run.
        ranks: processes of a run, which share its cores and GPUs.
        data_dir: where a node looks for data first, and fetches it to.
        device: "cpu" or "cuda".
        modules: names of modules that travel to the nodes as dynabound itself does.
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
        self._round: _Round | None = None

    def __enter__(self) -> Self:
        self._ray, self._ours = _connect(self._address, self._modules)
        try:
            self._check_resources()
            self._mailbox = _start_mailbox(self._ray)
            self._task = self._ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0)(execute)
        except BaseException:
            self._disconnect()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._round:
                self._round.stop()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._ours:
            self._ray.shutdown()

    @property
    def jobs(self) -> int:
        """See :class:`~dynabound.lab.engines.local.Engine`; as many as fit on the nodes that are there now."""
        return max(1, sum(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"]))

    def _fit(self, resources: dict[str, float]) -> int:
        runs = resources.get("CPU", 0) // self._cpus
        return int(min(runs, resources.get("GPU", 0) // self._gpus) if self._gpus else runs)

    def _check_resources(self) -> None:
        if any(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"]):
            return
        wish = f"{self._cpus} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
        if self._address is None:
            raise LabError(f"a run asks for {wish}, and this machine has {cores()} CPUs; ask for less, or --address")
        log.warning("no node has the %s that a run asks for; waiting until there is one", wish)

    def run(self, specs: Sequence[RunSpec], store: Store) -> Iterator[Event]:
        """See :meth:`~dynabound.lab.engines.local.Engine.run`."""
        self._round = _Round(self._ray, self._mailbox, self._task, self._options, store, specs)
        with self._round.token():
            yield from self._round.events()
        self._round = None


def _connect(address: str | None, modules: Sequence[str]) -> tuple[Any, bool]:
    """Ray, connected, and whether it was this call that did so. A connection that is there already is used."""
    # Ray reads these as it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or it tells of dead workers on standard output
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # without clusters it binds to 127.0.0.1 alone
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise LabError("--engine ray: ray is missing: pip install 'dynabound[ray]'") from None
    if ray.is_initialized():
        return ray, False
    code = [Path(dynabound.__file__).parent, *filter(None, map(_code, modules))]
    options: dict[str, Any] = {"runtime_env": {"py_modules": list(map(str, code))}, "logging_level": logging.ERROR}
    options["log_to_driver"] = False  # the board has the terminal
    if address is None:
        quiet = {"enable_metrics_collection": False}  # it would listen to the world
        ray.init("local", num_cpus=cores(), include_dashboard=False, _system_config=quiet, **options)
        return ray, True
    try:
        _knock(address)
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).partition("\n")[0]
        raise LabError(
            f"--address {address}: no Ray answers ({reason}); start one (ray start --head), or leave out --address. "
            "If it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from None
    return ray, True


def _knock(address: str) -> None:
    """Raise OSError if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _code(name: str) -> Path | None:
    """Where the code of a module is, to be sent; None if it is installed: so it has to be on the nodes."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise LabError(f"module {name}: cannot be imported ({error})") from None
    path = Path(module.__path__[0] if hasattr(module, "__path__") else str(module.__file__))
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return None if any(path.is_relative_to(folder) for folder in installed) else path


def _start_mailbox(ray: Any) -> Any:
    """On the driver's node, where it ends only with the driver."""

    class Mailbox:  # not of this module, so that its process need not import torch
        def __init__(self) -> None:
            self.letters: list[Any] = []
            self.stopping = False

        def tell(self, letters: list[Any]) -> bool:
            self.letters += letters
            return self.stopping

        def take(self, stopping: bool) -> list[Any]:
            self.stopping = stopping
            letters, self.letters = self.letters, []
            return letters

    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=True
    )
    lasting = {"max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=place, **lasting).remote()


class _Round:
    """Specs on their way to their end, as the driver sees them."""

    def __init__(
        self, ray: Any, mailbox: Any, task: Any, options: dict[str, Any], store: Store, specs: Sequence[RunSpec]
    ) -> None:
        self._ray, self._mailbox, self._task, self._options, self._store = ray, mailbox, task, options, store
        self._given = specs
        self._taken = 0
        self._token = store.root.resolve() / ".seen-by-nobody"
        self._tasks: dict[Any, RunSpec] = {}
        self._hosts: dict[str, str] = {}  # from a run that has started to where it did
        self._copies: dict[str, _Copy] = {}
        self._deaths: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()

    @contextlib.contextmanager
    def token(self) -> Iterator[None]:
        """Whoever sees this folder sees the driver's store."""
        self._token.parent.mkdir(parents=True, exist_ok=True)
        with held(self._token.parent, ".seen-by-") as self._token:
            yield

    def events(self) -> Iterator[Event]:
        """Start all, also those that are added, and tell how they go until all have ended."""
        while True:
            for spec in self._given[self._taken :]:
                self._taken += 1
                self._submit(spec)
            if not self._tasks:
                return
            yield from self._step(stopping=False)

    def stop(self) -> None:
        """Let what runs save itself, and what waits wait."""
        for ref, spec in self._tasks.items():
            if spec.name not in self._hosts:
                # By force: an interrupt in the middle of an import would leave a process that no later task can use.
                self._ray.cancel(ref, force=True)
        deadline = time.monotonic() + PATIENCE
        while self._tasks and time.monotonic() < deadline:
            for event in self._step(stopping=True):
                log.debug("%s", event)
        for ref in self._tasks:
            self._ray.cancel(ref, force=True)
        for copy in self._copies.values():
            copy.close()

    def _submit(self, spec: RunSpec) -> None:
        run = self._store.run(spec)
        # For a node that does not see it; the others do not fetch it.
        files = [self._ray.put(pack(run.folder))] if any(run.folder.glob("checkpoint-*")) else []
        arguments = spec.to_dict(), str(self._token), self._mailbox, files, self._options
        self._tasks[self._task.remote(*arguments)] = spec

    def _step(self, stopping: bool) -> Iterator[Event]:
        ended, _ = self._ray.wait(list(self._tasks), timeout=REFRESH)
        for letter in self._ray.get(self._mailbox.take.remote(stopping)):  # all of what has ended, and more
            yield from self._read(letter)
        for ref in ended:
            if ref in self._tasks:
                yield from self._end(ref, self._tasks.pop(ref), stopping)

    def _read(self, letter: dict[str, Any]) -> Iterator[Event]:
        session, host, progress = letter.pop("session", None), letter.pop("host"), letter.pop("progress")
        event = Event(**letter, progress=Progress(**progress) if progress else None)
        ref, spec = next((item for item in self._tasks.items() if item[1].name == event.run), (None, None))
        if spec is None:  # a late letter of a run that was given up
            return
        self._hosts[event.run] = host
        try:
            copy = self._copy(spec, session)
            if copy and event.progress and event.progress.metrics:
                copy.add(event.progress.metrics)
        except (StoreError, OSError) as error:
            self._ray.cancel(ref, force=True)
            del self._tasks[ref]
            event = self._fail(spec, str(error))
        yield event

    def _copy(self, spec: RunSpec, session: dict[str, Any] | None) -> _Copy | None:
        """Where the driver writes a run that has begun elsewhere; None if it has not, or writes into the store."""
        if session and spec.name not in self._copies:
            self._copies[spec.name] = _Copy(self._store.run(spec), spec, session)
        return self._copies.get(spec.name)

    def _end(self, ref: Any, spec: RunSpec, stopping: bool) -> Iterator[Event]:
        host, problems = self._hosts.pop(spec.name, "?"), self._ray.exceptions
        event, node = Event(spec.name, "stopped"), False
        try:
            event = self._keep(spec, *self._ray.get(ref))
        except (problems.NodeDiedError, problems.LocalRayletDiedError, problems.ObjectLostError):
            event, node = Event(spec.name, "died", error=f"its node {host} was lost"), True
        except problems.TaskCancelledError:
            pass
        except problems.RayTaskError as error:  # not even begun: something is not installed there
            event = Event(spec.name, "failed", error=f"on {host}: {explain(error.cause or error)}")
        except problems.RayError as error:
            reason = "" if isinstance(error, problems.WorkerCrashedError) else f": {str(error).partition(chr(10))[0]}"
            event = Event(spec.name, "died", error=f"its process on {host} died{reason}")
        self._let_go(spec)
        if event.state == "failed":
            event = self._fail(spec, event.error)
        elif event.state == "died":
            (self._losses if node else self._deaths)[spec.name] += 1
            again = self._deaths[spec.name] < DEATHS and self._losses[spec.name] < _LOSSES
            event = lost(self._store, spec, event.error, again)
            if again and not stopping:
                self._submit(spec)
        yield event

    def _keep(self, spec: RunSpec, state: str, error: str, session: dict[str, Any], files: dict[str, bytes]) -> Event:
        """Write what a task returned."""
        try:
            copy = self._copy(spec, session)
            if copy:
                copy.write(files)
        except (StoreError, OSError) as problem:
            return Event(spec.name, "failed", error=str(problem))
        return Event(spec.name, state, error=error)

    def _fail(self, spec: RunSpec, error: str) -> Event:
        """Give a run up, and leave word of it, unless it is another process that has the run, or had it."""
        self._let_go(spec)
        if self._store.run(spec).status()["state"] not in ("running", *ENDED):
            record_failure(self._store, spec, error)
        return Event(spec.name, "failed", error=error)

    def _let_go(self, spec: RunSpec) -> None:
        copy = self._copies.pop(spec.name, None)
        if copy:
            copy.close()


class _Copy:
    """A run in the driver's store that is trained where that store is not."""

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
