"""Studies and a store -> the runs that are needed, and the state of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Run, Store
from dynabound.lab.studies import suggestions
from dynabound.lab.studies.recipes import Row, Study, seeded
from dynabound.lab.studies.search import TUNE_GRIDS, Loss, Search, search

__all__ = ["Planned", "Seed", "gather", "losses", "plan", "read", "tuning", "wanted"]


@dataclass(frozen=True)
class Seed:
    """One run as it is stored."""

    spec: RunSpec
    state: str
    """The state in the store; ``new`` for a run that is not stored."""
    metrics: list[dict[str, Any]]
    error: str = ""
    cpu: str = ""
    """The CPU model it was trained on; empty if it is not known, or if there were several."""

    def series(self, split: str) -> list[float]:
        """The metric of each epoch: accuracy in percent, or perplexity."""
        scale = 1.0 if self.spec.text else 100.0
        return [scale * line[f"{split}_{self.spec.metric}"] for line in self.metrics]

    def reached(self, level: float) -> tuple[int, float] | None:
        """The first epoch whose test metric is at ``level`` or better, and the seconds until then; None: never."""
        seconds = 0.0
        for epoch, (value, line) in enumerate(zip(self.series("test"), self.metrics, strict=True), start=1):
            seconds += line["seconds"]
            if (value <= level) if self.spec.text else (value >= level):
                return epoch, seconds
        return None


_ended: dict[tuple[Path, object], Seed] = {}
"""A cache of ended runs, by folder and time of writing: a report reads each of them a dozen times."""


def read(store: Store, spec: RunSpec) -> Seed:
    """The run as it is stored; ``failed`` if its metrics are lost, whatever its status says."""
    run = store.run(spec)
    key = run.folder, run.stamp()
    found = _ended.get(key) or _read(run, spec)
    if found.state in ENDED:
        _ended[key] = found
    return found


def _read(run: Run, spec: RunSpec) -> Seed:
    try:
        status = run.status()
        metrics = run.metrics() if status["state"] in ENDED else []
        models = {str(session.get("cpu") or "") for session in run.environment()}
    except LabError as error:
        return Seed(spec, "failed", [], str(error))
    return Seed(spec, status["state"], metrics, status.get("error", ""), models.pop() if len(models) == 1 else "")


def losses(store: Store, attempted: Container[str] | None = None) -> Loss:
    """The final training losses in ``store``; a failed run that is not in ``attempted`` counts as not run yet."""

    def loss(spec: RunSpec) -> float | None:
        run = read(store, spec)
        if run.state == "finished":
            return float(run.metrics[-1]["train_loss"])
        given_up = run.state == "failed" and (attempted is None or spec.name in attempted)
        return math.inf if run.state == "diverged" or given_up else None

    return loss


def gather(
    study: Study, scale: str, store: Store, loss: Loss, assume: bool = False
) -> list[tuple[Row, Search | None, list[RunSpec]]]:
    """For each row its search, if it has one, and the runs of its curve.

    There are no runs before the search has ended, or before the step sizes have been suggested; with ``assume``,
    placeholders are returned for runs whose step sizes have not been suggested yet.
    """
    rows: list[tuple[Row, Search | None, list[RunSpec]]] = []
    for row in study.rows:
        if not row.applies(scale):
            continue
        spec, found, known = row.spec(scale), None, True
        if row.suggested(scale):
            suggested = suggestions.apply(row, scale, store)
            spec, known = suggested or suggestions.stand_in(spec), assume or suggested is not None
        elif row.tuned(scale):
            found = search(spec, loss, row.grids(scale))
            spec, known = found.best or spec, not found.wanted
        rows.append((row, found, seeded(spec, study.seed_count(row, scale)) if known else []))
    return rows


@dataclass(frozen=True)
class Planned:
    """A planned run of a study."""

    study: str
    label: str
    spec: RunSpec
    state: str
    note: str = ""


def plan(studies: Iterable[Study], scale: str, store: Store) -> list[Planned]:
    """All runs, in the order of the studies. Before a search has ended, the default step size replaces its result."""
    runs, loss = [], losses(store)
    for study in studies:
        for row, found, specs in gather(study, scale, store, loss):
            label = f"{row.panel}: {row.label}"
            searched = [*(spec for spec, _ in found.tried), *found.wanted] if found else []
            runs += [Planned(study.name, label, spec, read(store, spec).state, "search") for spec in searched]
            known = {spec.name for spec in searched}
            note = "" if specs else "step size not known yet"
            for spec in specs or _unknown_runs(study, row, scale):
                if spec.name not in known:
                    runs.append(Planned(study.name, label, spec, read(store, spec).state, note))
    return runs


def _unknown_runs(study: Study, row: Row, scale: str) -> list[RunSpec]:
    """Placeholders for runs whose step size is not known yet; a search has already run its winner's first seed."""
    seeds = study.seed_count(row, scale)
    if row.suggested(scale):
        return seeded(suggestions.stand_in(row.spec(scale)), seeds)
    return seeded(row.spec(scale), seeds)[1:]


def wanted(studies: Iterable[Study], scale: str, store: Store, loss: Loss, assume: bool = False) -> list[RunSpec]:
    """The runs whose results are needed next: those of the searches, then those of the curves. See :func:`gather`."""
    specs: list[RunSpec] = []
    for study in studies:
        for _, found, runs in gather(study, scale, store, loss, assume):
            specs += found.wanted if found and found.wanted else runs
    return specs


def tuning(specs: Sequence[RunSpec], seeds: int) -> Callable[[Loss], list[RunSpec]]:
    """As :func:`wanted` for a single search: for each spec's step size, then ``seeds`` runs of the best one."""

    def source(loss: Loss) -> list[RunSpec]:
        runs: list[RunSpec] = []
        for spec in specs:
            found = search(spec, loss, TUNE_GRIDS)
            runs += found.wanted or (seeded(found.best, seeds) if found.best else [])
        return runs

    return source
