"""Progress on standard error, for one run, many runs and downloads: live on a terminal, otherwise as lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from dynabound._extras import need
from dynabound.cli.output import printable
from dynabound.lab.engines.base import Event
from dynabound.lab.spec import RunSpec, describe, workload_key
from dynabound.lab.store import ENDED
from dynabound.lab.train import Progress

_INTERVAL = 0.1  # seconds between two updates of a bar


def epoch_line(metrics: dict[str, Any], epochs: int) -> str:
    """One epoch as a line of text.

    >>> epoch_line({"epoch": 3, "train_loss": 0.5, "test_loss": 0.75, "test_accuracy": 0.9, "seconds": 1.25}, 10)
    'epoch 3/10  train loss 0.5000  test loss 0.7500  test accuracy 90.00%  1.2 s'
    """
    parts = [f"epoch {metrics['epoch']}/{epochs}"]
    for key, value in metrics.items():
        label = key.replace("_", " ")
        if key.endswith("_accuracy"):
            parts.append(f"{label} {100 * value:.2f}%")
        elif key.endswith("_loss"):
            parts.append(f"{label} {value:.4f}")
        elif key.endswith("_perplexity"):
            parts.append(f"{label} {value:.5g}")
    return "  ".join([*parts, f"{metrics['seconds']:.1f} s"])


class _StepsPerSecond(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "", style="progress.data.speed")


@contextmanager
def one_run(spec: RunSpec, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show one run; yields what to pass as ``train(progress=…)``."""
    console = Console(stderr=True, highlight=False, quiet=quiet)
    if quiet or not console.is_terminal:

        def print_epoch(p: Progress) -> None:
            if p.metrics:
                console.print(epoch_line(p.metrics, p.epochs), soft_wrap=True)

        yield print_epoch
    else:
        with Bar(
            TextColumn("{task.description}"), BarColumn(), _StepsPerSecond(), TimeRemainingColumn(), console=console
        ) as bar:
            yield _bar_updater(bar, spec)


def _bar_updater(bar: Bar, spec: RunSpec) -> Callable[[Progress], None]:
    task = bar.add_task("starting", total=None)
    shown = 0.0

    def update(p: Progress) -> None:
        nonlocal shown
        if p.metrics:
            bar.console.print(epoch_line(p.metrics, p.epochs))
        elif time.monotonic() - shown < _INTERVAL:
            return
        if not shown:  # the steps before a resume must not count towards the speed
            bar.reset(task, completed=p.step)
        shown = time.monotonic()
        metric = f"perplexity {p.metric:.5g}" if spec.text else f"accuracy {100 * p.metric:.2f}%"
        text = f"epoch {min(p.epoch, p.epochs)}/{p.epochs}  loss {p.loss:.4f}  {metric}"
        bar.update(task, description=text, completed=p.step, total=p.steps)

    return update


def tensorboard(folder: Path) -> Callable[[Progress], None]:
    """Write each epoch's metrics into ``folder``; epochs that are trained again replace the old ones."""
    make_writer = need("torch.utils.tensorboard.writer", "tensorboard").SummaryWriter
    writer: Any = None

    def write(p: Progress) -> None:
        nonlocal writer
        if not p.metrics:
            return
        writer = writer or make_writer(str(folder), purge_step=p.epoch)  # not before the run exists
        scalars = {key.replace("_", "/", 1): value for key, value in p.metrics.items() if isinstance(value, float)}
        for layer, rates in p.metrics.get("rates", {}).items():
            labels = ("min", "5%", "median", "95%", "max")
            scalars |= {f"rates/{layer}/{label}": rate for label, rate in zip(labels, rates, strict=True)}
        for name, value in scalars.items():
            writer.add_scalar(name, value, p.epoch)
        writer.flush()

    return write


