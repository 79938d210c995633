import dataclasses
import errno
import fcntl
import json
import logging
import shlex
import shutil

import pytest
import torch

from dynabound._files import write_whole
from dynabound.lab.checkpoints import file, lock
from dynabound.lab.errors import DamagedError, LockedError, StoreError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train
from helpers import worker
from helpers.runs import DAMAGES, without_seconds

FIELDS = dict(task="digits", hidden=8, epochs=3)
SPEC = RunSpec(**FIELDS)


@pytest.fixture
def half(tmp_path):
    """A store whose run was stopped after 40 of its 69 steps, with two checkpoints, and the uninterrupted run."""
    expected = train(SPEC, Store(tmp_path / "alone"))
    asked = iter(range(39))
    result = train(SPEC, Store(tmp_path / "half"), checkpoint_steps=15, stop=lambda: next(asked, None) is None)
    assert len(list(result.run.folder.glob("checkpoint-*.pt"))) == 2
    return Store(tmp_path / "half"), expected


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_newest_checkpoint_falls_back_and_says_so(half, damage, caplog):
    store, expected = half
    newest = sorted(store.run(SPEC).folder.glob("checkpoint-*.pt"))[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    with caplog.at_level(logging.WARNING):
        first = []
        result = train(SPEC, store, progress=lambda event: first.append(event.step))
    assert f"{newest}: is damaged" in caplog.text
    assert first[0] == 31  # the checkpoint before was taken at 30
    assert without_seconds(result.metrics) == without_seconds(expected.metrics)


def test_with_no_whole_checkpoint_the_run_starts_again(half, caplog):
    store, expected = half
    for path in store.run(SPEC).folder.glob("checkpoint-*.pt"):
        path.write_bytes(b"")
    assert without_seconds(train(SPEC, store).metrics) == without_seconds(expected.metrics)
    assert caplog.text.count("is damaged") == 2


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "environment.json", "spec.json", "lock"])
@pytest.mark.parametrize("damage", [lambda body: body[:-7], lambda body: b"", lambda body: b"\xff{"])
def test_no_damaged_file_keeps_a_run_from_finishing(half, name, damage):
    store, expected = half
    path = store.run(SPEC).folder / name
    path.write_bytes(damage(path.read_bytes()))
    result = train(SPEC, store)
    assert result.state == "finished"
    assert without_seconds(result.metrics) == without_seconds(expected.metrics)
    assert store.run(SPEC).spec() == SPEC


def test_the_remedy_can_be_pasted_into_a_shell(tmp_path):
    run = Store(tmp_path / "it's mine").run(SPEC)
    command = run.remedy.partition(": ")[2]
    assert shlex.split(command) == ["dynabound", "runs", "remove", run.name, "--out", str(tmp_path / "it's mine")]


@pytest.mark.parametrize("damage", [lambda text: text[:-7], lambda text: "", lambda text: text.split("\n")[0] + "\n"])
def test_truncated_metrics_of_a_finished_run_come_from_its_checkpoint(tmp_path, damage, caplog):
    result = train(SPEC, Store(tmp_path))
    path = result.run.folder / "metrics.jsonl"
    path.write_text(damage(path.read_text()))
    assert train(SPEC, Store(tmp_path)).metrics == result.metrics
    assert "is damaged" in caplog.text
    path.write_text(damage(path.read_text()))
    for checkpoint_path in result.run.folder.glob("checkpoint-*.pt"):
        checkpoint_path.unlink()
    with pytest.raises(StoreError, match=f"metrics.jsonl: is damaged.*dynabound runs remove {SPEC.name}"):
        result.run.metrics()
    assert without_seconds(train(SPEC, Store(tmp_path)).metrics) == without_seconds(result.metrics), "not trained again"
    assert without_seconds(result.run.metrics()) == without_seconds(result.metrics)


@pytest.mark.processes
def test_two_processes_never_train_the_same_run(tmp_path):
    held, release = worker.CONTEXT.Event(), worker.CONTEXT.Event()
    other = worker.start(worker.hold_lock, FIELDS, str(tmp_path), held, release)
    assert held.wait(60)
    run = Store(tmp_path).run(SPEC)
    try:
        assert run.locked()
        with pytest.raises(StoreError, match=f"is being trained by pid {other.pid} on .* since .*; wait for it"):
            train(SPEC, Store(tmp_path))
        with pytest.raises(StoreError, match="is being trained"):
            run.remove()
        assert run.folder.exists()
    finally:
        release.set()
        other.join()
    assert not run.locked()
    assert train(SPEC, Store(tmp_path)).state == "finished"


