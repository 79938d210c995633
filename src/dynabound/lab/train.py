"""RunSpec -> metrics: train one run, which can be killed and resumed at any time."""

from __future__ import annotations

import contextlib
import itertools
import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dynabound._extras import origin
from dynabound._version import __version__
from dynabound.lab.errors import LabError, StoreError, first_line
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Run, Store
from dynabound.lab.tasks import datasets
from dynabound.lab.training import distributed
from dynabound.lab.training.loop import DivergedError, Training, perplexity, random_states_kept

log = logging.getLogger(__name__)

ENVIRONMENT_KEYS = ("cpu", "torch", "dynabound", "device", "threads", "ranks", "fsdp")
"""What the bits of a run's results depend on, apart from its spec and its data."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    run: str
    epoch: int
    epochs: int
    step: int
    steps: int
    """In the whole run."""
    loss: float
    """Mean of the epoch so far; so is ``metric``, an accuracy or a perplexity."""
    metric: float
    metrics: dict[str, Any] | None = None
    """At the end of an epoch: its metrics."""


@dataclass(frozen=True)
class Result:
    """How a run ended: ``finished``, ``diverged`` (a result like any other) or ``stopped``."""

    run: Run
    state: str
    metrics: list[dict[str, Any]]
    details: dict[str, Any]


def train(
    spec: RunSpec,
    store: Store,
    *,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    fsdp: bool = False,
    checkpoint_steps: int | None = None,
    checkpoint_minutes: float = 2.0,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Train the run of ``spec``, from its last checkpoint if it has one; a run that has ended is only read.

    If the metrics of such a run are damaged, they are restored from its checkpoint, or the run is trained again.
    Metrics do not depend on when, how often and how the run was interrupted. Everything is checked before the first
    write. The caller's random state does not change.

    Args:
        spec: what to train.
        store: where runs are kept.
        data_dir: the folder that is searched for data first.
        device: "cpu", "cuda", "cuda:1", "mps" …
        fsdp: shard parameters, gradients and optimizer state over the processes (FSDP2); needs
            ``distributed.joined(device, group=True)``.
        checkpoint_steps: save every N steps; None: only by time.
        checkpoint_minutes: save every N minutes.
        progress: called after every step (on accelerators, every few) and at the end of every epoch.
        stop: called equally often; when it returns True the run is saved and train returns ``stopped``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(RunSpec("digits", epochs=2), Store(folder))
        >>> result.state, len(result.metrics), result.metrics[-1]["test_accuracy"] > 0.8
        ('finished', 2, True)
    """
    run = store.run(spec)
    ended: Result | None = distributed.broadcast(_ended(run))
    if ended:
        return ended
    where = distributed.local_device(device)
    if fsdp:
        _check_fsdp(where)
    data = datasets.load(spec.task, data_dir)
    with random_states_kept(where), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        training = Training(spec, data, where, fsdp)
        with run.lock() if distributed.rank() == 0 else contextlib.nullcontext():
            ended = distributed.broadcast(_ended(run))  # another process may have finished it since
            if ended:
                return ended
            session = _Session(run, training, datasets.fingerprint(data), checkpoint_steps, checkpoint_minutes)
            session.begin()
            try:
                return session.run_to_end(progress, stop)
            except (Exception, KeyboardInterrupt) as error:
                session.fail(error)
                raise


