"""The ledger: ended runs as plain text that a repository can keep and anyone can train again and compare.

A folder of JSON-lines files. ``SCALE-TASK-MODEL.jsonl`` has the runs of a network, ``suggestions.jsonl`` the suggested
learning rates that some of them depend on. A line is one run: its spec, state, metrics (a list per column), the
sessions it was trained in, and a checksum of these fields. Lines are sorted by the name of the run, so that additions
are small diffs.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from dynabound._files import write_whole
from dynabound.lab.errors import DamagedError, LabError, first_line
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store, parse_json, verified, with_checksum
from dynabound.lab.studies import suggestions
from dynabound.lab.studies.plan import StoredRun, StoredRuns, plan
from dynabound.lab.studies.recipes import Study
from dynabound.lab.tasks import catalog, datasets
from dynabound.lab.train import ENVIRONMENT_KEYS, Progress, Result, train
from dynabound.tuning import Suggestion

log = logging.getLogger(__name__)
_Parsed = TypeVar("_Parsed")
_SUGGESTIONS = "suggestions.jsonl"


@dataclass(frozen=True)
class Entry(StoredRun):
    """A run that has ended."""

    step: int = -1

    @property
    def file(self) -> str:
        """The name of the file that has its line."""
        spec = self.spec
        return f"{spec.scale}-{spec.task}-{spec.model}{f'-{spec.layers}' if spec.layers else ''}.jsonl"

    @classmethod
    def of(cls, spec: RunSpec, store: Store) -> Entry:
        """The entry of a run in ``store`` that has ended."""
        run = store.run(spec)
        status = run.status()
        step = status.get("step", -1)
        return cls(spec, status["state"], run.metrics(), environment=run.environment(), step=step)

    def restore(self, store: Store) -> None:
        """Write the run into ``store``, without a checkpoint."""
        run = store.run(self.spec)
        with run.lock():
            run.begin(self.spec, *self.environment, resume=False)
            run.write_metrics(self.metrics)
            run.end(self.state, self.metrics, step=self.step)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a line."""
        columns = {key: [line.get(key) for line in self.metrics] for key in (self.metrics[0] if self.metrics else ())}
        return {
            "run": self.spec.name,
            "spec": self.spec.to_dict(),
            "state": self.state,
            "step": self.step,
            "metrics": columns,
            "environment": self.environment,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Entry:
        """The entry of a line whose checksum is right; DamagedError if its run has not ended."""
        spec, columns = RunSpec.stored(fields["spec"], fields["run"]), fields["metrics"]
        metrics = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if fields["state"] not in ENDED or (fields["state"] == "finished" and len(metrics) != spec.epochs):
            raise DamagedError(f"it has {len(metrics)} of {spec.epochs} epochs and is {fields['state']}")
        if not fields["environment"]:
            raise DamagedError("it does not say what it was trained on")
        return cls(spec, fields["state"], metrics, environment=fields["environment"], step=fields["step"])


class Ledger:
    """A folder of ended runs and suggestions."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise LabError(f"{self.root}: is not a folder; a ledger is a folder of .jsonl files")

    def entries(self) -> dict[str, Entry]:
        """All runs, by name; LabError where a line is damaged."""
        paths = [path for path in sorted(self.root.glob("*.jsonl")) if path.name != _SUGGESTIONS]
        return {entry.spec.name: entry for path in paths for entry in _read(path, Entry.from_dict)}

    def suggestions(self) -> dict[str, Suggestion]:
        """All suggestions, by the name of the run with the default learning rates."""
        path = self.root / _SUGGESTIONS
        return dict(_read(path, _suggestion)) if path.exists() else {}

    def require(self) -> None:
        """Raise LabError if there is no run."""
        if all(path.name == _SUGGESTIONS for path in self.root.glob("*.jsonl")):
            raise LabError(f"{self.root}: has no runs; fill it with: dynabound reproduce --add-to {self.root}")

    def add(self, entries: Iterable[Entry], made: Mapping[RunSpec, Suggestion] | None = None) -> int:
        """Add runs and suggestions that are not in the ledger yet, and return their number; lines never change.

        An entry that could not be read again is left out with a warning: it would make the whole ledger unreadable.
        """
        known, suggested = self.entries(), self.suggestions()
        files: dict[str, dict[str, str]] = defaultdict(dict)
        for spec, found in (made or {}).items():
            if spec.name not in suggested:
                fields = {"run": spec.name, "spec": spec.to_dict(), "suggestion": found.to_dict()}
                files[_SUGGESTIONS][spec.name] = _line(fields)
        for entry in entries:
            if entry.spec.name in known:
                continue
            try:
                Entry.from_dict(entry.to_dict())
            except DamagedError as error:
                log.warning("run %s: is damaged (%s) and not added to %s", entry.spec.name, error, self.root)
                continue
            files[entry.file][entry.spec.name] = _line(entry.to_dict())
        for name, lines in files.items():
            self._append(name, lines.values())
        return sum(map(len, files.values()))

    def _append(self, name: str, lines: Iterable[str]) -> None:
        path = self.root / name
        self.root.mkdir(parents=True, exist_ok=True)
        old = path.read_text().splitlines() if path.exists() else []
        write_whole(path, "".join(f"{line}\n" for line in sorted([*old, *lines])).encode())


def _line(fields: dict[str, Any]) -> str:
    # "run" comes first: sorted lines are sorted by the names of the runs.
    return json.dumps(with_checksum(fields), separators=(",", ":"), allow_nan=False)


def _suggestion(fields: dict[str, Any]) -> tuple[str, Suggestion]:
    return RunSpec.stored(fields["spec"], fields["run"]).name, Suggestion.from_dict(fields["suggestion"])


def _read(path: Path, parse: Callable[[dict[str, Any]], _Parsed]) -> list[_Parsed]:
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(parse(verified(parse_json(line, dict))))
        except (DamagedError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise LabError(
                f"{path}, line {number}: is damaged ({error}); restore the file from its repository "
                f"(git checkout -- {path}), or delete the line"
            ) from None
    return found


NOT_IN_LEDGERS = ("learning-rates", "theory")
"""Studies that a ledger cannot show: they need checkpoints, or have no runs."""


def import_runs(studies: Sequence[Study], scale: str, store: Store, ledger: Ledger) -> int:
    """Copy the runs and suggestions that the studies still need from the ledger to ``store``; return how many runs."""
    entries, made, taken = ledger.entries(), ledger.suggestions(), 0
    for spec in suggestions.missing(studies, scale, store):
        if spec.name in made:
            suggestions.write(spec, made[spec.name], store)
    runs = StoredRuns(store)
    while True:  # the runs of a search decide which ones are needed next
        lacking = {run.spec.name for run in plan(studies, scale, runs) if run.state not in ENDED}
        found = [entries.pop(name) for name in sorted(lacking) if name in entries]
        if not found:
            return taken
        for entry in found:
            entry.restore(store)
        taken += len(found)


def available_studies(studies: Sequence[Study], scale: str, runs: StoredRuns) -> list[Study]:
    """The studies with runs that have ended, without those that a ledger cannot show."""
    return [
        study
        for study in studies
        if study.name not in NOT_IN_LEDGERS and any(run.state in ENDED for run in plan([study], scale, runs))
    ]


def add_runs(studies: Sequence[Study], scale: str, store: Store, ledger: Ledger) -> int:
    """Add the ended runs of the studies, and the suggestions, to ``ledger``; return how many were new."""
    made = {spec: suggestions.read(spec, store) for spec in suggestions.needed(studies, scale)}
    ended = [run.spec for run in plan(studies, scale, StoredRuns(store)) if run.state in ENDED]
    return ledger.add((Entry.of(spec, store) for spec in ended), {spec: found for spec, found in made.items() if found})


TIMES = ("seconds", "cpu_seconds")
"""The metrics that differ from machine to machine."""
FIRST_POINTS, LAST_POINTS = 1.0, 0.3
"""How much the first and the last epoch of a run may differ on another machine: points of accuracy, or per cent of
perplexity. The last epoch may differ by four standard deviations over the seeds of its settings, if that is more: where
training is chaotic, other rounding has the effect of another seed, but not yet in the first epoch."""


@dataclass(frozen=True)
class Outcome:
    """The result of training a run again."""

    entry: Entry
    state: str
    """``identical``, ``close``, ``differs``, or ``not compared``."""
    reason: str


def sample(entries: dict[str, Entry], number: int, seed: int) -> list[Entry]:
    """``number`` random runs, or all if there are fewer; the choice depends only on ``seed`` and the runs."""
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
    and the data are those of the entry; otherwise the first epoch must agree within FIRST_POINTS, and the last one
    within LAST_POINTS or four standard deviations over the seeds among the ``others`` of the ledger. An optimizer of
    another package is imported only if it is ``trusted``.
    """
    spec = entry.spec
    if ":" in spec.optimizer and spec.optimizer not in trusted:
        return Outcome(entry, "not compared", f"{spec.optimizer} is not one of the studies' optimizers")
    if spec.task in catalog.SOURCES and datasets.locate(spec.task, data_dir) is None:
        return Outcome(entry, "not compared", f"{spec.task} not found; dynabound data fetch {spec.task}, or --data-dir")
    before = torch.get_num_threads()
    torch.set_num_threads(min(entry.environment[-1].get("threads", 1), os.cpu_count() or 1))
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = train(spec, Store(folder), data_dir=data_dir, progress=progress, stop=_stop(entry))
            return _compare(entry, result, result.run.environment()[-1], others)
    except Exception as error:  # the package of the optimizer is not installed, its step fails, the memory is too small
        return Outcome(entry, "not compared", f"cannot be trained here: {first_line(error) or type(error).__name__}")
    finally:
        torch.set_num_threads(before)


def _stop(entry: Entry) -> Callable[[], bool] | None:
    """Ends a run that should have diverged. Other rounding may let it diverge later, but not so much later."""
    if entry.state != "diverged":
        return None
    steps = itertools.count(1)
    return lambda: next(steps) > 2 * entry.step + 100


def _compare(entry: Entry, result: Result, here: dict[str, Any], others: Iterable[Entry]) -> Outcome:
    other = [
        key
        for key in (*ENVIRONMENT_KEYS, "data")
        if any(session.get(key) != here[key] for session in entry.environment)
    ]
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
    """How much ``key`` of the last epoch may differ, in points or per cent.

    The spread is that over the seeds of the entry's settings; if the ledger has fewer than three, the largest one of
    the settings of its network.
    """
    seeds: dict[RunSpec, list[float]] = defaultdict(list)
    for each in others:
        if each.file == entry.file and each.state == "finished":
            seeds[replace(each.spec, seed=0)].append(each.metrics[-1][key])
    own = seeds.get(replace(entry.spec, seed=0), [])
    groups = [values for values in ([own] if len(own) > 2 else seeds.values()) if len(values) > 2]
    spreads = [
        100 * statistics.stdev(values) / (statistics.fmean(values) if entry.spec.text else 1) for values in groups
    ]
    return max([LAST_POINTS, *(4 * spread for spread in spreads)])


def _numbers(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in metrics]


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
            tolerance = _tolerance(entry, key, others) if place == epochs - 1 else FIRST_POINTS
            distance = 100 * abs(new - old) / (old if entry.spec.text else 1)
            within = f"{tolerance:.1f} {'%' if entry.spec.text else 'points'}"
            text = f"epoch {place + 1}: {key} {old:.4g} in the ledger, {new:.4g} here (tolerance {within})"
            yield text, distance <= tolerance
