"""What the Ray engine's driver makes of what tasks tell and return: with a Ray that runs every task here, at once."""

import errno
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from dynabound.lab.engines import ray_driver as ray_engine
from dynabound.lab.engines import ray_task
from dynabound.lab.errors import LabError
from dynabound.lab.store import Run, Store
from dynabound.lab.train import train
from helpers import tiny_studies as cases

exceptions = pytest.importorskip("ray.exceptions", reason="needs Ray: pip install 'dynabound[ray]'")


class Ref:
    """The answer of a task."""

    def __init__(self, value):
        self.value = value


class Here:
    """A Ray, its mailbox and its task."""

    exceptions = exceptions

    def __init__(self):
        self.letters = []
        self.tell = SimpleNamespace(remote=lambda letters: self.letters.extend(letters))
        self.take = SimpleNamespace(remote=lambda stopping: [self.letters.pop(0) for _ in list(self.letters)])

    def remote(self, *arguments):
        return Ref(ray_task.execute(*arguments))

    def get(self, value):
        return value.value if isinstance(value, Ref) else value

    def put(self, value):
        return value

    def wait(self, refs, timeout):
        return refs, []

    def cancel(self, ref, force):
        assert isinstance(ref, Ref)


@pytest.fixture
def here(monkeypatch, tmp_path):
    ray = Here()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return ray


def a_round(here, specs, store):
    options = {"ranks": 1, "threads": torch.get_num_threads(), "device": "cpu", "data_dir": None}
    return ray_engine._Round(here, here, here, options, store, specs)


def run(here, specs, store, token=False):
    """The last event of each run. Without the token, tasks do not see the store."""
    round = a_round(here, specs, store)
    with round.token() if token else nullcontext():
        return {event.run: event for event in round.events()}


def train_until(spec, store, epochs):
    """Train a run here, and interrupt it."""
    seen = []
    train(spec, store, progress=lambda p: seen.append(p.epoch), stop=lambda: bool(seen) and seen[-1] > epochs)
    assert store.run(spec).status()["state"] == "stopped"


def checkpoints(run):
    return sorted(path.name for path in run.folder.glob("checkpoint-*"))


def test_a_run_that_fails_before_it_begins_has_no_session(here, tmp_path, monkeypatch):
    def obtain(*_):
        raise LabError("there is no data")

    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    with monkeypatch.context() as patch:
        patch.setattr(ray_task, "obtain", obtain)
        assert run(here, [spec], store)[spec.name].error == "there is no data"
    assert store.run(spec).status() == {"state": "failed", "error": "there is no data"}
    assert store.run(spec).spec() == spec
    assert store.run(spec).environment() == []
    assert run(here, [spec], store)[spec.name].state == "finished"
    assert [session["shared"] for session in store.run(spec).environment()] == [False]


@pytest.mark.parametrize("token", [True, False])
def test_a_checkpoint_of_the_driver_is_gone_on_from_wherever_the_run_goes(here, tmp_path, token):
    store, whole, (spec,) = Store(tmp_path / "runs"), Store(tmp_path / "whole"), cases.specs(1, epochs=6)
    train_until(spec, store, 4)
    before = store.run(spec).load_checkpoint()["epoch"]
    told = []
    here.tell.remote = lambda letters: told.extend(letters)
    assert run(here, [spec], store, token)[spec.name].state == "finished"
    assert min(letter["progress"]["epoch"] for letter in told if letter["progress"]) >= before > 1, "it began anew"
    train(spec, whole)
    assert cases.numbers(store) == cases.numbers(whole)
    assert checkpoints(store.run(spec)) == checkpoints(whole.run(spec)), "old ones stay"


