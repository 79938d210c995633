"""The Ray engine's driver, with a fake Ray that executes every task at once, in this process."""

import errno
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dynabound.lab.engines import ray as ray_driver
from dynabound.lab.engines.ray import RayEngine
from dynabound.lab.errors import LabError
from dynabound.lab.store import Run, Store
from dynabound.lab.train import train
from helpers import tiny_studies as cases

exceptions = pytest.importorskip("ray.exceptions", reason="needs Ray: pip install 'dynabound[ray]'")


class Ref:
    """The result of a task."""

    def __init__(self, value):
        self.value = value


class Actor:
    """An actor whose methods are called at once."""

    def __init__(self, instance):
        self.instance = instance

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self.instance, name))


class FakeRay:
    """What the driver and the tasks use of the module ``ray``."""

    exceptions = exceptions
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    )

    def __init__(self):
        self.sent = []  # all messages
        self.crashing = False

    def remote(self, actor=None, **_):
        if actor is None:
            return lambda function: SimpleNamespace(remote=lambda *arguments: Ref(function(*arguments)))
        queue = actor()
        put = queue.put
        queue.put = lambda message: (self.sent.append(dict(message)) if message else None) or put(message)
        self.queue = queue
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: Actor(queue)))

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "node")

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 1}}]

    def get(self, value):
        if isinstance(value, Ref) and self.crashing:
            raise exceptions.WorkerCrashedError
        return value.value if isinstance(value, Ref) else value

    def put(self, value):
        return value

    def wait(self, refs, timeout):
        return refs, []

    def cancel(self, ref, force):
        assert isinstance(ref, Ref)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_driver, "connected", lambda address, modules: nullcontext(ray))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return ray


@pytest.fixture(params=["shared", "not shared"])
def sharing(request, monkeypatch):
    """Whether tasks see the driver's store."""
    if request.param == "not shared":
        cases.hide_probe(monkeypatch)
    return request.param


@pytest.fixture
def unshared(monkeypatch):
    cases.hide_probe(monkeypatch)


def run(specs, store):
    """The last event of each run."""
    with RayEngine() as engine:
        return {event.run: event for event in cases.execute(engine, specs, store)}


def train_until(spec, store, epochs):
    """Train a run here, and interrupt it."""
    seen = []
    train(spec, store, progress=lambda p: seen.append(p.epoch), stop=lambda: bool(seen) and seen[-1] > epochs)
    assert store.run(spec).status()["state"] == "stopped"


def checkpoints(run):
    return sorted(path.name for path in run.folder.glob("checkpoint-*"))


def test_a_run_that_fails_before_it_begins_has_no_session(fake, unshared, tmp_path, monkeypatch):
    def fail(*_):
        raise LabError("there is no data")

    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    with monkeypatch.context() as patch:
        patch.setattr(ray_driver, "ensure_downloaded", fail)
        assert run([spec], store)[spec.name].error == "there is no data"
    assert store.run(spec).status() == {"state": "failed", "error": "there is no data"}
    assert store.run(spec).spec() == spec
    assert store.run(spec).environment() == []
    assert run([spec], store)[spec.name].state == "finished"
    assert [session["shared"] for session in store.run(spec).environment()] == [False]


def test_a_run_resumes_from_the_drivers_checkpoint_on_any_node(fake, sharing, tmp_path):
    store, whole, (spec,) = Store(tmp_path / "runs"), Store(tmp_path / "whole"), cases.specs(1, epochs=6)
    train_until(spec, store, 4)
    before = store.run(spec).load_checkpoint()["epoch"]
    assert run([spec], store)[spec.name].state == "finished"
    epochs = [message["progress"]["epoch"] for message in fake.sent if message["progress"]]
    assert min(epochs) >= before > 1, "it started over"
    train(spec, whole)
    assert cases.numbers(store) == cases.numbers(whole)
    assert checkpoints(store.run(spec)) == checkpoints(whole.run(spec)), "old ones are left"


