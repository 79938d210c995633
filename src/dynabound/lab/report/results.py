"""Stored runs as the curves of a study: its methods, each with all its seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.plan import StoredRun, StoredRuns, resolve_rows
from dynabound.lab.studies.recipes import Row, Study
from dynabound.lab.studies.search import Search, runs_to
from dynabound.lab.studies.workloads import FIXED
from dynabound.tuning import Suggestion

__all__ = ["Curve", "curves"]


@dataclass(frozen=True)
class Curve:
    """A method of a study: all its seeds, and the search that chose its step size."""

    row: Row
    spec: RunSpec
    seeds: tuple[StoredRun, ...]
    search: Search | None = None
    lost: tuple[StoredRun, ...] = ()
    """Runs of the search that failed: the winner was chosen without them."""
    suggestion: Suggestion | None = None
    """The suggestion that the step size comes from, if it was suggested."""

    @property
    def ended(self) -> bool:
        """Whether every seed finished or diverged."""
        return bool(self.seeds) and all(seed.state in ENDED for seed in self.seeds)

    @property
    def finished(self) -> list[StoredRun]:
        """The seeds that finished."""
        return [seed for seed in self.seeds if seed.state == "finished"]

    @property
    def diverged(self) -> bool:
        """Whether any seed diverged."""
        return any(seed.state == "diverged" for seed in self.seeds)

    @property
    def steps(self) -> int:
        """Training steps of a run that finished; 0 if none did."""
        return int(self.finished[0].metrics[-1]["step"]) if self.finished else 0

    @property
    def search_runs(self) -> int:
        """Runs of the search for the step size, here or beforehand; 0 if it was not searched for."""
        if self.search:
            return len(self.search.tried) + len(self.search.wanted)
        row, fixed = self.row, FIXED[self.spec.scale].get(self.row.workload, {})
        return runs_to(self.spec) if row.lr is None and not row.suggest and row.optimizer in fixed else 0

    def final(self, split: str = "test") -> list[float]:
        """The metric of the last epoch, of every seed that finished."""
        return [seed.series(split)[-1] for seed in self.finished]

    def best(self) -> list[float]:
        """The best test metric of any epoch, of every seed that finished."""
        choose = min if self.spec.text else max
        return [choose(seed.series("test")) for seed in self.finished]


def curves(study: Study, scale: str, store: Store) -> list[Curve]:
    """The study's curves, from the runs in ``store``."""
    result = []
    runs = StoredRuns(store)
    for row, found, specs in resolve_rows(study, scale, runs, runs.losses()):
        best = specs[0] if specs else (found and found.best) or row.spec(scale)
        tried = [runs.read(spec) for spec, loss in found.tried if math.isinf(loss)] if found else []
        lost = tuple(seed for seed in tried if seed.state in ("failed", "damaged") and seed.spec not in specs)
        suggested = runs.suggestion(row.bounded(scale)) if row.suggested(scale) else None
        result.append(Curve(row, best, tuple(runs.read(spec) for spec in specs), found, lost, suggested))
    return result
