import json
import shutil
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from dynabound._extras import pip_command
from dynabound.cli import app
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies.recipes import choose
from dynabound.lab.tasks.catalog import EMBEDDED, SOURCES

SMALL = ["train", "digits", "--hidden=8", "--epochs=2"]


@pytest.fixture
def dynabound(tmp_path, monkeypatch):
    """Run a command in a folder of its own; what it printed, after its exit code was checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    return call


def test_train_prints_epochs_and_the_result(dynabound):
    result = dynabound(*SMALL)
    lines = result.stderr.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    name = RunSpec("digits", hidden=8, epochs=2).name
    assert result.stdout.startswith(f"run {name} finished: runs/{name}\nepoch 2/2  train loss")


def test_json_is_one_line_with_the_final_metrics(dynabound, tmp_path):
    result = dynabound(
        *SMALL, "--json", "--quiet", "--out=elsewhere", "--optimizer=sgdm", "--lr=0.5", "--opt=nesterov=true"
    )
    assert result.stderr == ""
    (line,) = result.stdout.splitlines()
    answer = json.loads(line)
    run = Store(tmp_path / "elsewhere").find(answer["run"])
    assert answer["state"] == "finished"
    assert answer["test_accuracy"] == run.metrics()[-1]["test_accuracy"]
    assert (run.spec().lr, run.spec().options) == (0.5, {"nesterov": True})


def test_options_as_python_reads_them(dynabound, tmp_path):
    dynabound(*SMALL, "--opt=betas=0.8,0.9", "--opt=bounds=exponential", "--opt=final_lr=1e-1", "--quiet")
    (run,) = Store("runs").runs()
    assert run.spec().options == {"betas": (0.8, 0.9), "bounds": "exponential", "final_lr": 0.1}


def test_a_small_model_has_one_thread(dynabound, monkeypatch):
    """Two that wait for each other on a busy machine make it ten times slower."""
    used = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    dynabound(*SMALL, "--quiet")
    assert used == [1]


def test_divergence_is_no_error(dynabound):
    assert "diverged at step" in dynabound(*SMALL, "--optimizer=sgd", "--lr=1e30").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "task: is missing"),
        (["train", "digits", "--model=lstm"], "model='lstm': digits takes"),
        (["train", "digits", "--opt=gama=1"], "did you mean gamma"),
        (["train", "mnist"], "dynabound data fetch mnist"),
        (["train", "--resume=abc"], "no run matches"),
        (["train", "digits", "--out=/dev/null/x"], "cannot be written (/dev/null is not a folder)"),
        (["train", "digits", "--device=cuda:99"], "device='cuda:99'"),
        (["runs", "show", "abc"], "no run matches"),
        (["runs", "remove", "abc"], "no run matches"),
        (["data", "fetch", "digits"], "nothing to fetch"),
    ],
)
def test_mistakes_are_one_line(dynabound, arguments, message):
    result = dynabound(*arguments, code=1)
    (line,) = result.stderr.splitlines()
    assert line.startswith("dynabound: ")
    assert message in line


@pytest.mark.parametrize("option", ["--out=elsewhere", "--json", "--task=mnist"])
def test_an_option_before_the_command_is_not_ignored(dynabound, option):
    """The run to be removed would be looked for in ./runs."""
    name = option.partition("=")[0]
    assert f"{name}: must come after remove" in " ".join(
        dynabound("runs", option, "remove", "abc", code=2).stderr.split()
    )


def test_names_of_data_sets_are_checked_before_a_download(dynabound, monkeypatch):
    monkeypatch.setattr("dynabound.cli.runs.download", lambda *_: pytest.fail("downloads"))
    assert "data set 'nope': nothing to fetch" in dynabound("data", "fetch", "mnist", "nope", code=1).stderr


def test_an_empty_world_size_is_none(dynabound, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert "finished" in dynabound(*SMALL, "--quiet").stdout


def test_stored_spec_holds_on_resume(dynabound):
    dynabound(*SMALL, "--quiet")
    name = Store("runs").runs()[0].name
    assert name in dynabound("train", f"--resume={name[:6]}").stdout
    assert "leave out epochs, seed" in dynabound("train", f"--resume={name}", "--seed=1", "--epochs=3", code=1).stderr


def test_terminal_escapes_in_stored_names_are_shown_not_executed(dynabound):
    spec = RunSpec("digits", optimizer="evil\x1b[2J:Class")
    run = Store("runs").run(spec)
    with run.lock():
        run.begin(spec, {"torch": "2\x1b]0;title\x07"})
    for arguments in (["runs"], ["runs", "show", run.name], ["train", f"--resume={run.name}"]):
        result = dynabound(*arguments, code=1 if "train" in arguments else 0)
        assert "\x1b" not in result.output
        assert r"evil\x1b[2J" in result.output


def test_a_stored_module_is_imported_only_if_it_is_named(dynabound):
    options = ["--optimizer=torch.optim:RAdam", "--quiet"]
    dynabound(*SMALL, *options)
    name = Store("runs").runs()[0].name
    line = dynabound("train", f"--resume={name}", code=1).stderr
    assert "its optimizer torch.optim:RAdam would be imported and run; if you trust it, add --trust" in line
    dynabound("train", f"--resume={name}", "--optimizer=torch.optim:Adam", code=1)
    dynabound("train", f"--resume={name}", *options)
    assert "leave out seed" in dynabound("train", f"--resume={name}", *options, "--seed=1", code=1).stderr


def test_trust_imports_the_module_that_a_stored_run_names(dynabound, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import torch\nprint('imported')\nclass Mine(torch.optim.SGD): pass\n")
    spec = RunSpec("digits", hidden=8, epochs=2, optimizer="mine:Mine")
    run = Store("runs").run(spec)
    with run.lock():
        run.begin(spec, {})
    monkeypatch.syspath_prepend(tmp_path)
    planned = choose(["mnist"], "demo")[0].rows[0].spec("demo")
    for name in (run.name, planned.name):  # where report and reproduce look; the second is a forged run of the study
        shutil.copytree(run.folder, f"reproduction/runs/{name}")
    for command in ("runs", f"runs show {run.name}", "report mnist", "reproduce mnist --dry-run",
                    "reproduce mnist --plan"):  # fmt: skip
        CliRunner().invoke(app, command.split())
        assert "mine" not in sys.modules, command
    dynabound("train", f"--resume={run.name}", code=1)
    assert "mine" not in sys.modules
    assert "finished" in dynabound("train", f"--resume={run.name}", "--trust", "--quiet").stdout
    assert sys.modules.pop("mine")
    assert "--trust: is for --resume" in dynabound(*SMALL, "--trust", code=1).stderr


def test_runs_are_listed_filtered_shown_and_removed(dynabound):
    for optimizer in ("adam", "sgd"):
        dynabound(*SMALL, "--quiet", f"--optimizer={optimizer}")
    adam, sgd = (run.name for run in Store("runs").runs())
    listing = dynabound("runs").stdout
    assert adam in listing
    assert sgd in listing
    rows = json.loads(dynabound("runs", "--optimizer=sgd", "--state=finished", "--json").stdout)
    assert [row["run"] for row in rows] == [sgd]
    assert rows[0]["epoch"] == "2/2"
    assert "no matching runs" in dynabound("runs", "--task=mnist").stdout
    shown = dynabound("runs", "show", adam[:8]).stdout
    assert "optimizer adam" in shown
    assert shown.count("epoch ") == 2
    assert json.loads(dynabound("runs", "show", adam, "--json").stdout)["spec"]["optimizer"] == "adam"
    (Store("runs").find(sgd).folder / "spec.json").write_text("{")
    assert "damaged" in dynabound("runs").stdout
    dynabound("runs", "remove", adam, sgd)
    assert Store("runs").runs() == []


def test_data_list_shows_where_data_is(dynabound, tmp_path):
    (tmp_path / "data" / "ptb").mkdir(parents=True)
    (tmp_path / "data" / "ptb" / "ptb.train.txt").write_text("")
    places = json.loads(dynabound("data", "list", "--data-dir=data", "--json").stdout)
    assert places.keys() == {*EMBEDDED, *SOURCES}
    assert places["digits"] == "embedded"
    assert places["ptb"] == "data/ptb"
    assert places["cifar10"] == "missing: dynabound data fetch cifar10"
    assert "cifar10        missing" in dynabound("data", "list").stdout


def test_tensorboard_gets_every_epoch(dynabound):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    dynabound("train", "ptb", "--tensorboard", code=1)
    assert not Store("runs").root.exists(), "written before it was checked"
    dynabound(*SMALL, "--tensorboard", "--quiet")
    (run,) = Store("runs").runs()
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("test/accuracy")]
    assert logged == [(m["epoch"], pytest.approx(m["test_accuracy"])) for m in run.metrics()]


def test_live_bar_on_a_terminal(dynabound, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    shown = dynabound(*SMALL).stderr
    assert "epoch 2/2" in shown
    assert "steps/s" in shown
    assert "accuracy" in shown


def test_the_package_itself_imports_none_of_this():
    code = "import sys, dynabound; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "typer", "sklearn", "pooch", "numba", "matplotlib", "dynabound.lab"} & set(
        answer.stdout.split()
    )


def test_tensorboard_names_its_extra(dynabound, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = dynabound(*SMALL, "--tensorboard", code=1)
    assert pip_command("tensorboard") in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Store("runs").root.exists(), "written before it was checked"
