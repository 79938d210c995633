"""The commands of the ledger: reproduce --reuse and --add-to, report --results, verify."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab import ledger as ledgers
from dynabound.lab.ledger import Entry, Ledger
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, with_checksum
from dynabound.lab.studies import plan
from dynabound.lab.train import train
from helpers import tiny_studies

SPEC = RunSpec("digits", hidden=4, epochs=1, examples=64, batch_size=32)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def one(tmp_path):
    """A ledger of one run."""
    train(SPEC, Store(tmp_path / "runs"))
    ledger = Ledger(tmp_path / "results")
    ledger.add([Entry.of(SPEC, Store(tmp_path / "runs"))])
    return ledger


@pytest.fixture
def study(monkeypatch, tmp_path):
    """A folder with all runs of a tiny study, written and not trained, and a ledger of them."""
    tiny = tiny_studies.make_tiny(monkeypatch)
    trained = train(RunSpec(**tiny_studies.TINY), Store(tmp_path / "one"))
    store = Store(tmp_path / "out" / "runs")
    for planned in plan.plan([tiny], "demo", plan.StoredRuns(store)):
        environment = trained.run.environment()
        entry = Entry(planned.spec, "finished", trained.metrics, environment=environment, step=trained.details["step"])
        entry.restore(store)
    ledger = Ledger(tmp_path / "results")
    ledgers.add_runs([tiny], "demo", store, ledger)
    return ledger


def test_a_published_study_is_not_trained_again(study, tmp_path, monkeypatch):
    monkeypatch.setattr("dynabound.lab.studies.drive.complete", lambda source, store, *rest: None)
    monkeypatch.setattr("dynabound.lab.report.pages.write_html", lambda report, out: out / "report.html")
    out, more = tmp_path / "again", tmp_path / "more"
    result = run("reproduce", "mnist", "--reuse", study.root, "--add-to", more, "--out", out, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert f"taken from {study.root}: 21 runs" in result.output
    assert f"added to {more}: 21 runs and suggestions" in result.output
    assert Ledger(more).entries() == study.entries()


@pytest.mark.slow
def test_the_page_comes_from_the_ledger_and_has_its_studies_alone(study, tmp_path):
    out = tmp_path / "page"
    result = run("report", "--results", study.root, "--out", out)
    assert result.exit_code == 0, result.output
    assert "21 finished" in result.output
    assert "cifar10" not in result.output
    assert "theory" not in result.output
    assert (out / "demo" / "report.html").exists()


def test_verify_says_what_is_identical(one):
    result = run("verify", "--results", one.root)
    assert result.exit_code == 0, result.output
    assert "1 identical; bit for bit on the same machine" in result.output
    (found,) = json.loads(run("verify", "--results", one.root, "--json").stdout)
    assert (found["run"], found["outcome"]) == (SPEC.name, "identical")


def test_verify_exits_with_1_on_a_mismatch(one):
    (path,) = one.root.iterdir()
    line = json.loads(path.read_text())
    del line["sha256"]
    line["metrics"]["test_loss"][0] += 1e-9
    path.write_text(json.dumps(with_checksum(line)) + "\n")
    result = run("verify", "--results", one.root)
    assert result.exit_code == 1
    assert "differs" in result.output
    assert "test_loss" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["verify", "--results", "nowhere"],
            "nowhere: has no runs; fill it with: dynabound reproduce --add-to nowhere",
        ),
        (["report", "--results", "nowhere"], "nowhere: has no runs"),
        (["reproduce", "mnist", "--reuse", "nowhere"], "nowhere: has no runs"),
        (["report", "--markdown", "x.md"], "--markdown: needs the runs of a ledger; add --results LEDGER"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_a_damaged_ledger_is_one_line(one, tmp_path):
    (path,) = one.root.iterdir()
    path.write_text(path.read_text()[:-20])
    for arguments in (["verify"], ["report", "--out", tmp_path / "page"]):
        result = run(*arguments, "--results", one.root)
        assert result.exit_code == 1
        assert f"{path}, line 1: is damaged" in result.output
        assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "reproduce"])
def test_a_ledger_that_cannot_be_added_to_is_refused_before_anything_is_run(command, one, tmp_path):
    (path,) = one.root.iterdir()
    path.write_text(path.read_text()[:-20])
    for folder, message in ((one.root, "line 1: is damaged"), ("/dev/null/x", "give another --add-to")):
        result = run(command, "mnist", "--add-to", folder, "--out", tmp_path / "out")
        assert result.exit_code == 1
        (line,) = result.output.strip().splitlines()
        assert message in line
        assert not (tmp_path / "out").exists()


def test_a_scale_without_runs_is_named(one, tmp_path):
    result = run("report", "mnist", "--scale", "paper", "--results", one.root, "--out", tmp_path / "page")
    assert result.exit_code == 1
    assert "has no runs of mnist at paper scale; give another --scale" in result.output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (dict(optimizer="adam", opt=dict(capturable=True)), "cannot be trained here"),
        (dict(optimizer="module:[/x]\x1b[2J"), "is not one of the studies' optimizers"),
    ],
)
def test_verify_survives_what_anyone_may_have_written_into_a_ledger(fields, reason, one, tmp_path):
    (entry,) = one.entries().values()
    hostile = Ledger(tmp_path / "hostile")
    hostile.add([dataclasses.replace(entry, spec=dataclasses.replace(SPEC, lr=0.1, **fields))])
    result = run("verify", "--results", hostile.root)
    assert result.exit_code == 0, result.output
    assert "1 not compared" in result.output
    assert "\x1b[2J" not in result.output
    (found,) = json.loads(run("verify", "--results", hostile.root, "--json").stdout)
    assert reason in found["reason"]
