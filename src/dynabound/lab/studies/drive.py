"""Check that a study has its data, then run it to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dynabound.lab.engines.base import Engine, Event
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.search import Loss
from dynabound.lab.tasks import catalog, datasets


def complete(
    source: Callable[[Loss], Sequence[RunSpec]],
    store: Store,
    engine: Engine,
    begin: Callable[[list[RunSpec]], None],
    listen: Callable[[Event], None],
) -> None:
    """Execute the runs that ``source`` returns until it returns no new ones; no run is submitted twice.

    ``source`` is called again whenever a worker would be idle, not only when all runs have ended: searches advance
    while other runs are still being executed.
    """
    submitted: set[str] = set()
    over: set[str] = set()
    runs = StoredRuns(store)
    loss = runs.losses(over)

    def submit_more() -> bool:
        specs = {
            spec.name: spec
            for spec in source(loss)
            if spec.name not in submitted and runs.read(spec).state not in ENDED
        }
        submitted.update(specs)
        if specs:
            begin(list(specs.values()))
            engine.submit(specs.values(), store)
        return bool(specs)

    while submit_more():
        for event in engine.events():
            listen(event)
            if event.last:
                over.add(event.run)
                if len(submitted) - len(over) < engine.jobs:
                    submit_more()


def check_data(specs: Iterable[RunSpec], data_dir: str | Path | None) -> None:
    """Raise LabError, before anything is run, if a data set is missing."""
    missing = [
        task
        for task in dict.fromkeys(spec.task for spec in specs)
        if task in catalog.SOURCES and datasets.locate(task, data_dir) is None
    ]
    if missing:
        names = " ".join(missing)
        raise LabError(
            f"{', '.join(missing)}: not found; run: dynabound data fetch {names}, or give --data-dir DIR, "
            "or use --scale demo"
        )
