"""Copy runs between a ledger and a store: published runs need not be trained again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynabound.lab.ledger import Entry, Ledger, Suggested
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import suggestions
from dynabound.lab.studies.plan import plan
from dynabound.lab.studies.recipes import Study

__all__ = ["NOT_IN_LEDGERS", "add", "published", "take"]

NOT_IN_LEDGERS = ("learning-rates", "theory")
"""Studies that a ledger cannot show: they need checkpoints, or have no runs."""


def take(studies: Sequence[Study], scale: str, store: Store, ledger: Ledger) -> int:
    """Copy the runs and suggestions that the studies still need from the ledger to ``store``; return how many runs."""
    entries, made, taken = ledger.entries(), ledger.suggestions(), 0
    for spec in suggestions.missing(studies, scale, store):
        if spec.name in made:
            suggestions.write(spec, made[spec.name].suggestion, store)
    while True:  # the runs of a search decide which ones are needed next
        lacking = {run.spec.name for run in plan(studies, scale, store) if run.state not in ENDED}
        found = [entries.pop(name) for name in sorted(lacking) if name in entries]
        if not found:
            return taken
        for entry in found:
            entry.restore(store)
        taken += len(found)


def published(studies: Sequence[Study], scale: str, store: Store) -> list[Study]:
    """The studies of which ``store`` has ended runs, without those that a ledger cannot show."""
    return [
        study
        for study in studies
        if study.name not in NOT_IN_LEDGERS and any(run.state in ENDED for run in plan([study], scale, store))
    ]


def add(studies: Sequence[Study], scale: str, store: Store, ledger: Ledger) -> int:
    """Add the ended runs of the studies, and the suggestions, to ``ledger``; return how many were new."""
    return ledger.add(_ended(studies, scale, store))


def _ended(studies: Sequence[Study], scale: str, store: Store) -> Iterator[Entry | Suggested]:
    for spec in suggestions.needed(studies, scale):
        found = suggestions.read(spec, store)
        if found:
            yield Suggested(spec, found)
    for run in plan(studies, scale, store):
        if run.state in ENDED:
            yield Entry.of(run.spec, store)
