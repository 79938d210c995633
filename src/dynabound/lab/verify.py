"""Train runs of a ledger again and compare."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynabound.lab.ledger import Entry
from dynabound.lab.store import Store
from dynabound.lab.tasks import catalog, datasets, optimizers
from dynabound.lab.train import DECISIVE, Progress, Result, train

__all__ = ["POINTS", "RATIO", "Outcome", "sample", "verify"]

POINTS, RATIO = 3.0, 0.05
"""How much the results of a run may differ on another machine: points of accuracy, or a share of perplexity."""


@dataclass(frozen=True)
class Outcome:
    """The result of training a run again."""

    entry: Entry
    state: str
    """``identical``, ``close``, ``differs``, or ``not compared``."""
    reason: str


def sample(entries: dict[str, Entry], number: int, seed: int) -> list[Entry]:
    """``number`` random runs, or all if there are fewer; the choice depends on ``seed`` and the runs alone."""
    names = sorted(entries)
    return [entries[name] for name in random.Random(seed).sample(names, min(number, len(names)))]


def verify(
    entry: Entry,
    trusted: tuple[str, ...] = (),
    data_dir: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Train the run of ``entry`` again, on this CPU, and compare.

    The metrics must be equal bit for bit if the CPU model, the versions of torch and dynabound, the number of threads
    and the data are those of the entry; otherwise the results of the last epoch must agree within POINTS or RATIO. An
    optimizer of another package is imported only if it is ``trusted``.
    """
    spec = entry.spec
    if ":" in spec.optimizer and spec.optimizer not in trusted:
        return Outcome(entry, "not compared", f"{spec.optimizer} is not one of the studies' optimizers")
    if spec.task in catalog.SOURCES and datasets.locate(spec.task, data_dir) is None:
        return Outcome(entry, "not compared", f"{spec.task} not found; dynabound data fetch {spec.task}, or --data-dir")
    before = torch.get_num_threads()
    torch.set_num_threads(_threads(entry))
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = train(spec, Store(folder), data_dir=data_dir, progress=progress)
            return _compare(entry, result, result.run.environment()[-1])
    except optimizers.OptimizerError as error:  # its package is not installed
        return Outcome(entry, "not compared", str(error))
    finally:
        torch.set_num_threads(before)


def _threads(entry: Entry) -> int:
    threads = entry.environment[-1].get("threads")
    return threads if isinstance(threads, int) and 1 <= threads <= 256 else 1


def _compare(entry: Entry, result: Result, here: dict[str, Any]) -> Outcome:
    other = [key for key in (*DECISIVE, "data") if any(session.get(key) != here[key] for session in entry.environment)]
    if "data" in other:
        return Outcome(entry, "not compared", f"trained on other data ({entry.environment[-1].get('data')})")
    if entry.state != result.state:
        return Outcome(entry, "differs", f"{entry.state} in the ledger, {result.state} here")
    if _numbers(entry.metrics) == _numbers(result.metrics) and entry.step == result.details["step"]:
        return Outcome(entry, "identical", "bit for bit")
    if not other:
        return Outcome(entry, "differs", f"same machine, {_first_difference(entry, result)}")
    far = [text for text, near in _last_epochs(entry, result) if not near]
    where = f"another {' and '.join(other)}"
    if far:
        return Outcome(entry, "differs", f"{where}; {'; '.join(far)}")
    return Outcome(entry, "close", f"{where}; the last epoch agrees within {_tolerance(entry)}")


def _tolerance(entry: Entry) -> str:
    return f"{RATIO:.0%} of perplexity" if entry.spec.text else f"{POINTS:g} points"


def _numbers(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in metrics]


def _first_difference(entry: Entry, result: Result) -> str:
    for old, new in zip(_numbers(entry.metrics), _numbers(result.metrics), strict=False):
        for key in old:
            if old[key] != new.get(key):
                return f"epoch {old['epoch']}: {key} {old[key]} in the ledger, {new.get(key)} here"
    return f"{len(entry.metrics)} epochs in the ledger, {len(result.metrics)} here"


def _last_epochs(entry: Entry, result: Result) -> Iterator[tuple[str, bool]]:
    """Of the last epoch that both have, for each split: the results as text, and whether they agree."""
    epochs = min(len(entry.metrics), len(result.metrics))
    if not epochs:
        return
    for split in ("train", "test"):
        key = f"{split}_{entry.spec.metric}"
        old, new = entry.metrics[epochs - 1][key], result.metrics[epochs - 1][key]
        near = abs(new - old) <= RATIO * old if entry.spec.text else 100 * abs(new - old) <= POINTS
        yield f"{key} {old:.4g} in the ledger, {new:.4g} here", near
