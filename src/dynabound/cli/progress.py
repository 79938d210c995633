"""Showing a run while it goes: a live bar on a terminal, a line per epoch elsewhere, curves in TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.train import Progress

__all__ = ["download_bar", "epoch_line", "live", "tensorboard"]

_REFRESH = 0.1  # seconds


def epoch_line(metrics: dict[str, Any], epochs: int) -> str:
    """One epoch in a line.

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
def live(spec: RunSpec, quiet: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """What to give to ``train(progress=…)``. All of it goes to standard error."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield None
    elif not console.is_terminal:

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
        elif time.monotonic() - shown < _REFRESH:
            return
        if not shown:  # a resumed run must not count the steps of others as its own speed
            bar.reset(task, completed=p.step)
        shown = time.monotonic()
        metric = f"perplexity {p.metric:.5g}" if spec.text else f"accuracy {100 * p.metric:.2f}%"
        text = f"epoch {min(p.epoch, p.epochs)}/{p.epochs}  loss {p.loss:.4f}  {metric}"
        bar.update(task, description=text, completed=p.step, total=p.steps)

    return update


def tensorboard(folder: Path) -> Callable[[Progress], None]:
    """Another listener: writes each epoch's metrics into ``folder``, over those of epochs that are run again."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ModuleNotFoundError:
        raise LabError("tensorboard is missing: pip install tensorboard") from None
    writer: Any = None

    def write(p: Progress) -> None:
        nonlocal writer
        if not p.metrics:
            return
        writer = writer or SummaryWriter(str(folder), purge_step=p.epoch)  # not before there is a run
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
    """What to give to ``fetch(progress=…)``."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as bar:
        yield lambda file: _Download(bar, file)
