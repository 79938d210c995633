"""Studies small enough to be run in tests, an engine without processes, and what holds of both engines."""

from __future__ import annotations

import os
import signal

from dynabound.lab import recipes, reproduce
from dynabound.lab.engine import Event, LocalEngine, record_failure
from dynabound.lab.recipes import Study
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train

TINY = dict(task="digits", hidden=4, epochs=3, examples=64, batch_size=32)


class InProcess:
    """An engine that runs one run after the other, here."""

    jobs = 1

    def __init__(self) -> None:
        self.ran: list[RunSpec] = []

    def run(self, specs, store):
        for spec in specs:
            self.ran.append(spec)
            yield Event(spec.name, "started")
            try:
                yield Event(spec.name, train(spec, store).state)
            except RuntimeError as error:
                record_failure(store, spec, str(error))
                yield Event(spec.name, "failed", error=str(error))


def complete(studies: list[Study], store: Store, engine, listen=lambda event: None) -> None:
    source = lambda loss: reproduce.wanted(studies, "demo", store, loss)  # noqa: E731
    reproduce.complete(source, store, engine, lambda specs: None, listen)


def numbers(store: Store) -> dict:
    """All metrics in the store, but for how long they took."""
    return {
        run.name: [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics()] for run in store.runs()
    }


def make_tiny(monkeypatch, name: str = "mnist") -> Study:
    """One of the paper's studies on a tiny perceptron, without a search unless the test asks for it."""
    monkeypatch.setitem(recipes.WORKLOADS["demo"], "perceptron", TINY)
    monkeypatch.setitem(recipes.TUNED, "demo", ())
    return recipes.STUDIES[name]


def specs(count: int, **fields) -> list[RunSpec]:
    return [RunSpec(**{**TINY, "seed": seed, **fields}) for seed in range(count)]


def run_and_die(root: str, after: int) -> None:
    """Run six runs in two processes, and be killed at the ``after``-th event."""
    with LocalEngine(jobs=2) as engine:
        for number, _ in enumerate(engine.run(specs(6), Store(root)), start=1):
            if number == after:
                os.kill(os.getpid(), signal.SIGKILL)