def test_sent_checkpoints_replace_the_existing_ones(tmp_path):
    for old in ("checkpoint-000000001.dcp/.metadata", "checkpoint-000000002.pt", "checkpoint-000000003.pt"):
        (tmp_path / old).parent.mkdir(exist_ok=True)
        (tmp_path / old).touch()
    ray_driver.unpack({"metrics.jsonl": b""}, tmp_path)
    assert len(checkpoints(Run(tmp_path))) == 3, "nothing replaces them"
    new = {"checkpoint-000000003.pt": b"3", "checkpoint-000000004.dcp/.metadata": b"4", "status.json": b"{}"}
    ray_driver.unpack(new, tmp_path)
    assert checkpoints(Run(tmp_path)) == ["checkpoint-000000003.pt", "checkpoint-000000004.dcp"]
    assert ray_driver.pack(tmp_path) == {**new, "metrics.jsonl": b""}


@pytest.mark.parametrize("part", ["unpack", "begin"])
def test_a_run_that_cannot_be_written_fails_alone(fake, unshared, tmp_path, monkeypatch, part):
    store, (bad, *good) = Store(tmp_path / "runs"), cases.specs(3)
    place = ray_driver if part == "unpack" else Run
    real = getattr(place, part)

    def full(*arguments):
        folder = arguments[1] if part == "unpack" else arguments[0].folder
        if folder == store.run(bad).folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    monkeypatch.setattr(place, part, full)
    last = run([bad, *good], store)
    assert {name: event.state for name, event in last.items()} == {
        bad.name: "failed", **{spec.name: "finished" for spec in good}
    }  # fmt: skip
    assert os.strerror(errno.ENOSPC) in last[bad.name].error
    assert store.run(bad).status() == {"state": "failed", "error": last[bad.name].error}


def test_a_run_that_another_process_trains_fails_and_is_not_changed(fake, unshared, tmp_path):
    store, (spec, other) = Store(tmp_path / "runs"), cases.specs(2)
    with store.run(spec).lock():
        store.run(spec).begin(spec, {})
        last = run([spec, other], store)
        assert "is being trained by" in last[spec.name].error
        assert store.run(spec).status() == {"state": "running"}
    assert last[other.name].state == "finished"


def test_late_events_of_a_crashed_attempt_do_not_count_for_the_next(fake, unshared, tmp_path):
    """The messages of an attempt on a lost node may arrive when the run has been started again elsewhere."""
    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    fake.crashing = True
    with RayEngine() as engine:
        engine.submit([spec], store)
        events = engine.events()
        while next(events).state != "retried":
            pass
        fake.crashing = False
        first = [message for message in fake.sent if message["attempt"] == 1]
        stale = {**first[-1], "progress": {**first[-1]["progress"], "epoch": 99}}
        fake.queue.put(stale)
        assert all(event.progress.epoch <= spec.epochs for event in events if event.progress)
    assert store.run(spec).status()["state"] == "finished"
    assert len(store.run(spec).metrics()) == spec.epochs


def test_a_lost_ray_is_one_line_and_nothing_stays_locked(fake, tmp_path):
    def lost(stopping):
        raise exceptions.RaySystemError("the head node is gone\nand much more")

    store = Store(tmp_path / "runs")
    with RayEngine() as engine:
        fake.queue.take = lost
        engine.submit(cases.specs(1), store)
        with pytest.raises(LabError, match=r"^--engine ray: Ray is lost \(.*gone\); run the same command"):
            list(engine.events())
    assert {path.name for path in store.root.iterdir()} == {cases.specs(1)[0].name}, "the probe is left"


def test_only_runs_are_left(fake, sharing, tmp_path):
    store, (spec,) = Store(tmp_path / "runs"), cases.specs(1)
    assert run([spec], store)[spec.name].state == "finished"
    assert {path.name for path in store.root.iterdir()} == {spec.name}
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


@pytest.mark.parametrize("name", ["nomod", "", "helpers.broken", "helpers.leaves"])
def test_a_module_that_cannot_be_imported_is_one_line(name):
    with pytest.raises(LabError, match=rf"^module '{name}': cannot be imported \(.+\); install or repair it"):
        ray_driver._source_path(name)


def test_the_code_of_a_module_that_is_not_installed_is_sent():
    assert ray_driver._source_path("helpers").name == "helpers"
    assert [ray_driver._source_path(name) for name in ("sys", "json", "torch")] == [None] * 3
