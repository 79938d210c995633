"""Studies -> runs: what is still to be run, and running it until nothing is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynabound.lab.engines.local import Engine, Event
from dynabound.lab.errors import LabError
from dynabound.lab.report.results import gather, losses, read
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.recipes import Study, seeded
from dynabound.lab.studies.search import Loss, search
from dynabound.lab.tasks import catalog, datasets

__all__ = ["Planned", "check", "complete", "plan", "tuning", "wanted"]


@dataclass(frozen=True)
class Planned:
    """A run of a study, as far as it is known."""

    study: str
    label: str
    spec: RunSpec
    state: str
    note: str = ""


def plan(studies: Iterable[Study], scale: str, store: Store) -> list[Planned]:
    """All runs, in the order of the studies. Where a search is not over, the default stands in for its winner."""
    runs, loss = [], losses(store)
    for study in studies:
        for row, found, specs in gather(study, scale, store, loss):
            label = f"{row.panel}: {row.label}"
            searched = [*(spec for spec, _ in found.tried), *found.wanted] if found else []
            runs += [Planned(study.name, label, spec, read(store, spec).state, "search") for spec in searched]
            known = {spec.name for spec in searched}
            note = "" if specs else "step size not known yet"
            for spec in specs or seeded(row.spec(scale), study.seeds[scale])[1:]:
                if spec.name not in known:
                    runs.append(Planned(study.name, label, spec, read(store, spec).state, note))
    return runs


def wanted(studies: Iterable[Study], scale: str, store: Store, loss: Loss) -> list[RunSpec]:
    """The runs that have to be made before anything more can be said."""
    specs: list[RunSpec] = []
    for study in studies:
        for _, found, runs in gather(study, scale, store, loss):
            specs += found.wanted if found and found.wanted else runs
    return specs


def complete(
    source: Callable[[Loss], Sequence[RunSpec]],
    store: Store,
    engine: Engine,
    begin: Callable[[list[RunSpec]], None],
    listen: Callable[[Event], None],
) -> None:
    """Run what ``source`` wants, and what it then wants, until it wants nothing; what fails is not tried twice.

    It is asked again whenever a worker would be idle, not only when all runs have ended: a search goes on while the
    runs of others are still being made.
    """
    asked: set[str] = set()
    over: set[str] = set()

    def more() -> list[RunSpec]:
        specs = {
            spec.name: spec
            for spec in source(losses(store, over))
            if spec.name not in asked and read(store, spec).state not in ENDED
        }
        asked.update(specs)
        if specs:
            begin(list(specs.values()))
        return list(specs.values())

    specs = more()
    while specs:
        given = len(specs)
        for event in engine.run(specs, store):
            listen(event)
            if event.state not in ("started", "running", "retried"):
                over.add(event.run)
                if len(asked) - len(over) < engine.jobs:
                    specs += more()
        specs = [spec for spec in specs[given:] if spec.name not in over] or more()


def tuning(specs: Sequence[RunSpec], seeds: int) -> Callable[[Loss], list[RunSpec]]:
    """A source for :func:`complete`: search for each spec's step size, then run the winner from ``seeds`` points."""

    def source(loss: Loss) -> list[RunSpec]:
        runs: list[RunSpec] = []
        for spec in specs:
            found = search(spec, loss)
            runs += found.wanted or (seeded(found.best, seeds) if found.best else [])
        return runs

    return source


def check(specs: Iterable[RunSpec], out: Path, data_dir: str | Path | None) -> None:
    """Raise LabError, before anything is run, if a folder cannot be written or a data set is not there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out}: cannot be made ({error.strerror}); give another --out") from None
    for folder in (out, out / "runs", out / "theory"):
        if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise LabError(f"{folder}: cannot be written; give another --out, or make it a folder that can")
    missing = [
        task
        for task in dict.fromkeys(spec.task for spec in specs)
        if task in catalog.SOURCES and datasets.locate(task, data_dir) is None
    ]
    if missing:
        names = " ".join(missing)
        raise LabError(
            f"{', '.join(missing)}: not found; run: dynabound data fetch {names}, or give --data-dir DIR, "
            "or take --scale demo"
        )
