"""Run folders that someone else wrote, or that lost some bits: nothing damaged is believed, nothing foreign is run."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dynabound._files import write_whole
from dynabound.cli import app
from dynabound.lab import store
from dynabound.lab.checkpoints import file
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, StoreError
from dynabound.lab.studies import plan
from dynabound.lab.train import train
from helpers.damaged_folders import as_owner

FIELDS = dict(task="digits", hidden=4, epochs=2, examples=64, batch_size=32)
SPEC = RunSpec(**FIELDS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(SPEC, Store(tmp_path_factory.mktemp("finished"))).run


@pytest.fixture
def copy(finished, tmp_path):
    """A finished run in a store of its own, to be damaged."""
    shutil.copytree(finished.folder, tmp_path / finished.name)
    return Store(tmp_path).run(SPEC)


OTHERS = {
    "seed": dict(seed=1),
    "lr": dict(lr=0.5),
    "optimizer": dict(optimizer="adam"),
    "batch size": dict(batch_size=16),
    "architecture": dict(hidden=5),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_runs_checkpoint_is_refused(change, tmp_path):
    asked = iter(range(3))
    other = train(
        RunSpec(**{**FIELDS, **change}), Store(tmp_path / "other"), stop=lambda: next(asked, None) is None
    ).run
    run = Store(tmp_path / "mine").run(SPEC)
    run.folder.mkdir(parents=True)
    for path in other.folder.glob("checkpoint-*"):
        (run.folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match=f"belongs to run {other.name}, not to {SPEC.name}.*runs remove"):
        train(SPEC, Store(tmp_path / "mine"))


def nameless(spec, root):
    """A stopped run whose checkpoint does not name it, as those of version 0.1: the run, the path and the state."""
    run = train(spec, Store(root), stop=lambda: True).run
    (path,) = run.folder.glob("checkpoint-*.pt")
    state = file.read(path).state
    del state["run"]
    file.write(path, state)
    return run, path, state


@pytest.mark.parametrize("named", [True, False])
def test_metrics_and_environment_of_another_run_are_refused(named, copy, tmp_path, monkeypatch):
    """Unless they were written before checksums included the run's name."""
    if not named:
        plain = store.signed
        monkeypatch.setattr(store, "signed", lambda fields, run="": plain(fields))
    other = train(RunSpec(**FIELDS, seed=1), Store(tmp_path / "other")).run
    own = copy.metrics()
    copy.write_status("running")  # as a killed process leaves it
    for name in ("metrics.jsonl", "environment.json"):
        (copy.folder / name).write_bytes((other.folder / name).read_bytes())
    assert copy.metrics() == (own if named else other.metrics())
    assert copy.environment() == ([] if named else other.environment())


def test_an_old_checkpoint_of_another_architecture_is_one_line(tmp_path):
    run, path, state = nameless(SPEC, tmp_path)
    (run.folder / "environment.json").unlink()
    state["model"]["hidden.weight"] = torch.zeros(7, 64)
    file.write(path, state)
    with pytest.raises(StoreError, match=r"does not fit its spec .*runs remove"):
        train(SPEC, Store(tmp_path))


@pytest.mark.parametrize("version", ["0.1.0", None, "0.2.0"])
def test_a_checkpoint_without_a_name_is_used_by_runs_of_version_0_1_alone(version, tmp_path):
    _, path, _ = nameless(RunSpec(**FIELDS, seed=1), tmp_path / "other")
    mine = Store(tmp_path).run(SPEC)
    mine.folder.mkdir()
    for each in (path, file.checksum_path(path)):
        (mine.folder / each.name).write_bytes(each.read_bytes())
    if version:
        (mine.folder / "environment.json").write_text(json.dumps([{"dynabound": version}]))
    if version == "0.2.0":
        with pytest.raises(StoreError, match=r"does not fit its spec \(it names no run.*runs remove"):
            train(SPEC, Store(tmp_path))
    else:
        assert train(SPEC, Store(tmp_path)).state == "finished"


@pytest.mark.parametrize(("state", "epochs"), [("finished", 0), ("finished", 1), ("diverged", 2)])
def test_an_ended_run_with_another_number_of_epochs_is_damaged_and_trained_again(state, epochs, copy, finished):
    path = copy.folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:epochs]))
    (copy.folder / "status.json").write_text(json.dumps({"state": state}))
    (checkpoint,) = copy.folder.glob("checkpoint-*.pt")
    checkpoint.unlink()
    with pytest.raises(StoreError, match=r"metrics.jsonl: is damaged.*runs remove"):
        copy.metrics()
    answer = CliRunner().invoke(app, ["runs", "--json", f"--out={copy.folder.parent}"])
    assert json.loads(answer.stdout)[0]["state"] == "damaged"
    assert plan.StoredRuns(Store(copy.folder.parent)).read(SPEC).state == "failed"
    result = train(SPEC, Store(copy.folder.parent))
    assert [line["test_loss"] for line in result.metrics] == [line["test_loss"] for line in finished.metrics()]


