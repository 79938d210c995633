"""Run folders that lost some bits, or that belong to somebody else: nothing damaged is believed, no code is run."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.errors import StoreError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train
from helpers.damaged_folders import as_owner
from helpers.runs import without_seconds

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


def test_another_runs_checkpoint_is_refused(tmp_path):
    other = train(RunSpec(**FIELDS, seed=1), Store(tmp_path / "other"), stop=lambda: True).run
    run = Store(tmp_path / "mine").run(SPEC)
    run.folder.mkdir(parents=True)
    for path in other.folder.glob("checkpoint-*"):
        shutil.copy(path, run.folder)
    with pytest.raises(StoreError, match=f"belongs to run {other.name}, not to {SPEC.name}.*runs remove"):
        train(SPEC, Store(tmp_path / "mine"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json"])
def test_no_flipped_bit_becomes_a_number(name, copy, finished):
    """Every value is as it was, or the file counts as damaged."""
    metrics, status = finished.metrics(), finished.status()
    path, rng = copy.folder / name, random.Random(0)
    contents = path.read_bytes()
    for _ in range(150):
        place, bit = rng.randrange(len(contents)), 1 << rng.randrange(8)
        path.write_bytes(contents[:place] + bytes([contents[place] ^ bit]) + contents[place + 1 :])
        run = Store(copy.folder.parent).run(SPEC)
        assert run.status() == status or run.status()["state"] == "damaged"
        if run.status()["state"] != "damaged":  # otherwise nobody uses the metrics
            assert run.metrics() == metrics  # from the file, or from the checkpoint


@pytest.mark.parametrize("contents", [b"", b"{}", b"[1, 2]", b'{"state": "winning"}'])
def test_a_damaged_status_is_reported_and_training_repairs_it(contents, copy, finished):
    for name in ("status.json", "environment.json", "metrics.jsonl"):
        (copy.folder / name).write_bytes(contents)
    status = copy.status()
    assert status["state"] == "damaged"
    assert f"dynabound train --resume {SPEC.name}" in status["error"]
    result = train(SPEC, Store(copy.folder.parent))
    assert without_seconds(result.metrics) == without_seconds(finished.metrics())
    assert copy.status()["state"] == "finished"


@pytest.mark.parametrize("lost", [False, True], ids=["with its checkpoint", "without"])
def test_resuming_a_finished_run_repairs_its_metrics_and_says_so(lost, copy, finished, caplog):
    (copy.folder / "metrics.jsonl").write_bytes(b"")
    if lost:
        for path in copy.folder.glob("checkpoint-*"):
            path.unlink()
    answer = CliRunner().invoke(app, ["train", f"--resume={SPEC.name}", "--quiet", f"--out={copy.folder.parent}"])
    assert answer.exit_code == 0, answer.output
    lines = (copy.folder / "metrics.jsonl").read_text().splitlines()
    assert without_seconds(map(json.loads, lines)) == without_seconds(finished.metrics())
    assert lost or "metrics.jsonl: is damaged; the metrics come from the last checkpoint" in caplog.text
    assert len(copy.environment()) == 1 + lost


def test_one_bad_folder_does_not_hide_the_others(copy):
    root = copy.folder.parent
    (root / "0123456789abcdef").mkdir()
    (root / "0123456789abcdef" / "spec.json").write_bytes(b"\xff")
    (root / "not-a-run").mkdir()
    (root / "file").write_text("")
    assert {run.name for run in Store(root).runs()} == {SPEC.name, "0123456789abcdef"}


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
    import fcntl

    run = train(SPEC, Store(tmp_path), stop=lambda: True).run
    with (run.folder / "lock").open() as other:  # another reader, in the middle of its look
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not run.locked()
