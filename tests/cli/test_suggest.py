"""``dynabound suggest`` and ``dynabound train --suggest``."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies.suggestions import suggest_rates, with_rates

SMALL = ["digits", "--hidden=8", "--epochs=20", "--examples=320"]
SPEC = RunSpec("digits", hidden=8, epochs=20, examples=320)


@pytest.fixture(scope="module")
def found():
    return suggest_rates(SPEC)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_the_command_prints_the_numbers_and_the_command_to_train(found, tmp_path):
    shown = run("suggest", *SMALL, f"--out={tmp_path / 'new'}").stdout
    for text in (f"{found.lr:.3g}", f"{found.final_lr:.3g}", found.explanation):
        assert text in shown
    assert (tmp_path / "new" / "suggestion.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "new" / "suggestion.json").read_text())["lr"] == found.lr
    command = shlex.split(shown.splitlines()[-1])
    assert command[:3] == ["dynabound", "train", "digits"]
    run(*command[1:], "--quiet", f"--out={tmp_path / 'runs'}")
    (stored,) = Store(tmp_path / "runs").runs()
    assert stored.spec() == with_rates(SPEC, found)


def test_train_suggests_first_and_stores_the_numbers(found, tmp_path):
    arguments = ["train", *SMALL, "--suggest", f"--out={tmp_path}"]
    shown = run(*arguments).stderr
    (stored,) = Store(tmp_path).runs()
    assert stored.spec() == with_rates(SPEC, found)
    assert f"suggested: lr {stored.spec().lr}" in shown
    run(*arguments)
    assert len(Store(tmp_path).runs()) == 1, "the same command is the same run"


def test_json_has_the_trials_and_the_command():
    told = json.loads(run("suggest", *SMALL, "--steps=150", "--json").stdout)
    assert {trial["kind"] for trial in told["trials"]} <= {"lr", "final_lr", "closing", "falling"}
    told = json.loads(run("suggest", *SMALL, "--steps=150", "--finish=sgd", "--json").stdout)
    assert told["trials"][-1]["kind"] == "late"
    assert told["command"].startswith("dynabound train digits --hidden 8")
    assert told["command"].endswith("# choose --epochs so that it has 150 steps")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "--suggest", "--lr=0.1"], "leave out lr, or --suggest"),
        (["train", "digits", "--suggest", "--opt=gamma=0.1"], "leave out gamma, or --suggest"),
        (["train", "digits", "--suggest", "--optimizer=adam"], "suggestions are for adabound and amsbound"),
        (["train", "digits", "--suggest", "--opt=bounds=linear"], "opt bounds: suggestions are made with"),
        (["suggest", "digits", "--optimizer=sgd"], "suggestions are for adabound and amsbound"),
        (["suggest", "digits", "--steps=2"], "steps=2: must be"),
    ],
)
def test_what_cannot_be_suggested_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = run(*arguments, code=1).stderr.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())
