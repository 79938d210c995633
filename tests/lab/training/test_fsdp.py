"""Runs with a sharded model: what they compute, what they save, and who can resume them."""

import hashlib
import itertools
import logging
import pickle
import random

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from dynabound.lab.checkpoints import file, sharded
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train
from dynabound.lab.training import distributed
from helpers import worker
from helpers.runs import DAMAGES, assert_follows, assert_same_run

pytestmark = pytest.mark.processes

# No batch divides evenly, nor a layer by 3: of four units the third rank has none.
PERCEPTRON = dict(task="digits", hidden=4, examples=700, epochs=3, batch_size=33, rates=True)
LSTM = dict(
    task="pydoc", hidden=8, layers=2, bptt=100, examples=13_000, epochs=2, dropout=0.0, optimizer="amsbound", lr=0.01
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of a spec in one process, without interruptions."""
    store = Store(tmp_path_factory.mktemp("alone"))
    return lambda fields: train(RunSpec(**fields), store).run


SHARDED, WHOLE = True, False
HISTORIES = {
    "sharded": [(2, SHARDED), (1, SHARDED), (2, SHARDED), (3, SHARDED)],
    "both ways": [(1, WHOLE), (2, SHARDED), (3, WHOLE), (2, WHOLE)],
}
"""The number of processes of each session of a run. All but the last are stopped in the middle of an epoch."""


@pytest.mark.parametrize("fields", [PERCEPTRON, LSTM], ids=["perceptron", "lstm"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_any_number_of_ranks_follows_one_process(fields, history, alone, tmp_path):
    run, expected = Store(tmp_path).run(RunSpec(**fields)), alone(fields)
    for count, fsdp in history[:-1]:
        worker.train_in_ranks(fields, tmp_path, count, fsdp, stop_after=1)
        assert run.status()["state"] == "stopped"
    worker.train_in_ranks(fields, tmp_path, *history[-1])
    assert [(session["ranks"], session["fsdp"]) for session in run.environment()] == history
    assert_follows(run, expected)
    assert_follows_rates(run.metrics(), expected.metrics())


def assert_follows_rates(metrics, expected):
    for line, other in zip(metrics, expected, strict=True):
        assert line.keys() == other.keys()
        assert (line.get("lower"), line.get("upper")) == (other.get("lower"), other.get("upper"))
        for name, quantiles in line.get("rates", {}).items():
            assert quantiles == pytest.approx(other["rates"][name], rel=0.02)


def test_the_same_number_of_ranks_resumes_bit_for_bit(tmp_path):
    fields = {**LSTM, "dropout": 0.3}
    worker.train_in_ranks(fields, tmp_path / "whole", fsdp=True)
    worker.train_in_ranks(fields, tmp_path / "pieces", fsdp=True, stop_after=1)
    worker.train_in_ranks(fields, tmp_path / "pieces", fsdp=True)
    run, whole = (Store(tmp_path / name).run(RunSpec(**fields)) for name in ("pieces", "whole"))
    assert len(run.environment()) == 2
    assert_same_run(run, whole)


def test_batch_normalisation_follows_data_parallel(tmp_path):
    fields = dict(task="digits", model="resnet34", width=1 / 32, examples=100, epochs=2, batch_size=50)
    for fsdp in (False, True):
        worker.train_in_ranks(fields, tmp_path / str(fsdp), fsdp=fsdp)
    assert_follows(*(Store(tmp_path / str(fsdp)).run(RunSpec(**fields)) for fsdp in (True, False)))


def test_each_rank_writes_its_part(tmp_path):
    """Two files that hold half each, and a third that does not grow with the model."""
    fields = dict(task="digits", hidden=4000, epochs=1, examples=128)
    worker.train_in_ranks(fields, tmp_path, fsdp=True)
    run = Store(tmp_path).run(RunSpec(**fields))
    (folder,) = run.folder.glob("checkpoint-*")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    rest = sum(sizes.pop(name) for name in ("state.pt", "state.pt.sha256", ".metadata"))
    state = run.load_checkpoint()
    tensors = [*state["model"].values(), *(t for e in state["optimizer"]["state"].values() for t in e.values())]
    whole = sum(tensor.nbytes for tensor in tensors)
    assert sorted(sizes) == ["__0_0.distcp", "__1_0.distcp"]
    assert all(0.49 < size / whole < 0.53 for size in sizes.values())
    assert rest < whole / 50


DIGITS = dict(task="digits", hidden=8, epochs=3)


@pytest.fixture
def group():
    with distributed.joined("cpu", group=True):
        yield


@pytest.fixture
def half(tmp_path, group):
    """A sharded run that was stopped after 40 of its 69 steps, with two checkpoints, and the uninterrupted run."""
    expected = train(RunSpec(**DIGITS), Store(tmp_path / "alone"), fsdp=True)
    asked = iter(range(39))
    result = train(
        RunSpec(**DIGITS),
        Store(tmp_path / "half"),
        fsdp=True,
        checkpoint_steps=15,
        stop=lambda: next(asked, None) is None,
    )
    names = [path.name for path in sorted(result.run.folder.glob("checkpoint-*"))]
    assert names == ["checkpoint-000000030.dcp", "checkpoint-000000040.dcp"]
    return result.run, expected.run


def go_on(run):
    steps = []
    train(run.spec(), Store(run.folder.parent), fsdp=True, progress=lambda event: steps.append(event.step))
    return steps[0]


@pytest.mark.parametrize("name", ["state.pt", "__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("damage", [*DAMAGES.values(), None], ids=[*DAMAGES, "missing"])
def test_damaged_newest_checkpoint_falls_back_and_says_so(half, name, damage, caplog):
    run, expected = half
    newest = run.folder / "checkpoint-000000040.dcp"
    if damage is None:
        (newest / name).unlink()
    else:
        (newest / name).write_bytes(damage((newest / name).read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert go_on(run) == 31
    assert f"{newest}: is damaged" in caplog.text
    assert_same_run(run, expected)


def test_no_code_in_a_checkpoint_is_run(half, tmp_path):
    """Not even if the checksums fit: torch's index is a pickle, which is looked at before torch reads it."""

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    run, expected = half
    newest = run.folder / "checkpoint-000000040.dcp"
    contents = pickle.dumps(Evil())
    (newest / ".metadata").write_bytes(contents)
    state = file.read(newest / "state.pt")
    state["files"][".metadata"] = hashlib.sha256(contents).hexdigest()
    file.write(newest / "state.pt", state)
    assert go_on(run) == 31
    assert not (tmp_path / "evil").exists()
    assert_same_run(run, expected)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_checkpoint_of_the_same_step_replaces_the_last(before, after, group, tmp_path):
    """The last step of an epoch is saved before its metrics are known, and again after."""
    spec = RunSpec(**{**DIGITS, "epochs": 1})
    asked = iter(range(22))
    result = train(spec, Store(tmp_path), fsdp=before, stop=lambda: next(asked, None) is None)
    assert (result.state, result.metrics) == ("stopped", [])
    result = train(spec, Store(tmp_path), fsdp=after)
    names = [path.name for path in result.run.folder.glob("checkpoint-*") if path.suffix != ".sha256"]
    assert names == [f"checkpoint-000000023.{'dcp' if after else 'pt'}"]
    assert result.run.load_checkpoint()["metrics"] == result.metrics


def test_kills_change_no_bit(tmp_path):
    with distributed.joined("cpu", group=True):
        expected = train(RunSpec(**DIGITS), Store(tmp_path / "alone"), fsdp=True).run
    out, choose = str(tmp_path / "killed"), random.Random(0)
    for _ in range(6):
        after = choose.randint(10, 50)
        assert worker.run(worker.train_and_die, DIGITS, out, after, "file", worker.KILL, True) == -worker.KILL
    assert worker.run(worker.train_and_die, DIGITS, out, 0, "file", worker.KILL, True) == 0
    run = Store(out).run(RunSpec(**DIGITS))
    assert_same_run(run, expected)
    assert not list(run.folder.glob(".*")), "a killed writer's leftovers stay"


def test_a_rank_that_cannot_write_stops_all(tmp_path):
    """And what was saved before is kept."""
    fields = {**PERCEPTRON, "hidden": 100}
    worker.train_in_ranks(fields, tmp_path, fsdp=True, stop_after=1)
    run = Store(tmp_path).run(RunSpec(**fields))
    assert worker.in_ranks(2, worker.train_on_one_full_disk, fields, str(tmp_path), 2000) == [3, 3]
    assert run.status()["state"] == "failed"
    assert [path.name for path in run.folder.iterdir() if "checkpoint" in path.name] == ["checkpoint-000000016.dcp"]
    assert run.load_checkpoint()["step"] == 16


def test_a_rank_that_dies_while_it_writes_leaves_the_checkpoint_before(alone, tmp_path):
    worker.train_in_ranks(PERCEPTRON, tmp_path, fsdp=True, stop_after=1)
    run = Store(tmp_path).run(RunSpec(**PERCEPTRON))
    codes = worker.in_ranks(2, worker.train_and_die_in_shards, PERCEPTRON, str(tmp_path))
    assert codes[1] == -worker.KILL
    assert codes[0] not in (0, None)
    assert run.load_checkpoint()["step"] == 16
    worker.train_in_ranks(PERCEPTRON, tmp_path, fsdp=True)
    assert_follows(run, alone(PERCEPTRON))
    assert not list(run.folder.glob(".*"))


def test_a_folder_that_not_all_processes_see_is_refused(group, tmp_path, monkeypatch):
    gather = distributed.gather
    monkeypatch.setattr(distributed, "gather", lambda value: [*gather(value), ["__1_0.distcp"]])
    with pytest.raises(LabError, match=r"process 0 does not see __1_0\.distcp.*--out must be a folder that all"):
        sharded.save(tmp_path, {"weight": distribute_tensor(torch.zeros(2), init_device_mesh("cpu", (1,)))})


def stop_whole(store, *steps):
    """A run that is not sharded yet, with a checkpoint at each of these steps."""
    for before, after in itertools.pairwise((0, *steps)):
        asked = iter(range(after - before - 1))
        run = train(RunSpec(**DIGITS), store, stop=lambda asked=asked: next(asked, None) is None).run
    return run


def test_a_checkpoint_that_one_rank_cannot_read_is_used_by_none(tmp_path):
    run = stop_whole(Store(tmp_path), 3, 5)
    assert worker.in_ranks(2, worker.go_on_where_one_misreads, DIGITS, str(tmp_path)) == [0, 0]
    assert run.status() == {"state": "stopped", "step": 3 + 16}


def test_ranks_with_folders_of_their_own_are_refused(tmp_path):
    stop_whole(Store(tmp_path / "0" / "runs"), 3)
    (tmp_path / "1" / "runs").mkdir(parents=True)
    assert worker.in_ranks(2, worker.go_on_in_folders_of_their_own, DIGITS, str(tmp_path)) == [3, 3]


def test_impossible_requests_are_refused(tmp_path):
    with pytest.raises(LabError, match="there is no process group; use torchrun"):
        train(RunSpec("digits"), Store(tmp_path), fsdp=True)
    with distributed.joined("cpu", group=True), pytest.raises(LabError, match="'meta': cannot be used here"):
        train(RunSpec("digits"), Store(tmp_path), fsdp=True, device="meta")
    assert not list(tmp_path.iterdir())


def test_command_without_torchrun_is_a_group_of_one(tmp_path):
    command = ["train", "digits", "--hidden=8", "--epochs=3", "--fsdp", "--quiet", f"--out={tmp_path}"]
    assert worker.run(worker.command_and_signal, command, 30, worker.INT) == 128 + worker.INT
    run = Store(tmp_path).run(RunSpec(**DIGITS))
    assert run.load_checkpoint()["step"] == 30
    assert worker.run(worker.command_and_signal, [*command[:1], "--resume", run.name, *command[4:]], 0, worker.INT) == 0
    assert run.status()["state"] == "finished"
    assert [session["fsdp"] for session in run.environment()] == [True, True]