class _Download:
    """A rich task with the four methods that pooch calls on tqdm's."""

    def __init__(self, bar: Bar, file: str) -> None:
        self._bar, self._task = bar, bar.add_task(file, total=None)

    @property
    def total(self) -> float | None:
        return self._bar.tasks[self._task].total

    @total.setter
    def total(self, size: float) -> None:
        self._bar.update(self._task, total=size)

    def update(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def reset(self) -> None:  # pooch ends by reset() and update(total)
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        self._bar.refresh()


@contextmanager
def download_bar(quiet: bool = False) -> Iterator[Callable[[str], Any] | None]:
    """Show downloads; yields what to pass as ``download(progress=…)``."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as bar:
        yield lambda file: _Download(bar, file)


class Board:
    """Counts runs, and estimates the time left from the epochs measured so far."""

    def __init__(self, console: Console, bar: Bar | None, jobs: Callable[[], int]) -> None:
        self._console, self._bar, self._ask, self._jobs = console, bar, jobs, jobs()
        self._specs: dict[str, RunSpec] = {}
        self._left: dict[str, int] = {}  # epochs left, by run
        self._pace: dict[RunSpec, float] = {}  # seconds per epoch, by workload
        self._last: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, TaskID] = {}
        self.ended, self.failed = 0, 0
        self._total = bar.add_task("all runs", total=0, left="starting") if bar else None

    def begin(self, specs: list[RunSpec]) -> None:
        """Add runs that will be trained."""
        self._specs |= {spec.name: spec for spec in specs}
        self._left |= {spec.name: spec.epochs for spec in specs}
        if self._bar and self._total is not None:
            self._bar.update(self._total, total=len(self._specs), left=self._count())

    def listen(self, event: Event) -> None:
        """Show an event of a run."""
        spec = self._specs[event.run]
        if event.state == "started":
            self._jobs = self._ask()  # nodes may have joined or left
            if self._bar:
                self._tasks[event.run] = self._bar.add_task(printable(describe(spec)), total=None, left="")
        elif event.state == "running" and event.progress:
            self._running(spec, event.progress)
        elif event.state == "retried":
            self._console.print(f"{printable(describe(spec))}: {printable(event.error, lines=True)}; starting it again")
            self._remove(event.run)
        else:
            self._ended(spec, event)

    def _running(self, spec: RunSpec, progress: Progress) -> None:
        if progress.metrics:
            self._left[spec.name] = spec.epochs - progress.epoch
            self._pace[workload_key(spec)] = progress.metrics["seconds"]
            self._last[spec.name] = progress.metrics
        if self._bar and spec.name in self._tasks:
            left = f"epoch {min(progress.epoch, spec.epochs)}/{spec.epochs}  loss {progress.loss:.3g}"
            self._bar.update(self._tasks[spec.name], completed=progress.step, total=progress.steps, left=left)
            self._bar.update(self._total or TaskID(0), left=self._count())

    def _ended(self, spec: RunSpec, event: Event) -> None:
        self._remove(spec.name)
        self._left.pop(spec.name, None)
        self.ended += 1
        if event.state == "failed":
            self.failed += 1
        if self._bar and self._total is not None:
            self._bar.update(self._total, completed=self.ended, left=self._count())
        if not self._bar or event.state not in ENDED:
            value = self._last.get(spec.name, {}).get(f"test_{spec.metric}")
            shown = "" if value is None else f", test {spec.metric} {value:.4g}"
            text = f"{event.state}{shown}" + (f": {printable(event.error, lines=True)}" if event.error else "")
            self._console.print(
                f"[{self.ended}/{len(self._specs)}] {printable(describe(spec))}: {text}", soft_wrap=True
            )

    def _remove(self, run: str) -> None:
        if self._bar and run in self._tasks:
            self._bar.remove_task(self._tasks.pop(run))

    def _count(self) -> str:
        left = self.left()
        return f"{self.ended} of {len(self._specs)}" + (f", {left}" if left else "")

    def left(self) -> str:
        """The time left for the known runs, once an epoch of any has been measured."""
        if not self._pace:
            return ""
        usual = sum(self._pace.values()) / len(self._pace)
        paces = {run: self._pace.get(workload_key(self._specs[run]), usual) for run in self._left}
        seconds = sum(epochs * paces[run] for run, epochs in self._left.items())
        minutes, seconds = divmod(round(seconds / self._jobs), 60)
        return f"{minutes}:{seconds:02d} left"


@contextmanager
def board(jobs: Callable[[], int], quiet: bool = False) -> Iterator[Board]:
    """Show many runs, for as long as the ``with`` statement lasts."""
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    if not console.is_terminal or quiet:
        yield Board(console, None, jobs)
        return
    # On a narrow terminal the bar shrinks: it is the only column that may.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[left]}"),
               TimeElapsedColumn(Column(no_wrap=True)))  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        yield Board(console, bar, jobs)