class _Session:
    """One process's part in a run: when to save, what to report, how it ends."""

    def __init__(
        self, run: Run, training: Training, data: str, checkpoint_steps: int | None, checkpoint_minutes: float
    ) -> None:
        self.run, self.training, self.data = run, training, data
        self.every, self.seconds = checkpoint_steps, 60 * checkpoint_minutes
        self.saved_step, self.saved_time = 0, time.monotonic()

    def begin(self) -> None:
        """Load the last checkpoint, then write spec, status, environment and metrics."""
        mesh = self.training.mesh
        if mesh is not None:
            state = self.run.load_checkpoint(mesh)
        else:
            state = distributed.broadcast(self.run.load_checkpoint() if distributed.rank() == 0 else None)
        if state is not None:
            self._restore(state)
        if distributed.rank() == 0:
            session = _environment(self.training, self.data)
            _compare(self.run.environment(), session)
            self.run.begin(self.training.spec, session)
            self.run.write_metrics(self.training.metrics)  # a killed process may have written more

    def _restore(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data:
            raise StoreError(
                f"run {self.run.name} was started on other data ({state['data']}, now {self.data}; the embedded text "
                f"differs between Python versions): use that, or {self.run.remedy}"
            )
        try:
            self.training.restore(state)
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                f"run {self.run.name}: its checkpoint does not fit its spec ({first_line(error)}); {self.run.remedy}"
            ) from error
        self.saved_step = self.training.step

    def run_to_end(self, progress: Callable[[Progress], None] | None, stop: Callable[[], bool] | None) -> Result:
        training, spec = self.training, self.training.spec
        try:
            while training.epoch <= spec.epochs:
                for _ in training.train_epoch():
                    stopped, due = distributed.any_rank(training.device, bool(stop and stop()), self._due())
                    if stopped or due:
                        self._save()
                    if stopped:
                        return self._end("stopped", training.step)
                    if progress and distributed.rank() == 0:
                        progress(self._progress())
                report = self._progress()
                metrics = training.finish_epoch()
                if distributed.rank() == 0:
                    self.run.write_metrics(training.metrics)
                    if progress:
                        progress(replace(report, metrics=metrics))
        except DivergedError as error:
            return self._end("diverged", error.args[0])
        self._save()
        return self._end("finished", training.step)

    def _due(self) -> bool:
        if self.every and self.training.step - self.saved_step >= self.every:
            return True
        return time.monotonic() - self.saved_time >= self.seconds

    def _save(self) -> None:
        state = {"data": self.data, **self.training.state()}
        if self.training.mesh is not None:
            self.run.save_shards(state)
        elif distributed.rank() == 0:
            self.run.save_checkpoint(state)
        self.saved_step, self.saved_time = self.training.step, time.monotonic()

    def _progress(self) -> Progress:
        training = self.training
        loss, correct, targets = training.sums
        loss, share = loss / max(1, targets), correct / max(1, targets)
        return Progress(
            self.run.name,
            training.epoch,
            training.spec.epochs,
            training.step,
            training.spec.epochs * training.batches.steps,
            loss,
            perplexity(loss) if training.spec.text else share,
        )

    def _end(self, state: str, step: int) -> Result:
        metrics = self.training.metrics
        if distributed.rank() == 0:
            self.run.end(state, metrics, step=step)
        return Result(self.run, state, metrics, {"step": step})

    def fail(self, error: BaseException) -> None:
        """Record the error, if it can be written."""
        if distributed.rank() == 0:
            with contextlib.suppress(LabError):
                stopped = isinstance(error, KeyboardInterrupt)
                details = {} if stopped else {"error": f"{type(error).__name__}: {error}"}
                self.run.write_status("stopped" if stopped else "failed", **details, step=self.training.step)


def _ended(run: Run) -> Result | None:
    if distributed.rank() != 0:
        return None
    status = run.status()
    if status["state"] not in ENDED:
        return None
    details = {key: value for key, value in status.items() if key != "state"}
    try:
        return Result(run, status["state"], run.metrics(repair=True), details)
    except StoreError:  # the result is lost: train the run again
        return None


def _check_fsdp(device: torch.device) -> None:
    if device.type not in ("cpu", "cuda"):
        raise LabError(f"device={device.type!r}: FSDP needs cpu or cuda; leave out --fsdp")
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise LabError(
            "fsdp=True: there is no process group; use torchrun --nproc-per-node N -m dynabound train … --fsdp, "
            "or call train inside dynabound.lab.training.distributed.joined(device, group=True)"
        )


def _environment(training: Training, data: str) -> dict[str, Any]:
    return {
        "dynabound": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "device": str(training.device),
        "seed": training.spec.seed,
        "threads": torch.get_num_threads(),
        "ranks": distributed.world_size(),
        "fsdp": training.mesh is not None,
        "data": data,
        # git is not called: the working directory's repository may make it run programs
        "commit": origin().get("vcs_info", {}).get("commit_id"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _cpu_model() -> str:
    """The processor's name, family and model, on which the last digits of a run depend: virtual ones share a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    first = itertools.takewhile(str.strip, lines)  # the first processor's
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    if "model name" not in fields:
        return platform.machine()
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')})"


def _compare(sessions: list[dict[str, Any]], now: dict[str, Any]) -> None:
    """Warn if a run is resumed under conditions that may change its last bits."""
    for key in ENVIRONMENT_KEYS:
        if sessions and sessions[-1].get(key, now[key]) != now[key]:
            log.warning("the run was started with %s %s and is resumed with %s", key, sessions[-1][key], now[key])
