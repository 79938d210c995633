"""Stored runs as the curves of a study: its methods, each with all its seeds."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.recipes import Row, Study, seeded
from dynabound.lab.studies.search import Loss, Search, search

__all__ = ["Curve", "Seed", "curves", "gather", "losses", "read"]


@dataclass(frozen=True)
class Seed:
    """One run as it stands."""

    spec: RunSpec
    state: str
    """As the store has it; ``new`` if it was never begun."""
    metrics: list[dict[str, Any]]
    error: str = ""

    def series(self, split: str) -> list[float]:
        """The metric, epoch by epoch: accuracy in percent, or perplexity."""
        scale = 1.0 if self.spec.text else 100.0
        return [scale * line[f"{split}_{self.spec.metric}"] for line in self.metrics]

    def reached(self, level: float) -> tuple[int, float] | None:
        """The epoch at which the test metric first was at ``level``, and the seconds until then; None: never."""
        seconds = 0.0
        for epoch, (value, line) in enumerate(zip(self.series("test"), self.metrics, strict=True), start=1):
            seconds += line["seconds"]
            if (value <= level) if self.spec.text else (value >= level):
                return epoch, seconds
        return None


@dataclass(frozen=True)
class Curve:
    """A method of a study: all its seeds, and the search that chose its step size."""

    row: Row
    spec: RunSpec
    seeds: tuple[Seed, ...]
    search: Search | None = None
    lost: tuple[Seed, ...] = ()
    """Runs of the search that failed: the winner was chosen without them."""

    @property
    def ended(self) -> bool:
        """Whether every seed finished or diverged."""
        return bool(self.seeds) and all(seed.state in ENDED for seed in self.seeds)

    @property
    def finished(self) -> list[Seed]:
        """The seeds that finished."""
        return [seed for seed in self.seeds if seed.state == "finished"]

    @property
    def diverged(self) -> bool:
        """Whether any seed diverged."""
        return any(seed.state == "diverged" for seed in self.seeds)

    def final(self, split: str = "test") -> list[float]:
        """The metric of the last epoch, of every seed that finished."""
        return [seed.series(split)[-1] for seed in self.finished]

    def best(self) -> list[float]:
        """The best test metric of any epoch, of every seed that finished."""
        choose = min if self.spec.text else max
        return [choose(seed.series("test")) for seed in self.finished]


def losses(store: Store, attempted: Container[str] | None = None) -> Loss:
    """The final training losses in ``store``; a failed run counts as not run yet if ``attempted`` lacks it."""

    def loss(spec: RunSpec) -> float | None:
        run = read(store, spec)
        if run.state == "finished":
            return float(run.metrics[-1]["train_loss"])
        given_up = run.state == "failed" and (attempted is None or spec.name in attempted)
        return math.inf if run.state == "diverged" or given_up else None

    return loss


def gather(study: Study, scale: str, store: Store, loss: Loss) -> list[tuple[Row, Search | None, list[RunSpec]]]:
    """For each row its search, if it has one, and the runs of its curve; no runs while the search goes on."""
    rows: list[tuple[Row, Search | None, list[RunSpec]]] = []
    for row in study.rows:
        spec, found = row.spec(scale), None
        if row.tuned(scale):
            found = search(spec, loss)
            if found.wanted:
                rows.append((row, found, []))
                continue
            spec = found.best or spec
        rows.append((row, found, seeded(spec, study.seeds[scale])))
    return rows


def curves(study: Study, scale: str, store: Store) -> list[Curve]:
    """The study's curves as they stand in ``store``."""
    result = []
    for row, found, specs in gather(study, scale, store, losses(store)):
        best = specs[0] if specs else (found and found.best) or row.spec(scale)
        tried = [read(store, spec) for spec, loss in found.tried if math.isinf(loss)] if found else []
        lost = tuple(seed for seed in tried if seed.state == "failed" and seed.spec not in specs)
        result.append(Curve(row, best, tuple(read(store, spec) for spec in specs), found, lost))
    return result


def read(store: Store, spec: RunSpec) -> Seed:
    """The run as it stands in ``store``; one whose metrics are lost has failed, whatever its status says."""
    run = store.run(spec)
    try:
        status = run.status()
        metrics = run.metrics() if status["state"] in ENDED else []
    except LabError as error:
        return Seed(spec, "failed", [], str(error))
    return Seed(spec, status["state"], metrics, status.get("error", ""))
