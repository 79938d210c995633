"""Damaged run folders are read as far as they are whole: no traceback, no hang, no damaged value believed."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import theory as theorems
from dynabound.lab.train import train
from helpers import tiny_studies
from helpers.clean import assert_clean
from helpers.damaged_folders import as_owner, damage
from helpers.golden import GOLDEN
from helpers.runs import without_seconds
from helpers.time_limit import time_limit

STOPPED = RunSpec(**{**tiny_studies.TINY, "seed": 77, "epochs": 4})
COMMANDS = [
    "runs show {run} --out={out}/runs",
    "reproduce mnist theory --plan --out={out}",
    "reproduce mnist theory --dry-run --json --out={out}",
    "runs remove {run} --out={out}/runs",
]


@pytest.fixture(scope="module")
def whole():
    """A small reproduction, whole: its folder, the answers of the commands that read it, and how its runs end."""
    # Not pytest's own folder: another user, who may not read all files, must be able to look into this one.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        out = Path(folder) / "whole"
        study = tiny_studies.make_tiny(monkeypatch)
        monkeypatch.setitem(tiny_studies.recipes.SEEDS["demo"], "perceptron", 1)
        Path(folder).chmod(0o755)
        store = Store(out / "runs")
        tiny_studies.complete([study], store, tiny_studies.InProcess())
        ends = {run.name: without_seconds(run.metrics()) for run in store.runs()}
        asked = iter(range(6))
        train(STOPPED, store, checkpoint_steps=2, stop=lambda: next(asked, None) is None)
        ends[STOPPED.name] = without_seconds(train(STOPPED, Store(Path(folder) / "other")).metrics)
        shutil.copytree(GOLDEN / "sharded", out / "runs", dirs_exist_ok=True)  # a run whose checkpoint is a folder
        theorems.compute("theorem-3", out / "theory")
        yield out, _rows(out), _numbers(_invoke(f"report mnist theory --json --out={out}").stdout), ends


def _invoke(command):
    return CliRunner().invoke(app, command.split())


def _rows(out):
    return {row["run"]: row for row in json.loads(_invoke(f"runs --json --out={out}/runs").stdout)}


def _numbers(text):
    """What a report says of every method and theorem."""
    studies = json.loads(text.splitlines()[-1])["studies"]
    rows = [row for study in studies for table in study["tables"] for row in table["rows"]]
    checks = [check for study in studies if study["name"] == "theory" for check in study["checks"]]
    values = {row["method"]: [row[key] for key in ("final", "best", "train")] for row in rows}
    return values, {check["claim"]: check for check in checks}


def _contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture
def damaged(whole, request):
    """A damaged copy of the folder, what was done to it, the run that was hit, and what may read it."""
    seed, original = request.param, whole[0]
    out = Path(tempfile.mkdtemp(dir=original.parent)) / "out"
    shutil.copytree(original, out)
    out.parent.chmod(0o755)
    files = [path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.name != "lock"]
    how, path = damage(seed, out, sorted(path for path in files if path.parts[0] in ("runs", "theory")))
    target = path.parts[len(out.parts) + 1] if path.parts[len(out.parts)] == "runs" else STOPPED.name
    yield out, f"{how} {path}", target, as_owner(out) if how == "unreadable" else contextlib.nullcontext()
    shutil.rmtree(out.parent)


def _run(command, damaged):
    out, how, target, user = damaged
    command = command.format(out=out, run=target)
    with time_limit(f"{how}, dynabound {command}"), user:
        result = _invoke(command)
    message = f"{how}\ndynabound {command}\n{result.output}\n{result.exception!r}"
    assert_clean(result, message)
    assert result.exit_code in (0, 1), message
    return result, message


@pytest.mark.slow
@pytest.mark.parametrize("damaged", range(1000, 1120), indirect=True)
def test_the_list_has_the_values_of_before_or_says_that_there_is_damage(damaged, whole):
    out, _, target, _ = damaged
    before = None if os.geteuid() else _contents(out)
    result, message = _run("runs --json --out={out}/runs", damaged)
    rows = {row["run"]: row for row in json.loads(result.stdout)}
    for name, row in whole[1].items():
        if name != target or (name in rows and rows[name]["state"] not in ("damaged", "new", "stopped")):
            assert rows[name] == row, message
    assert before is None or _contents(out) == before, f"written: {message}"


@pytest.mark.slow
@pytest.mark.parametrize("damaged", range(2000, 2080), indirect=True)
def test_a_damaged_run_is_refused_or_ends_with_the_same_numbers(damaged, whole):
    out, _, target, _ = damaged
    result, message = _run("train --resume={run} --json --quiet --out={out}/runs", damaged)
    if result.exit_code == 0 and target in whole[3]:
        assert without_seconds(Store(out / "runs").find(target).metrics()) == whole[3][target], message


@pytest.mark.slow
@pytest.mark.parametrize("damaged", range(3000, 3080), indirect=True)
def test_every_number_of_a_report_is_as_before_or_missing(damaged, whole):
    result, message = _run("report mnist theory --json --out={out}", damaged)
    if result.exit_code == 0:
        (methods, claims), (methods_now, claims_now) = whole[2], _numbers(result.stdout)
        assert all(values in (methods[name], [None] * 3) for name, values in methods_now.items()), message
        assert claims_now.items() <= claims.items(), message


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damaged", range(4000, 4020), indirect=True)
def test_other_commands_answer_or_refuse_in_one_line(command, damaged):
    _run(command, damaged)
