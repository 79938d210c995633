"""A run that is killed, any number of times and at any step, has the numbers of an undisturbed run."""

import random
import tempfile
from pathlib import Path

import pytest

from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train
from helpers import worker
from helpers.runs import assert_same_run

pytestmark = pytest.mark.processes

SPECS = {
    "perceptron": dict(task="digits", hidden=16, epochs=8, decay_after=4),
    "resnet": dict(
        task="digits", model="resnet34", width=1 / 32, examples=256, batch_size=16, epochs=6, optimizer="amsbound"
    ),
    "lstm": dict(task="pydoc", hidden=8, layers=2, examples=14_000, epochs=5, optimizer="adam"),
}
DEATHS = 20


@pytest.fixture(scope="module", params=SPECS)
def alone(request, tmp_path_factory):
    """A spec, and its undisturbed run."""
    spec = RunSpec(**SPECS[request.param])
    return SPECS[request.param], train(spec, Store(tmp_path_factory.mktemp("alone"))).run


def test_twenty_kills_change_no_bit(alone, tmp_path):
    fields, expected = alone
    choose = random.Random(0)
    for _ in range(DEATHS):
        where = choose.choice(["step", "file"])
        after = choose.randint(1, 9) if where == "step" else choose.randint(1, 30)
        assert worker.run(worker.train_and_die, fields, str(tmp_path), after, where, worker.KILL) == -worker.KILL
    run = Store(tmp_path).run(RunSpec(**fields))
    assert run.status()["state"] in ("stopped", "new")
    assert worker.run(worker.train_and_die, fields, str(tmp_path), 0, "step", worker.KILL) == 0
    assert_same_run(run, expected)
    assert not list(run.folder.glob(".*")), "a killed writer's leftovers stay"


def test_twenty_interrupts_change_no_bit(alone, tmp_path):
    fields, expected = alone
    run = Store(tmp_path).run(RunSpec(**fields))
    options = [f"--{key.replace('_', '-')}={value}" for key, value in fields.items() if key != "task"]
    command = ["train", fields["task"], *options, "--quiet", f"--out={tmp_path}"]
    choose = random.Random(1)
    for death in range(DEATHS):
        number = choose.choice([worker.INT, worker.TERM])
        assert worker.run(worker.command_and_signal, command, choose.randint(1, 5), number) == 128 + number
        assert run.status()["state"] == "stopped"
        command = ["train", "--resume", run.name[:8], "--quiet", f"--out={tmp_path}"] if death % 2 else command
    assert worker.run(worker.command_and_signal, command, 0, worker.INT) == 0
    assert_same_run(run, expected)


def test_a_second_signal_ends_at_once_unless_torchrun_repeats_the_first(tmp_path):
    command = ["train", "digits", "--hidden=16", "--epochs=8", "--decay-after=4", "--quiet", f"--out={tmp_path}"]
    run = Store(tmp_path).run(RunSpec(**SPECS["perceptron"]))
    assert worker.run(worker.command_and_signal, command, 3, worker.TERM, 2) == 128 + worker.TERM
    assert run.load_checkpoint() is None
    assert worker.run(worker.command_and_signal, command, 3, worker.TERM, 2, True) == 128 + worker.TERM
    assert run.load_checkpoint()["step"] == 3


def test_full_disk_loses_no_finished_work(tmp_path):
    fields = SPECS["perceptron"]
    expected = train(RunSpec(**fields), Store(tmp_path / "alone")).run
    run = Store(tmp_path).run(RunSpec(**fields))
    assert worker.run(worker.train_and_die, fields, str(tmp_path), 8, "step", worker.KILL) == -worker.KILL
    saved = sorted(path.name for path in run.folder.glob("checkpoint-*.pt"))
    assert saved
    assert worker.run(worker.train_on_full_disk, fields, str(tmp_path), 2000) == 3
    assert sorted(path.name for path in run.folder.glob("checkpoint-*.pt")) == saved
    assert run.status()["state"] == "failed"
    assert "cannot be written" in run.status()["error"]
    assert worker.run(worker.train_and_die, fields, str(tmp_path), 0, "step", worker.KILL) == 0
    assert_same_run(run, expected)


def test_read_only_folder_is_a_clear_error():
    with tempfile.TemporaryDirectory() as folder:  # not pytest's own folder, which other users cannot read
        Path(folder).chmod(0o555)
        assert worker.run(worker.train_as_nobody, SPECS["perceptron"], folder) == 3
        assert not list(Path(folder).iterdir())