@pytest.mark.parametrize("key", ["train_accuracy", "test_accuracy"])
@pytest.mark.parametrize("lost", [True, False], ids=["without", "null"])
def test_metrics_without_an_accuracy_come_from_the_checkpoint(key, lost, copy, finished):
    """Version 0.1 wrote no checksums."""
    lines = [
        {k: None if k == key else v for k, v in line.items() if k != key or not lost} for line in finished.metrics()
    ]
    (copy.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (copy.folder / "status.json").write_text('{"state": "finished"}')
    assert copy.metrics() == plan.StoredRuns(Store(copy.folder.parent)).read(SPEC).metrics == finished.metrics()
    assert CliRunner().invoke(app, ["runs", "show", copy.name, f"--out={copy.folder.parent}"]).exit_code == 0


def test_a_checkpoint_beyond_its_metrics_is_damaged(tmp_path, finished, caplog):
    run = train(SPEC, Store(tmp_path), stop=lambda: True).run
    (path,) = run.folder.glob("checkpoint-*.pt")
    file.write(path, {**file.read(path).state, "epoch": 99})
    result = train(SPEC, Store(tmp_path))
    assert "is damaged (it is not the state of a run)" in caplog.text
    assert [line["test_loss"] for line in result.metrics] == [line["test_loss"] for line in finished.metrics()]


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "environment.json"])
def test_no_flipped_bit_is_believed(name, copy, finished):
    """Every value is as it was, or the file counts as damaged."""
    expected = {"metrics": finished.metrics(), "status": finished.status(), "environment": finished.environment()}
    path, rng = copy.folder / name, random.Random(0)
    contents = path.read_bytes()
    for _ in range(150):
        place, bit = rng.randrange(len(contents)), 1 << rng.randrange(8)
        path.write_bytes(contents[:place] + bytes([contents[place] ^ bit]) + contents[place + 1 :])
        assert copy.metrics() == expected["metrics"]  # from the file, or from the checkpoint
        assert copy.status() == expected["status"] or copy.status()["state"] == "damaged"
        assert copy.environment() in (expected["environment"], [])
    path.write_bytes(contents)
    assert copy.status() == expected["status"]


SHAPES = {
    "no state": b"{}",
    "list": b"[1, 2]",
    "number": b"7",
    "long number": b'{"state": ' + b"9" * 5000 + b"}",
    "nesting": b"[" * 100_000,
    "other type": b'{"state": "finished", "epochs": "two"}',
    "no text": b'{"state": "failed", "error": [1]}',
    "unknown state": b'{"state": "winning"}',
}


@pytest.mark.parametrize("contents", SHAPES.values(), ids=SHAPES)
def test_json_of_another_shape_is_damage_and_training_repairs_it(contents, copy, finished):
    for name in ("status.json", "environment.json", "metrics.jsonl"):
        (copy.folder / name).write_bytes(contents)
    status = copy.status()
    assert status["state"] == "damaged"
    assert f"dynabound train --resume {SPEC.name}" in status["error"]
    assert copy.environment() == []
    result = train(SPEC, Store(copy.folder.parent))
    assert [line["test_loss"] for line in result.metrics] == [line["test_loss"] for line in finished.metrics()]
    assert copy.status()["state"] == "finished"


def test_a_link_to_itself_does_not_hide_the_others(copy):
    root = copy.folder.parent
    before = [run.name for run in Store(root).runs()]
    (root / "circle").symlink_to("circle")
    assert [run.name for run in Store(root).runs()] == before


@pytest.mark.parametrize("name", ["spec.json", "status.json", "metrics.jsonl"])
def test_a_file_larger_than_the_memory_is_not_read(name, copy):
    os.truncate(copy.folder / name, 1 << 40)
    answer = CliRunner().invoke(app, ["runs", f"--out={copy.folder.parent}"])
    assert answer.exit_code == 0, answer.output
    assert copy.name in answer.stdout


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_larger_than_the_memory_does_not_hide_other_runs(known, copy, monkeypatch):
    def read(*_, **__):
        raise MemoryError

    other = train(RunSpec(**FIELDS, seed=1), Store(copy.folder.parent)).run
    (path,) = copy.folder.glob("checkpoint-*.pt")
    os.truncate(path, 1 << 42)
    (copy.folder / "metrics.jsonl").write_bytes(b"x")
    if not known:  # as where the machine cannot tell how much memory it has
        monkeypatch.setattr(file, "read_regular", read)
    answer = CliRunner().invoke(app, ["runs", "--json", f"--out={copy.folder.parent}"])
    states = {row["run"]: row["state"] for row in json.loads(answer.stdout)}
    assert states == {copy.name: "damaged", other.name: "finished"}