def test_sent_checkpoints_take_the_place_of_those_that_are_there(tmp_path):
    for old in ("checkpoint-000000001.dcp/.metadata", "checkpoint-000000002.pt", "checkpoint-000000003.pt"):
        (tmp_path / old).parent.mkdir(exist_ok=True)
        (tmp_path / old).touch()
    ray_task.unpack({"metrics.jsonl": b""}, tmp_path)
    assert len(checkpoints(Run(tmp_path))) == 3, "nothing has come in their place"
    new = {"checkpoint-000000003.pt": b"3", "checkpoint-000000004.dcp/.metadata": b"4", "status.json": b"{}"}
    ray_task.unpack(new, tmp_path)
    assert checkpoints(Run(tmp_path)) == ["checkpoint-000000003.pt", "checkpoint-000000004.dcp"]
    assert ray_task.pack(tmp_path) == {**new, "metrics.jsonl": b""}


@pytest.mark.parametrize("part", ["unpack", "begin", "write_metrics"])
def test_a_run_that_the_disk_does_not_take_fails_alone(here, tmp_path, monkeypatch, part):
    store, (bad, *good) = Store(tmp_path / "runs"), cases.specs(3)
    place = ray_engine if part == "unpack" else Run
    real = getattr(place, part)

    def full(*arguments):
        folder = arguments[1] if part == "unpack" else arguments[0].folder
        if folder == store.run(bad).folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    monkeypatch.setattr(place, part, full)
    last = run(here, [bad, *good], store)
    assert {name: event.state for name, event in last.items()} == {
        bad.name: "failed", **{spec.name: "finished" for spec in good}
    }  # fmt: skip
    assert os.strerror(errno.ENOSPC) in last[bad.name].error
    assert store.run(bad).status() == {"state": "failed", "error": last[bad.name].error}


def test_a_run_that_another_process_trains_fails_and_stays_its(here, tmp_path):
    store, (spec, other) = Store(tmp_path / "runs"), cases.specs(2)
    with store.run(spec).lock():
        store.run(spec).begin(spec, {})
        last = run(here, [spec, other], store)
        assert "is being trained by" in last[spec.name].error
        assert store.run(spec).status() == {"state": "running"}
    assert last[other.name].state == "finished"


def test_a_late_letter_of_a_run_that_was_given_up_changes_nothing(here, tmp_path):
    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    told, here.get = here.get, lambda value: crash() if isinstance(value, Ref) else value

    def crash():
        raise exceptions.WorkerCrashedError

    letters = []
    here.tell.remote = lambda new: letters.extend(new)
    round = a_round(here, [spec], store)
    assert [event.state for event in round.events()] == ["retried", "failed"]
    here.get = told
    (letter,) = [letter for letter in letters if "session" in letter][1:]
    assert list(round._read(letter)) == []
    assert store.run(spec).status()["state"] == "failed"
    assert not store.run(spec).locked()


def test_what_a_killed_process_leaves_is_deleted(here, tmp_path):
    def leave(name, age):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name / "lock", (10**9, 10**9) if age else None)

    leave("dynabound-scratch-dead", age=True)
    leave("dynabound-scratch-new", age=False)
    leave("dynabound-scratch-used", age=True)
    leave("dynabound-results", age=True)
    with Run(tmp_path / "dynabound-scratch-used").lock():
        os.utime(tmp_path / "dynabound-scratch-used" / "lock", (10**9, 10**9))
        with ray_task.held(tmp_path, "dynabound-scratch-") as mine:
            names = {path.name for path in tmp_path.iterdir()}
            assert Run(mine).locked()
    assert names == {"dynabound-scratch-new", "dynabound-scratch-used", "dynabound-results", mine.name}
    assert not mine.exists()


@pytest.mark.parametrize("token", [True, False])
def test_nothing_but_runs_stays(here, tmp_path, token):
    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    (store.root / ".seen-by-dead").mkdir(parents=True)
    (store.root / ".seen-by-dead" / "lock").touch()
    os.utime(store.root / ".seen-by-dead" / "lock", (10**9, 10**9))
    assert run(here, [spec], store, token)[spec.name].state == "finished"
    assert {path.name for path in store.root.iterdir()} == {spec.name} | (set() if token else {".seen-by-dead"})
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
