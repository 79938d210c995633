"""All runs at a glance while they go: a live board on a terminal, a line per ended run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from dynabound.lab.describe import describe, workload_key
from dynabound.lab.engines.base import Event
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED
from dynabound.lab.train import Progress

__all__ = ["Board", "board"]


class Board:
    """Counts runs, and foretells how long they will take from those that went before."""

    def __init__(self, console: Console, bar: Bar | None, jobs: Callable[[], int]) -> None:
        self._console, self._bar, self._ask, self._jobs = console, bar, jobs, jobs()
        self._specs: dict[str, RunSpec] = {}
        self._left: dict[str, int] = {}  # from a run that has not ended to its epochs that have not
        self._pace: dict[RunSpec, float] = {}  # from a workload to its seconds per epoch
        self._last: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, TaskID] = {}
        self.ended, self.failed = 0, 0
        self._total = bar.add_task("all runs", total=0, left="starting") if bar else None

    def begin(self, specs: list[RunSpec]) -> None:
        """These are to be run, too."""
        self._specs |= {spec.name: spec for spec in specs}
        self._left |= {spec.name: spec.epochs for spec in specs}
        if self._bar and self._total is not None:
            self._bar.update(self._total, total=len(self._specs), left=self._count())

    def listen(self, event: Event) -> None:
        """Show what happened."""
        spec = self._specs[event.run]
        if event.state == "started":
            self._jobs = self._ask()  # nodes may have joined, or left
            if self._bar:
                self._tasks[event.run] = self._bar.add_task(describe(spec), total=None, left="")
        elif event.state == "running" and event.progress:
            self._running(spec, event.progress)
        elif event.state == "retried":
            self._console.print(f"{describe(spec)}: {event.error}; it is started again")
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
            text = f"{event.state}{shown}" + (f": {event.error}" if event.error else "")
            self._console.print(f"[{self.ended}/{len(self._specs)}] {describe(spec)}: {text}", soft_wrap=True)

    def _remove(self, run: str) -> None:
        if self._bar and run in self._tasks:
            self._bar.remove_task(self._tasks.pop(run))

    def _count(self) -> str:
        left = self.left()
        return f"{self.ended} of {len(self._specs)}" + (f", {left}" if left else "")

    def left(self) -> str:
        """The time that the known runs will still take, once one epoch of any has been measured."""
        if not self._pace:
            return ""
        usual = sum(self._pace.values()) / len(self._pace)
        paces = {run: self._pace.get(workload_key(self._specs[run]), usual) for run in self._left}
        seconds = sum(epochs * paces[run] for run, epochs in self._left.items())
        minutes, seconds = divmod(round(seconds / self._jobs), 60)
        return f"{minutes}:{seconds:02d} left"


@contextmanager
def board(jobs: Callable[[], int], quiet: bool = False) -> Iterator[Board]:
    """A board on standard error, for as long as the ``with`` statement lasts."""
    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    if not console.is_terminal or quiet:
        yield Board(console, None, jobs)
        return
    # On a narrow terminal the bars give way: they are the only column that may be shorter than its contents.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[left]}"),
               TimeElapsedColumn(Column(no_wrap=True)))  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        yield Board(console, bar, jobs)