def test_a_full_disk_does_not_keep_a_run_from_being_locked(tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    run = Store(tmp_path).run(RunSpec(**FIELDS))
    monkeypatch.setattr(lock.os, "ftruncate", no_room)
    with run.lock():
        assert (run.folder / "lock").exists()


def test_a_file_system_without_locks_is_an_error_and_not_a_lock_to_wait_for(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    run = train(SPEC, Store(tmp_path), stop=lambda: True).run
    monkeypatch.setattr(fcntl, "flock", flock)
    assert not run.locked()
    assert run.status()["state"] == "stopped"
    with pytest.raises(
        StoreError, match=r"has no file locks \(Function not implemented\); give another --out"
    ) as caught:
        train(SPEC, Store(tmp_path))
    assert not isinstance(caught.value, LockedError)


@pytest.mark.processes
def test_the_lock_of_a_dead_process_is_released(tmp_path):
    held, release = worker.CONTEXT.Event(), worker.CONTEXT.Event()
    other = worker.start(worker.hold_lock, FIELDS, str(tmp_path), held, release)
    assert held.wait(60)
    other.kill()
    other.join()
    run = Store(tmp_path).run(SPEC)
    assert f"pid {other.pid}" in (run.folder / "lock").read_text()
    assert train(SPEC, Store(tmp_path)).state == "finished"


def test_a_lock_that_was_removed_while_we_waited_is_not_a_lock(tmp_path, monkeypatch):
    """Somebody else could hold the lock of the folder that has replaced it."""
    run, acquire = Store(tmp_path).run(SPEC), lock._acquire

    def removed(handle, path):
        monkeypatch.setattr(lock, "_acquire", acquire)
        shutil.rmtree(path.parent)
        return acquire(handle, path)

    monkeypatch.setattr(lock, "_acquire", removed)
    with run.lock():
        assert lock.is_held(run.folder / "lock")


def test_states_that_other_processes_see(tmp_path):
    run = Store(tmp_path).run(SPEC)
    assert run.status() == {"state": "new"}
    seen = []
    train(SPEC, Store(tmp_path), progress=lambda _: seen.append(run.status()["state"]))
    assert set(seen) == {"running"}
    assert run.status() == {"state": "finished", "epochs": 3, "step": 69}
    run.write_status("running")  # as a killed process leaves it
    assert run.status()["state"] == "stopped"


def test_find_by_the_beginning_of_the_name(tmp_path):
    store = Store(tmp_path)
    for seed in range(17):  # two of seventeen begin with the same letter
        spec = RunSpec("digits", seed=seed)
        with store.run(spec).lock():
            store.run(spec).begin(spec, {})
    assert store.find(SPEC_0.name[:12]).spec() == SPEC_0
    assert len(store.runs()) == 17
    letters = [run.name[0] for run in store.runs()]
    twice = next(letter for letter in letters if letters.count(letter) > 1)
    with pytest.raises(StoreError, match="runs match"):
        store.find(twice)
    for name in ("zzz", ""):
        with pytest.raises(StoreError, match=r"no run matches|runs match"):
            store.find(name)
    assert Store(tmp_path / "nowhere").runs() == []


SPEC_0 = RunSpec("digits", seed=0)


def test_a_spec_in_the_wrong_folder_is_refused(tmp_path):
    run = train(SPEC, Store(tmp_path)).run
    (run.folder / "spec.json").write_text(SPEC_0.to_json())
    with pytest.raises(StoreError, match=f"is the spec of run {SPEC_0.name}, not of {SPEC.name}"):
        Store(tmp_path).find(run.name).spec()


def test_remove_deletes_the_folder(tmp_path):
    run = train(SPEC, Store(tmp_path)).run
    run.remove()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_removal_is_completed_by_the_next(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    first, second = (train(dataclasses.replace(SPEC, epochs=1, seed=seed), Store(tmp_path)).run for seed in (1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.remove()
    second.remove()
    assert not list(tmp_path.iterdir())


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_checkpoints_hold_tensors_and_numbers_and_never_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    path = tmp_path / "evil.pt"
    file.write(path, {"step": Evil()})
    with pytest.raises(DamagedError):
        file.read(path)
    assert not (tmp_path / "evil").exists()
    run = Store(tmp_path).run(SPEC)
    with run.lock(), pytest.raises(StoreError, match="holds more than tensors and numbers"):
        run.save_checkpoint({"step": 1, "optimizer": Evil()})
    assert not list(run.folder.glob("checkpoint-*"))
    state = {"step": 1, "weights": torch.randn(3), "pairs": [(1, 2.5), {"a": None}]}
    file.write(path, state)
    again = file.read(path)
    assert torch.equal(again.pop("weights"), state.pop("weights"))
    assert again == state


def test_metrics_are_strict_json(tmp_path):
    run = train(SPEC, Store(tmp_path)).run
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["epoch"] for line in lines] == [1, 2, 3]
