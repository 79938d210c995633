"""Two processes with half the batch each follow one process with all of it."""

import json
import os
import re
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import datasets
from dynabound.lab.train import train
from dynabound.lab.training import distributed
from dynabound.lab.training.batches import derive_seed
from dynabound.lab.training.loop import Training
from helpers import worker
from helpers.runs import assert_follows

pytestmark = pytest.mark.processes

CASES = {
    "perceptron": dict(task="digits", hidden=16, epochs=3),
    "odd batches": dict(task="digits", hidden=16, epochs=3, batch_size=33, optimizer="sgdm"),
    "lstm": dict(task="pydoc", hidden=8, examples=4000, epochs=2, dropout=0.0, optimizer="adam"),
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_two_ranks_follow_one(fields, tmp_path):
    expected = train(RunSpec(**fields), Store(tmp_path / "one")).run
    worker.train_in_ranks(fields, tmp_path / "two")
    run = Store(tmp_path / "two").run(RunSpec(**fields))
    assert run.environment()[0]["ranks"] == 2
    assert_follows(run, expected)


def test_two_ranks_stop_together_and_resume_bit_for_bit(tmp_path):
    fields = {**CASES["lstm"], "dropout": 0.3, "examples": 14_000}
    run, whole = (Store(tmp_path / name).run(RunSpec(**fields)) for name in ("pieces", "whole"))
    worker.train_in_ranks(fields, tmp_path / "whole")
    worker.train_in_ranks(fields, tmp_path / "pieces", stop_after=1)
    assert run.status() == {"state": "stopped", "step": 16}
    worker.train_in_ranks(fields, tmp_path / "pieces")
    for line, other in zip(run.metrics(), whole.metrics(), strict=True):
        times = dict(seconds=0, cpu_seconds=0)
        assert {**line, **times} == {**other, **times}
    torch.testing.assert_close(run.load_checkpoint()["model"], whole.load_checkpoint()["model"], rtol=0, atol=0)


def test_dropout_is_seeded_again_for_another_number_of_ranks():
    training = Training(RunSpec("digits", hidden=4, seed=3), datasets.load("digits"), torch.device("cpu"))
    state = {**training.state(), "step": 5}
    with torch.random.fork_rng():
        training.restore(state)
        assert torch.equal(torch.get_rng_state(), state["ranks"][0]["random"][0])
        training.restore({**state, "ranks": 2 * state["ranks"]})
        assert torch.initial_seed() == derive_seed(3, 0, 5)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda", r"device='cuda': cannot be used here \(.+\); try cpu"),
        ("cpu", r"the processes .* find each other \(.+\); start them with torchrun, or unset WORLD_SIZE"),
    ],
)
def test_a_rank_that_cannot_join_says_so_in_one_line(device, reason, monkeypatch, tmp_path):
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "99"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    result = CliRunner().invoke(app, ["train", "digits", f"--device={device}", f"--out={tmp_path}"])
    assert result.exit_code == 1
    assert re.fullmatch(f"dynabound: {reason}\n", result.stderr)
    assert not list(tmp_path.iterdir())


def test_what_an_error_refers_to_is_freed_before_the_group(monkeypatch):
    """A DistributedDataParallel that is freed later can block forever."""
    freed, destroy = [], torch.distributed.destroy_process_group

    def fail():
        model = nn.Linear(2, 2)
        weakref.finalize(model, freed.append, "model")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: (freed.append("group"), destroy()))
    with pytest.raises(RuntimeError, match="out of memory"), distributed.joined("cpu", group=True):
        fail()
    assert freed == ["model", "group"]


def test_torchrun(tmp_path):
    """The command itself, as it is written in the manual."""
    fields = CASES["perceptron"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "dynabound"]
    command = ["train", "digits", "--hidden=16", "--epochs=3", "--json", "--fsdp", f"--out={tmp_path / 'two'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run([*torchrun, *command], capture_output=True, text=True, env=environment, timeout=1800)
    assert answer.returncode == 0, answer.stderr
    (line,) = answer.stdout.splitlines()
    assert json.loads(line)["state"] == "finished"
    assert_follows(
        Store(tmp_path / "two").run(RunSpec(**fields)), train(RunSpec(**fields), Store(tmp_path / "one")).run
    )