@pytest.mark.parametrize("name", ["spec.json", "status.json", "metrics.jsonl", "environment.json", "lock"])
def test_a_fifo_does_not_hang_a_reader(name, copy):
    (copy.folder / name).unlink()
    os.mkfifo(copy.folder / name)
    copy.status(), copy.environment(), copy.locked()
    if name == "spec.json":
        with pytest.raises(StoreError, match="not a regular file"):
            copy.spec()


def test_one_bad_folder_does_not_hide_the_others(copy):
    root = copy.folder.parent
    (root / "0123456789abcdef").mkdir()
    (root / "0123456789abcdef" / "spec.json").write_bytes(b"\xff")
    (root / "not-a-run").mkdir()
    (root / "file").write_text("")
    assert {run.name for run in Store(root).runs()} == {SPEC.name, "0123456789abcdef"}


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_the_lock_is_not_followed_through_a_link(link, tmp_path):
    victim = tmp_path / "precious"
    victim.write_text("keep me")
    run = Store(tmp_path / "runs").run(SPEC)
    run.folder.mkdir(parents=True)
    link(run.folder / "lock", victim)
    with pytest.raises(StoreError, match=r"lock: cannot be written .*delete it"):
        train(SPEC, Store(tmp_path / "runs"))
    assert victim.read_text() == "keep me"


def test_temporary_names_cannot_be_guessed_or_shared(tmp_path, monkeypatch):
    """Containers that share a folder have equal process numbers."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    names, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (names.append(str(a)), replace(a, b)))
    for _ in range(2):
        write_whole(tmp_path / "file", b"contents")
    assert len(set(names)) == 2
    assert all("1.tmp" not in Path(name).name.split(".file.")[-1].split(".")[0] for name in names)


@pytest.mark.processes
def test_training_runs_no_program_of_the_working_directory(tmp_path, monkeypatch):
    """Git runs what the configuration of a repository names, and anyone may have written that."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    subprocess.run(["git", "-C", str(tmp_path), "config", "core.fsmonitor", str(hook)], check=True)
    monkeypatch.chdir(tmp_path)
    train(SPEC, Store(tmp_path / "runs"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only root can become someone else")
def test_a_reader_without_write_permission_sees_a_running_run(tmp_path):
    run = train(SPEC, Store(tmp_path), stop=lambda: True).run
    tmp_path.chmod(0o755)
    for parent in (run.folder, tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o055)
    for path in run.folder.iterdir():
        path.chmod(0o444)
    with run.lock():
        run.write_status("running")
        (run.folder / "status.json").chmod(0o444)
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            os._exit(0 if run.status()["state"] == "running" else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("place", "mode"), [("", 0o444), (f"{SPEC.name}/spec.json", 0)], ids=["store", "spec"])
def test_what_may_not_be_read_is_an_error_with_the_remedy(place, mode, finished):
    with tempfile.TemporaryDirectory() as folder:  # not pytest's own, into which another user may not look
        root = Path(folder) / "runs"
        shutil.copytree(finished.folder, root / SPEC.name)
        (root / place).chmod(mode)
        with as_owner(Path(folder)):
            if os.geteuid() == 0:
                pytest.skip("root may read everything")
            with pytest.raises(StoreError, match=r"Permission denied.*chmod -R u\+rwX /"):
                Store(root).runs()[0].spec()


def test_readers_do_not_see_each_other_as_a_running_run(tmp_path):
    run = train(SPEC, Store(tmp_path), stop=lambda: True).run
    import fcntl

    from dynabound._files import open_regular

    other = open_regular(run.folder / "lock")  # another reader, in the middle of its look
    fcntl.flock(other, fcntl.LOCK_SH)
    assert not run.locked()
    os.close(other)


def test_equal_numbers_are_one_run_and_old_names_resolve(tmp_path):
    one, other = RunSpec("digits", opt={"final_lr": 1}), RunSpec("digits", opt={"final_lr": 1.0})
    assert one == other
    assert one.name == other.name
    assert RunSpec("digits", weight_decay=-0.0).name == RunSpec("digits", weight_decay=0).name
    old = "cb5ca2b7f2bb0da6"  # what version 0.1 called the first of them
    assert one.names == [one.name, old]
    folder = tmp_path / old
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps({**one.to_dict(), "opt": {"final_lr": 1}}))
    store = Store(tmp_path)
    assert store.run(one).name == old
    assert store.find(old).spec() == one


def test_a_linked_run_is_not_half_removed(copy, tmp_path):
    link = tmp_path / "links" / SPEC.name
    link.parent.mkdir()
    link.symlink_to(copy.folder)
    with pytest.raises(StoreError, match="is a symbolic link"):
        Store(link.parent).run(SPEC).remove()
    assert link.is_symlink()
    assert copy.status()["state"] == "finished"


def test_checkpoints_are_plain_torch_files(copy):
    (path,) = copy.folder.glob("checkpoint-*.pt")
    assert torch.load(path, weights_only=True)["step"] == 4
