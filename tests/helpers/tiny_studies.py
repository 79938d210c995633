"""Studies small enough for tests, an engine without processes, and checks that hold for every engine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dynabound import _drawing
from dynabound.cli.output import CommandError
from dynabound.lab.engines.base import Event, record_failure
from dynabound.lab.engines.pool import LocalEngine
from dynabound.lab.ledger import TIMES
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import drive, plan, recipes
from dynabound.lab.studies.recipes import Study
from dynabound.lab.train import train

SVG_ALONE = {"svg": {"Date": None}}
TINY = dict(task="digits", hidden=4, epochs=3, examples=64, batch_size=32)


def execute(engine, specs, store: Store):
    """Submit runs and yield their events."""
    engine.submit(specs, store)
    yield from engine.events()


class InProcess:
    """An engine that trains one run after the other in this process."""

    jobs = 1

    def __init__(self) -> None:
        self.ran: list[RunSpec] = []
        self.queue: list[tuple[RunSpec, Store]] = []

    def submit(self, specs, store):
        self.queue += [(spec, store) for spec in specs]

    def events(self):
        while self.queue:
            spec, store = self.queue.pop(0)
            self.ran.append(spec)
            yield Event(spec.name, "started")
            try:
                yield Event(spec.name, train(spec, store).state)
            except RuntimeError as error:
                record_failure(store, spec, str(error))
                yield Event(spec.name, "failed", error=str(error))


def complete(studies: list[Study], store: Store, engine, listen=lambda event: None) -> None:
    source = lambda loss: plan.wanted(studies, "demo", plan.StoredRuns(store), loss)  # noqa: E731
    drive.complete(source, store, engine, lambda specs: None, listen)


def numbers(store: Store) -> dict:
    """All metrics in the store, without their times."""
    return {
        run.name: [{k: v for k, v in line.items() if k not in TIMES} for line in run.metrics()] for run in store.runs()
    }


def make_tiny(monkeypatch, name: str = "mnist") -> Study:
    """One of the paper's studies on a tiny perceptron, without a search unless the test asks for it.

    Its figures are SVG alone, as on the page: drawing takes longer than training.
    """
    monkeypatch.setattr(_drawing, "FILE_KINDS", SVG_ALONE)
    monkeypatch.setitem(recipes.WORKLOADS["demo"], "perceptron", TINY)
    monkeypatch.setitem(recipes.SEEDS["demo"], "perceptron", 3)
    monkeypatch.setitem(recipes.TUNED, "demo", ())
    monkeypatch.setattr(recipes, "SUGGESTED", ())
    return recipes.STUDIES[name]


def specs(count: int, **fields) -> list[RunSpec]:
    return [RunSpec(**{**TINY, "seed": seed, **fields}) for seed in range(count)]


def assert_added_runs_are_run(engine, store: Store) -> None:
    """Runs that are submitted while the events of others are read are executed too."""
    later, ended = specs(5)[2:], []
    for event in execute(engine, specs(2), store):
        if event.state == "finished":
            ended.append(event.run)
            engine.submit(later, store)
            later = []
    assert sorted(ended) == sorted(spec.name for spec in specs(5))


def hide_probe(monkeypatch) -> None:
    """Make Ray tasks believe that they do not see the driver's store: they look for a file that is not there."""
    monkeypatch.setattr("dynabound.lab.engines.ray.RayEngine._probe", lambda _, store: f"{store.root}/.none")


def run_and_die(root: str, after: int) -> None:
    """Execute six runs in two processes; kill this process at the ``after``-th event."""
    with LocalEngine(jobs=2) as engine:
        for number, _ in enumerate(execute(engine, specs(6), Store(root)), start=1):
            if number == after:
                os.kill(os.getpid(), signal.SIGKILL)


def reproduce_and_die(out: str, after: int) -> None:
    """``dynabound reproduce`` of a tiny study, killed at its ``after``-th access to a file in ``out``."""
    from dynabound import cli

    _drawing.FILE_KINDS = SVG_ALONE
    recipes.WORKLOADS["demo"]["perceptron"] = TINY
    recipes.SEEDS["demo"]["perceptron"] = 3
    recipes.TUNED["demo"] = ()
    recipes.SUGGESTED = ()
    count = iter(range(1, 10**9))

    def hook(event: str, args: tuple) -> None:
        touched = event in ("open", "os.rename", "os.remove", "os.mkdir") and str(args[0]).startswith(out)
        if touched and next(count) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    cli.app(["reproduce", "mnist", "--out", out, "--jobs", "2"])


def check_as_nobody(out: str) -> None:
    """Exit with 3 if the folder, or one in it, cannot be written to and the error says so."""
    from dynabound.cli.studies import _check_folders

    if os.getuid() == 0:
        os.setuid(65534)
    try:
        _check_folders(Path(out))
    except CommandError as error:
        sys.exit(3 if "cannot be written" in str(error) and "--out" in str(error) else 4)


def forget_seconds(store: Store) -> None:
    """Set the time of every epoch to one second: it is the only thing that may differ."""
    for run in store.runs():
        metrics, status = [{**line, **dict.fromkeys(TIMES, 1.0)} for line in run.metrics()], run.status()
        with run.lock():
            run.write_metrics(metrics)
            run.end(status["state"], metrics, step=status["step"])
