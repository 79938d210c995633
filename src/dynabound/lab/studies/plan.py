"""Studies and stored runs -> the runs that are needed, and the state of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import suggestions
from dynabound.lab.studies.recipes import Row, Study, seeded
from dynabound.lab.studies.search import TUNE_GRIDS, Loss, Search, search_lr
from dynabound.lab.studies.suggestions import PendingSpec
from dynabound.lab.studies.workloads import SHORTENED
from dynabound.tuning import Suggestion


@dataclass(frozen=True)
class StoredRun:
    """One run as it is stored."""

    spec: RunSpec
    state: str
    """The state in the store; ``new`` for a run that is not stored."""
    metrics: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    environment: Sequence[Mapping[str, Any]] = ()
    """The sessions in which it was trained."""

    @property
    def cpu(self) -> str:
        """The CPU model it was trained on; empty if it is not known, or if there were several."""
        models = {str(session.get("cpu") or "") for session in self.environment}
        return models.pop() if len(models) == 1 else ""

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


class StoredRuns:
    """The runs and suggestions of a store, of a ledger, or of both. What has ended is read once: it stays as it is."""

    def __init__(
        self,
        store: Store | None = None,
        ended: Mapping[str, StoredRun] | None = None,
        suggested: Mapping[str, Suggestion] | None = None,
    ) -> None:
        self.store = store
        self._ended = dict(ended or {})
        self._suggested = dict(suggested or {})

    def read(self, spec: RunSpec) -> StoredRun:
        """The run of ``spec``; ``failed`` if its metrics are lost, whatever its status says."""
        if spec.name in self._ended:
            return self._ended[spec.name]
        found = _read(self.store, spec) if self.store else StoredRun(spec, "new")
        if found.state in ENDED:
            self._ended[spec.name] = found
        return found

    def suggestion(self, spec: RunSpec) -> Suggestion | None:
        """The suggestion for ``spec``; None if there is none yet."""
        if spec.name not in self._suggested and self.store:
            found = suggestions.read(spec, self.store)
            if found is None:
                return None
            self._suggested[spec.name] = found
        return self._suggested.get(spec.name)

    def losses(self, attempted: Container[str] | None = None) -> Loss:
        """The final training losses; a failed run that is not in ``attempted`` counts as not run yet."""

        def loss(spec: RunSpec) -> float | None:
            run = self.read(spec)
            if run.state == "finished":
                return float(run.metrics[-1]["train_loss"])
            given_up = run.state in ("failed", "damaged") and (attempted is None or spec.name in attempted)
            return math.inf if run.state == "diverged" or given_up else None

        return loss


def _read(store: Store, spec: RunSpec) -> StoredRun:
    run = store.run(spec)
    try:
        status = run.status()
        if status["state"] not in ENDED:
            return StoredRun(spec, status["state"], error=status.get("error", ""))
        return StoredRun(spec, status["state"], run.metrics(), environment=run.environment())
    except LabError as error:
        return StoredRun(spec, "failed", error=str(error))


def resolve_rows(
    study: Study, scale: str, runs: StoredRuns, loss: Loss, assume: bool = False
) -> list[tuple[Row, Search | None, list[RunSpec]]]:
    """For each row its search, if it has one, and the runs of its curve.

    There are no runs before the search has ended, or before the learning rates have been suggested; with ``assume``,
    placeholders are returned for runs whose learning rates have not been suggested yet.
    """
    rows: list[tuple[Row, Search | None, list[RunSpec]]] = []
    for row in study.rows:
        if not row.included(scale):
            continue
        spec, found, known = row.spec(scale), None, True
        if row.suggested(scale):
            suggested = suggestions.apply(row, scale, runs.suggestion(row.bounded(scale)))
            spec, known = suggested or PendingSpec(**spec.to_dict()), assume or suggested is not None
        elif row.tuned(scale):
            found = search_lr(row.searched(scale), loss, row.grids(scale))
            spec, known = row.chosen(found.best, scale) if found.best else spec, not found.wanted
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


def plan(studies: Iterable[Study], scale: str, runs: StoredRuns) -> list[Planned]:
    """All runs, in the order of the studies. Until a search has ended, its learning rate is the default one."""
    planned: list[Planned] = []
    for study in studies:
        for row, found, specs in resolve_rows(study, scale, runs, runs.losses(), assume=True):
            label = f"{row.panel}: {row.label}"
            tried = [*(spec for spec, _ in found.tried), *found.wanted] if found else []
            planned += [Planned(study.name, label, spec, runs.read(spec).state, "search") for spec in tried]
            known = {spec.name for spec in tried}
            # A search has already run its winner's first seed, unless its runs are shorter.
            done = 0 if row.workload in SHORTENED else 1
            unknown = seeded(row.spec(scale), study.seed_count(row, scale))[done:]
            for spec in specs or unknown:
                if spec.name not in known:
                    note = "learning rate not known yet" if not specs or isinstance(spec, PendingSpec) else ""
                    planned.append(Planned(study.name, label, spec, runs.read(spec).state, note))
    return planned


def wanted(studies: Iterable[Study], scale: str, runs: StoredRuns, loss: Loss, assume: bool = False) -> list[RunSpec]:
    """The runs whose results are needed next: those of the searches, then those of the curves.

    ``assume`` is that of :func:`resolve_rows`.
    """
    specs: list[RunSpec] = []
    for study in studies:
        for _, found, own in resolve_rows(study, scale, runs, loss, assume):
            specs += found.wanted if found and found.wanted else own
    return specs


def tuning(specs: Sequence[RunSpec], seeds: int) -> Callable[[Loss], list[RunSpec]]:
    """As :func:`wanted` for a single search: for each spec's learning rate, then ``seeds`` runs of the best one."""

    def source(loss: Loss) -> list[RunSpec]:
        runs: list[RunSpec] = []
        for spec in specs:
            found = search_lr(spec, loss, TUNE_GRIDS)
            runs += found.wanted or (seeded(found.best, seeds) if found.best else [])
        return runs

    return source
