"""Whole studies, made small: what is run, what is kept, what the figures and messages say."""

import json
import random
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound.cli import app, studies
from dynabound.cli.output import CommandError, terminate
from dynabound.lab.engines.base import record_failure
from dynabound.lab.errors import LabError
from dynabound.lab.report import pages, summary
from dynabound.lab.report.read import read_study
from dynabound.lab.spec import SCALES
from dynabound.lab.store import Store
from dynabound.lab.studies import drive, plan, recipes
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.cost import estimate_time
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, REFERENCES, STUDIES, WORKLOADS, choose
from dynabound.lab.studies.search import GRIDS, search_lr
from dynabound.lab.tasks.catalog import TASKS
from helpers import tiny_studies as cases
from helpers import worker


def run(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_a_study_can_be_run(scale):
    for study in STUDIES.values():
        if study.name == "cifar10-16" and scale != "laptop":
            with pytest.raises(LabError, match=f"has no {scale} scale; add --scale laptop"):
                choose([study.name], scale)
            continue
        rows = [row for row in study.rows if row.included(scale)]
        assert bool(rows) == bool(study.rows), "no curve is left"
        for row in rows:
            spec = row.spec(scale)
            assert spec.scale == scale
            assert (spec.task in ("digits", "digits-half", "pydoc")) == (scale == "demo")
            assert study.seed_count(row, scale) >= 1


def test_adabound_is_suggested_where_the_others_are_searched():
    """At paper scale it keeps its defaults, as the paper says; a reference curve has them at the other scales."""
    ranked, defaults = (next(row for row in STUDIES["mnist"].rows if row.label == label)
                        for label in ("AdaBound", DEFAULTS["AdaBound"]))  # fmt: skip
    assert [ranked.suggested(scale) for scale in SCALES] == [True, True, False]
    assert [defaults.included(scale) for scale in SCALES] == [True, True, False]
    assert not defaults.suggested("demo")
    assert ranked.spec("laptop") == defaults.spec("laptop")


def test_paper_scale_is_the_papers_setup():
    mnist, resnet = STUDIES["mnist"].rows[4].spec("paper"), STUDIES["cifar10"].rows[-10].spec("paper")
    assert (mnist.task, mnist.epochs, mnist.decay_after, mnist.optimizer) == ("mnist", 100, None, "adabound")
    assert mnist.options == {"gamma": 1e-3}
    assert (resnet.task, resnet.width, resnet.epochs, resnet.decay_after) == ("cifar10", 1.0, 200, 150)
    assert (resnet.weight_decay, resnet.batch_size) == (5e-4, 128)
    assert [row.spec("paper").layers for row in STUDIES["ptb"].rows[::6]] == [1, 2, 3]
    speeds = {(row.spec("paper").options.get("final_lr", 0.1), row.spec("paper").options["gamma"])
              for row in STUDIES["bound-speed"].rows}  # fmt: skip
    assert speeds == {(a, g) for a in (1.0, 0.1) for g in (0.1, 0.02, 0.01, 0.002, 0.001)}
    assert all(row.tuned("paper") for row in STUDIES["cifar10"].rows
               if row.label not in REFERENCES and row.included("paper"))  # fmt: skip


def test_the_speed_of_the_bounds_is_multiplied_by_the_pace():
    row = recipes.Row("panel", "label", "perceptron", "adabound", opt={"gamma": 0.01})
    assert row.spec("demo").options["gamma"] == pytest.approx(0.01 * recipes.GAMMA_SCALE["demo"]["perceptron"])
    assert row.spec("paper").options["gamma"] == 0.01


def test_studies_share_the_runs_that_they_have_in_common():
    names = {study: {row.spec("laptop").name for row in STUDIES[study].rows if row.workload in WORKLOADS["laptop"]}
             for study in STUDIES}  # fmt: skip
    assert names["learning-rates"] <= names["cifar10"]
    assert len(names["cifar10"] & names["bound-speed"]) == 1, "AdaBound with its defaults"
    assert len(names["final-step-size"] & names["bound-speed"]) == 2


def test_a_study_is_complete_and_never_run_again(tiny, done):
    store = Store(done / "runs")
    assert len(store.runs()) == 7 * 3
    engine = cases.InProcess()
    cases.complete([tiny], store, engine)
    assert engine.ran == []
    assert all(planned.state == "finished" for planned in plan.plan([tiny], "demo", StoredRuns(store)))


def test_a_deleted_run_alone_is_run_again(tiny, done, tmp_path):
    shutil.copytree(done, tmp_path / "copy")
    store = Store(tmp_path / "copy" / "runs")
    before = cases.numbers(store)
    (gone,) = [run for run in store.runs() if run.spec().optimizer == "amsgrad" and run.spec().seed == 101]
    gone.remove()
    engine = cases.InProcess()
    cases.complete([tiny], store, engine)
    assert [spec.name for spec in engine.ran] == [gone.name]
    assert cases.numbers(store) == before


@pytest.mark.slow
@pytest.mark.processes
def test_a_command_that_was_killed_again_and_again_makes_the_same_page(tiny, done, tmp_path):
    killed, choose, exits = tmp_path / "killed", random.Random(0), []
    for most in (10, 60, 200, 300, 10**9):
        after = choose.randint(1, most)
        exits.append(worker.run(cases.reproduce_and_die, str(killed), after))
    assert exits.count(-signal.SIGKILL) >= 3
    assert exits[-1] == 0
    shutil.copytree(done, tmp_path / "whole")
    made = []
    for folder in (killed, tmp_path / "whole"):
        cases.forget_seconds(Store(folder / "runs"))
        path = pages.write_html(summary.build([tiny], ["demo"], StoredRuns(Store(folder / "runs"))), folder)
        figure = (folder / "demo" / "figures" / "mnist.svg").read_bytes()
        made.append((path.read_text().replace(str(folder), "OUT"), figure))
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_search_resumes_and_repeats_nothing(tiny, monkeypatch, tmp_path):
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    store = Store(tmp_path)
    studies = [recipes.Study("mnist", "", "", tuple(row for row in tiny.rows if row.label in ("SGDM", "AdaBound")))]

    class Interrupted(cases.InProcess):
        def events(self):
            del self.queue[2:]
            yield from super().events()
            raise KeyboardInterrupt

    ran = []
    for engine in (Interrupted(), Interrupted(), cases.InProcess()):
        try:
            cases.complete(studies, store, engine)
        except KeyboardInterrupt:
            continue
        finally:
            ran += [spec.name for spec in engine.ran]
    assert len(ran) == len(set(ran)) == len(store.runs())
    found = {curve.row.label: curve for curve in read_study(studies[0], "demo", StoredRuns(store)).curves}
    assert len(found["SGDM"].search.tried) >= len(GRIDS["sgdm"].lrs) + len(GRIDS["sgdm"].fine)
    losses = {spec.name: loss for spec, loss in found["SGDM"].search.tried}
    assert losses[found["SGDM"].spec.name] == min(losses.values())
    assert [seed.state for curve in found.values() for seed in curve.seeds] == ["finished"] * 6
    assert found["AdaBound"].search.tried == ()


def test_a_run_that_failed_before_is_waited_for(tiny, tmp_path):
    """With idle workers the search is asked again after every run: what is still to be tried again is no result."""
    row = next(row for row in tiny.rows if row.optimizer == "adagrad")
    grid = [replace(row.spec("demo"), lr=lr) for lr in GRIDS["adagrad"].lrs]
    store, engine = Store(tmp_path), cases.InProcess()
    record_failure(store, grid[-1], "the disk was full")
    engine.jobs = 100
    drive.complete(plan.tuning([grid[0]], 2), store, engine, lambda specs: None, lambda event: None)
    assert engine.ran[:5] == grid
    best = search_lr(grid[0], StoredRuns(store).losses()).best
    assert [spec.lr for spec in engine.ran if spec.seed > 100] == [best.lr], "two winners"
    assert {run.status()["state"] for run in store.runs()} == {"finished"}


def damage(run):
    (run.folder / "metrics.jsonl").write_text("{")
    for checkpoint in run.folder.glob("checkpoint-*"):
        checkpoint.unlink()


@pytest.mark.slow
def test_a_damaged_run_of_a_search_is_reported_and_trained_again(tiny, monkeypatch, tmp_path):
    row = next(row for row in tiny.rows if row.optimizer == "adagrad")
    study = replace(tiny, rows=(row,), seeds={"demo": 1})
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    store = Store(tmp_path / "runs")
    cases.complete([study], store, cases.InProcess())
    before = cases.numbers(store)
    (broken,) = [run for run in store.runs() if run.spec().lr == GRIDS["adagrad"].lrs[1]]
    damage(broken)
    assert StoredRuns(store).losses()(broken.spec()) == float("inf")
    assert StoredRuns(store).losses(())(broken.spec()) is None
    assert pages.write_html(summary.build([tiny], ["demo"], StoredRuns(store)), tmp_path).is_file()
    assert estimate_time([study], "demo", store, [1], 1e12)["runs"] == 1
    states = {planned.spec.name: planned.state for planned in plan.plan([study], "demo", StoredRuns(store))}
    assert [name for name, state in states.items() if state != "finished"] == [broken.name]
    engine = cases.InProcess()
    cases.complete([study], store, engine)
    assert [spec.name for spec in engine.ran] == [broken.name]
    assert cases.numbers(store) == before


def test_adabound_starts_like_adam_on_digits(tmp_path):
    """At demo scale the bounds are still wide in the first epoch: AdaBound's loss is Adam's, and SGDM's is not."""
    rows = {row.label: row for row in STUDIES["mnist"].rows}
    first = {}
    for label in (REFERENCE, "AdaBound", "SGDM"):
        spec = replace(rows[label].spec("demo"), epochs=1)
        first[label] = first_loss(spec, tmp_path)
    assert abs(first["AdaBound"] - first[REFERENCE]) < 0.2 * abs(first["SGDM"] - first[REFERENCE])


def first_loss(spec, folder):
    assert [event.state for event in cases.execute(cases.InProcess(), [spec], Store(folder))] == ["started", "finished"]
    return Store(folder).run(spec).metrics()[0]["train_loss"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["reproduce", "mnits"], "study='mnits': must be one of learning-rates, mnist"),
        (["reproduce", "mnits"], "did you mean mnist?"),
        (["reproduce", "--scale", "huge"], "scale='huge': must be one of demo, laptop, paper"),
        (["report", "nothing"], "study='nothing'"),
        (["report"], "new: has no runs; run: dynabound reproduce --out "),
        (["tune", "digits", "--optimizer", "adma"], "optimizer='adma'"),
    ],
)
def test_errors_are_one_line(arguments, expected, tmp_path):
    result = run(*arguments, "--out", str(tmp_path / "new"))
    assert result.exit_code == 1
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_missing_data_is_an_error_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    result = run("reproduce", "mnist", "ptb", "--scale", "laptop", "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "mnist, ptb: not found; run: dynabound data fetch mnist ptb, or give --data-dir DIR" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["nope", "cuda:99", "meta"])
def test_a_device_that_cannot_be_used_is_an_error_before_anything_is_written(device, tmp_path):
    result = run("reproduce", "mnist", "--device", device, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert f"device='{device}': cannot be used here" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("reproduce", "mnist", "--out", str(tmp_path / "file" / "out"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr
    assert "--out" in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize("locked", [".", "runs", "suggestions", "theory"])
def test_a_folder_that_cannot_be_written_is_an_error(locked):
    with tempfile.TemporaryDirectory() as out:  # not pytest's own folder, which the user "nobody" cannot read
        Path(out).chmod(0o777)
        (Path(out) / locked).mkdir(exist_ok=True)
        (Path(out) / locked).chmod(0o555)
        assert worker.run(cases.check_as_nobody, out) == 3
        assert not list((Path(out) / locked).iterdir())


@pytest.mark.parametrize("name", ["runs", "theory"])
def test_a_file_instead_of_a_folder_is_an_error(name, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(CommandError, match=rf"{name}: cannot be written \(.* is not a folder\); give another --out"):
        studies._check_folders(tmp_path)


@pytest.mark.processes
def test_the_commands_run_a_study_and_report_it(tiny, tmp_path):
    out = str(tmp_path / "out")
    result = run("reproduce", "mnist", "--out", out, "--jobs", "2", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["studies"][0]["runs"] == {"finished": 21}
    assert (tmp_path / "out" / "demo" / "report.html").read_text().startswith("<!doctype html>")
    page = (tmp_path / "out" / "demo" / "report.html").read_bytes()
    again = run("report", "mnist", "--out", out)
    assert "mnist" in again.stdout
    assert "report.html" in again.stdout
    assert (tmp_path / "out" / "demo" / "report.html").read_bytes() == page


@pytest.mark.processes
def test_a_failed_run_is_in_the_page_and_the_others_are_too(tiny, monkeypatch, tmp_path):
    rows = [replace(row, optimizer="helpers.deadly:Raises") if row.label == "SGDM" else row for row in tiny.rows]
    monkeypatch.setitem(STUDIES, "mnist", replace(tiny, rows=tuple(rows), seeds={"demo": 1}))
    result = run("reproduce", "mnist", "--out", str(tmp_path), "--jobs", "2")
    assert result.exit_code == 1
    assert "1 runs failed" in result.stderr
    assert "6 finished" in result.stdout
    assert "RuntimeError: &lt;b&gt;no&lt;/b&gt; &amp; never" in (tmp_path / "demo" / "report.html").read_text()


@pytest.mark.slow
def test_theory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"file: cannot be written .*; give another --out"):
        theorems.compute("theorem-3", tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "during"),
    [
        (["reproduce", "theory"], (studies, "run_tasks")),
        (["reproduce", "mnist"], (pages, "write_html")),
        (["report", "mnist"], (pages, "write_html")),
    ],
)
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_command_that_was_stopped_says_how_to_resume(
    arguments, during, number, code, word, tiny, done, tmp_path, monkeypatch
):
    # A shell starts background jobs with SIGINT ignored, and their children inherit that.
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    shutil.copytree(done, tmp_path / "copy")
    monkeypatch.setattr(*during, lambda *_: signal.raise_signal(number))
    result = run(*arguments, "--out", str(tmp_path / "copy"))
    for each, handler in before.items():
        signal.signal(each, handler)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1] == f"dynabound: {word}; run the same command again to resume"


def test_every_workload_has_a_task_and_every_name_is_known():
    assert {fields["task"] for scale in SCALES for fields in WORKLOADS[scale].values()} <= set(TASKS)
    with pytest.raises(LabError, match="study='x'"):
        choose(["x"], "demo")
