"""Damaged run folders are read as far as they are whole: no traceback, no hang, no damaged value believed."""

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections import Counter
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
from helpers.damaged_folders import FORGED, as_owner, damage
from helpers.golden import GOLDEN
from helpers.runs import without_seconds
from helpers.time_limit import time_limit

STOPPED = RunSpec(**{**tiny_studies.TINY, "seed": 77, "epochs": 4})
COMMANDS = [
    "runs --out={out}/runs",
    "runs show {run} --out={out}/runs",
    "runs show {run} --json --out={out}/runs",
    "train --resume={run} --json --quiet --out={out}/runs",
    "reproduce mnist theory --plan --out={out}",
    "reproduce mnist theory --dry-run --json --out={out}",
    "report mnist theory --json --out={out}",
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


def _snapshot(folder):
    """Every file with its contents, but the locks, which say who looked last."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        contents = path.read_bytes() if stat.S_ISREG(kind) else os.readlink(path) if stat.S_ISLNK(kind) else None
        if path.name != "lock":
            found[str(path)] = (stat.S_IFMT(kind), contents)
    return found


def _check_values(out, before, how, target, message):
    """The list has the values of before, or says that there is damage; the other runs are as they were."""
    rows = _rows(out)
    for name, row in before.items():
        now = rows.get(name)
        if now == row or (name == target and (now is None or now["state"] == "damaged")):
            continue
        assert name == target, message
        if how not in FORGED:
            fewer = {"epoch": now["epoch"], "result": ""} if now["epoch"].startswith("0/") else {}
            assert {**now, "state": ""} == {**row, "state": "", **fewer}, message
            assert now["state"] in ("new", "stopped"), message


def _check_report(text, before, message):
    """Every number is as before, or missing."""
    (methods, claims), (methods_now, claims_now) = before, _numbers(text)
    for name, values in methods_now.items():
        assert values in (methods[name], [None] * 3), message
    assert claims_now.items() <= claims.items(), message


def check(seed, whole):
    original, rows, numbers, ends = whole
    out = Path(tempfile.mkdtemp(dir=original.parent)) / "out"
    try:
        shutil.copytree(original, out)
        out.parent.chmod(0o755)
        files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file())
        readable = [path for path in files if path.parts[0] == "runs" or path.suffix in (".json", ".svg", ".sha256")]
        how, path = damage(seed, out, [path for path in readable if path.parts[0] != "demo"])
        parts = path.relative_to(out).parts
        target = parts[1] if parts[0] == "runs" else STOPPED.name
        command = COMMANDS[seed % len(COMMANDS)].format(out=out, run=target)
        before = _snapshot(out)
        user = as_owner(out) if how == "unreadable" else contextlib.nullcontext()
        with time_limit(f"{seed}: {how} {path.name}, dynabound {command}"), user:
            result = _invoke(command)
            message = f"{seed}: {how} {path}\ndynabound {command}\n{result.output}\n{result.exception!r}"
            if command.startswith("runs") and "remove" not in command:
                _check_values(out, rows, how, target, message)
        assert_clean(result, message)
        assert result.exit_code in (0, 1), message
        reads = command.startswith(("runs --", "runs show", "reproduce"))
        if result.exit_code or reads:
            assert _snapshot(out) == before, f"written: {message}"
        assert not (out / "canary").exists(), message
        if result.exit_code == 0 and how not in FORGED:
            if command.startswith("train") and target in ends:
                assert without_seconds(Store(out / "runs").find(target).metrics()) == ends[target], message
            if command.startswith("report"):
                _check_report(result.stdout, numbers, message)
        return how, "refused" if result.exit_code else "answered"
    finally:
        shutil.rmtree(out.parent)


@pytest.fixture(scope="module")
def outcomes():
    """The outcomes of the commands; ``pytest -s`` shows them."""
    counts = Counter()
    yield counts
    for how in sorted({how for how, _ in counts}):
        print(f"\n{how:13} {counts[how, 'answered']:3} answered, {counts[how, 'refused']:3} refused", end="")
    if counts:
        print(f"\n{counts.total()} damaged folders")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_four_hundred_damaged_folders(part, whole, outcomes):
    outcomes.update(check(seed, whole) for seed in range(1000 + 40 * part, 1040 + 40 * part))
