"""Train runs of a ledger again and compare."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Entry
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import catalog, datasets
from dynabound.lab.train import DECISIVE, Progress, Result, train

__all__ = ["MOST_POINTS", "MOST_RATIO", "POINTS", "RATIO", "SPREADS", "Outcome", "sample", "verify"]

POINTS, RATIO, SPREADS = 3.0, 0.05, 4.0
"""How much the results of a run may differ on another machine: points of accuracy, or a share of perplexity; in the
last epoch also so many standard deviations over the seeds of its settings, if that is more. Where training is chaotic,
as SGD's with a large step size, other rounding has the effect of another seed, but not in the first epoch."""
MOST_POINTS, MOST_RATIO = 10.0, 0.25
"""The largest tolerance, whatever the spread."""


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
    others: Iterable[Entry] = (),
) -> Outcome:
    """Train the run of ``entry`` again, on this CPU, and compare.

    The metrics must be equal bit for bit if the CPU model, the versions of torch and dynabound, the number of threads
    and the data are those of the entry; otherwise the results of the first epoch must agree within POINTS or RATIO,
    and those of the last one too, or within SPREADS standard deviations over the seeds among the ``others`` of the
    ledger, but not more than MOST_POINTS or MOST_RATIO. An optimizer of another package is imported only if it is
    ``trusted``.
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
            result = train(spec, Store(folder), data_dir=data_dir, progress=progress, stop=_stop(entry))
            return _compare(entry, result, result.run.environment()[-1], others)
    except LabError as error:  # such as an optimizer whose package is not installed
        return Outcome(entry, "not compared", str(error))
    except (MemoryError, RuntimeError, OverflowError) as error:  # a spec that no machine can train, or not this one
        reason = str(error).partition("\n")[0] or "not enough memory"
        return Outcome(entry, "not compared", f"cannot be trained here: {reason}")
    finally:
        torch.set_num_threads(before)


def _threads(entry: Entry) -> int:
    threads = entry.environment[-1].get("threads")
    return min(threads, os.cpu_count() or 1) if isinstance(threads, int) and threads >= 1 else 1


def _stop(entry: Entry) -> Callable[[], bool] | None:
    """Ends a run that should have diverged. Other rounding may let it diverge later, but not so much later."""
    if entry.state != "diverged":
        return None
    steps = itertools.count(1)
    return lambda: next(steps) > 2 * entry.step + 100


def _compare(entry: Entry, result: Result, here: dict[str, Any], others: Iterable[Entry]) -> Outcome:
    other = [key for key in (*DECISIVE, "data") if any(session.get(key) != here[key] for session in entry.environment)]
    if "data" in other:
        return Outcome(entry, "not compared", f"trained on other data ({entry.environment[-1].get('data')})")
    if entry.state != result.state:
        return Outcome(entry, "differs", f"{entry.state} in the ledger, {result.state} here")
    if _numbers(entry.metrics) == _numbers(result.metrics) and entry.step == result.details["step"]:
        return Outcome(entry, "identical", "bit for bit")
    if not other:
        return Outcome(entry, "differs", f"same machine, {_first_difference(entry, result)}")
    compared = list(_epochs(entry, result, list(others)))
    where = f"another {' and '.join(other)}"
    far = [text for text, near in compared if not near]
    return Outcome(entry, "differs" if far else "close", "; ".join([where, *(far or [text for text, _ in compared])]))


def _tolerance(entry: Entry, key: str, others: Iterable[Entry]) -> float:
    """How much ``key`` of the last epoch may differ: in points, or as a share of perplexity.

    The spread is that over the seeds of the entry's settings; if the ledger has fewer than three, the largest one of
    the settings of its network.
    """
    seeds: dict[RunSpec, list[float]] = defaultdict(list)
    for each in others:
        if each.file == entry.file and each.state == "finished":
            seeds[replace(each.spec, seed=0)].append(each.metrics[-1][key])
    own = seeds.get(replace(entry.spec, seed=0), [])
    groups = [values for values in ([own] if len(own) > 2 else seeds.values()) if len(values) > 2]
    if entry.spec.text:
        spreads = [SPREADS * statistics.stdev(values) / statistics.fmean(values) for values in groups]
        return min(MOST_RATIO, max([RATIO, *spreads]))
    return min(MOST_POINTS, max([POINTS, *(SPREADS * 100 * statistics.stdev(values) for values in groups)]))


def _numbers(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in metrics]


def _first_difference(entry: Entry, result: Result) -> str:
    for old, new in zip(_numbers(entry.metrics), _numbers(result.metrics), strict=False):
        for key in old:
            if old[key] != new.get(key):
                return f"epoch {old['epoch']}: {key} {old[key]} in the ledger, {new.get(key)} here"
    return f"{len(entry.metrics)} epochs in the ledger, {len(result.metrics)} here"


def _epochs(entry: Entry, result: Result, others: Iterable[Entry]) -> Iterator[tuple[str, bool]]:
    """Of the first and the last epoch that both have, for each split: the results as text, and whether they agree."""
    epochs = min(len(entry.metrics), len(result.metrics))
    for place in sorted({0, epochs - 1} if epochs else ()):
        for split in ("train", "test"):
            key = f"{split}_{entry.spec.metric}"
            old, new = entry.metrics[place][key], result.metrics[place][key]
            base = RATIO if entry.spec.text else POINTS
            tolerance = _tolerance(entry, key, others) if place == epochs - 1 else base
            distance = abs(new - old) / old if entry.spec.text else 100 * abs(new - old)
            within = f"{tolerance:.0%}" if entry.spec.text else f"{tolerance:.1f} points"
            text = f"epoch {place + 1}: {key} {old:.4g} in the ledger, {new:.4g} here (tolerance {within})"
            yield text, distance <= tolerance
