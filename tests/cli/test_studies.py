"""What the commands of studies print: searches, plans, help."""

import json

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dynabound import _drawing
from dynabound.cli import app
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import cost as estimate
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.search import GRIDS, TUNE_GRIDS, Grid, search_lr
from helpers.tiny_studies import SVG_ALONE


def run(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("command", ["train", "tune", "reproduce", "report", "verify"])
def test_every_option_has_a_help_text(command):
    group = get_command(app)
    with group.make_context("dynabound", [], resilient_parsing=True) as context:
        loaded = group.resolve_command(context, [command])[1]
    assert [option.name for option in loaded.params if not option.help] == []


def test_dry_run_lists_the_runs_and_runs_nothing(tmp_path):
    result = run("reproduce", "mnist", "--dry-run", "--out", str(tmp_path / "out"), "--json")
    listed = json.loads(result.stdout)["runs"]
    searches = sum(len(grid.lrs) * len(grid.options) for name, grid in GRIDS.items() if name != "sgd")
    assert len(listed) == searches + 4 * 9 + 5 * 10
    assert {row["state"] for row in listed} == {"new"}
    assert not (tmp_path / "out").exists()
    assert "a search may add more" in run("reproduce", "mnist", "--dry-run", "--out", str(tmp_path / "out")).stdout
    assert "80 runs to do of 80\n" in run("reproduce", "ptb", "--dry-run", "--out", str(tmp_path / "out")).stdout


@pytest.mark.slow
def test_dry_run_lists_the_theory_studies_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(_drawing, "FILE_KINDS", SVG_ALONE)
    arguments = ["reproduce", "theory", "--dry-run", "--out", str(tmp_path)]
    assert f"{', '.join(theorems.NAMES)}: to run" in run(*arguments).stdout
    assert json.loads(run(*arguments, "--json").stdout)["theory"] == list(theorems.NAMES)
    theorems.compute("theorem-3", tmp_path / "theory")
    assert json.loads(run(*arguments, "--json").stdout)["theory"] == [n for n in theorems.NAMES if n != "theorem-3"]
    without = run("reproduce", "ptb", "--dry-run", "--out", str(tmp_path))
    assert "theor" not in without.stdout


def test_dry_run_at_paper_scale_names_its_assumptions(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "_step_seconds", lambda spec: 1.0)
    told = run("reproduce", "mnist", "--scale", "paper", "--dry-run", "--out", str(tmp_path)).stdout
    assert "at an assumed 10 TFLOP/s and at least 1 ms per step" in told


@pytest.mark.slow
def test_tune_reports_the_best_setting(tmp_path):
    arguments = ["--optimizer", "adagrad", "--optimizer", "rmsprop", "--hidden", "4", "--epochs", "1",
                 "--examples", "64", "--jobs", "2", "--seeds", "1", "--out", str(tmp_path)]  # fmt: skip
    result = run("tune", "digits", *arguments, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    best = min(told["adagrad"]["tried"], key=lambda row: row["train_loss"])
    assert told["adagrad"]["best"]["lr"] == best["lr"]
    assert {row["state"] for row in told["adagrad"]["tried"]} == {"finished"}
    assert told["rmsprop"]["tried"] == []
    assert (told["rmsprop"]["test"]["states"], told["rmsprop"]["test"]["std"]) == (["finished"], None)
    assert "its defaults are used" in run("tune", "digits", *arguments).stdout


@pytest.mark.slow
def test_tune_reports_the_standard_deviation_over_seeds(tmp_path):
    arguments = ["--optimizer", "adagrad", "--hidden", "4", "--epochs", "1", "--examples", "64", "--jobs", "2",
                 "--seeds", "3", "--out", str(tmp_path)]  # fmt: skip
    told = json.loads(run("tune", "digits", *arguments, "--json").stdout)["adagrad"]
    seeds = [r for r in Store(tmp_path / "runs").runs() if r.spec().lr == told["best"]["lr"]]
    final = [100 * r.metrics()[-1]["test_accuracy"] for r in seeds]
    mean, std = np.mean(final), np.std(final, ddof=1)
    assert len(final) == 3
    assert told["test"]["metric"] == "accuracy (%)"
    assert (told["test"]["mean"], told["test"]["std"]) == pytest.approx((mean, std))
    assert (
        f"3 of 3 seeds: {mean:.2f} ± {std:.2f} (mean ± standard deviation)" in run("tune", "digits", *arguments).stdout
    )


@pytest.mark.slow
def test_tune_reports_failed_runs_and_exits_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(TUNE_GRIDS, "helpers.deadly:RaisesLater", Grid((0.01, 0.1, 1.0)))
    arguments = ["--optimizer", "helpers.deadly:RaisesLater", "--hidden", "4", "--epochs", "1", "--examples", "128",
                 "--jobs", "2", "--out", str(tmp_path)]  # fmt: skip
    result = run("tune", "digits", *arguments, "--json")
    assert result.exit_code == 1
    assert "3 runs failed; run the same command again to retry them" in result.stderr
    told = json.loads(result.stdout)["helpers.deadly:RaisesLater"]
    assert [(row["state"], row["train_loss"]) for row in told["tried"]] == [("failed", None)] * 3
    assert (told["best"], told["test"]) == (None, None)
    assert len(Store(tmp_path / "runs").runs()) == 3, "there is no winner to be run again"
    shown = run("tune", "digits", *arguments).stdout
    assert shown.count("failed: RuntimeError: <b>no</b> & never") == 3
    assert "has no best setting" in shown


def test_adabound_is_tuned_over_both_step_sizes():
    grid = TUNE_GRIDS["adabound"]
    points = {(lr, option["final_lr"]) for lr in grid.lrs for option in grid.options}
    assert len(points) == 20
    assert (1e-3, 0.1) in points, "the defaults are among them"
    wanted = search_lr(RunSpec("digits", optimizer="adabound"), lambda spec: None, TUNE_GRIDS).wanted
    assert {(spec.lr, spec.options["final_lr"]) for spec in wanted} == points
    assert search_lr(RunSpec("digits", optimizer="adabound"), lambda spec: None).wanted == (), "studies keep defaults"


def test_tune_reports_diverged_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(TUNE_GRIDS, "sgd", Grid((0.001, 0.01, 1e30)))
    arguments = ["--optimizer", "sgd", "--hidden", "4", "--epochs", "1", "--examples", "64", "--jobs", "2",
                 "--seeds", "1", "--out", str(tmp_path)]  # fmt: skip
    result = run("tune", "digits", *arguments)
    assert result.exit_code == 0, result.output
    assert "lr 1e+30 seed 0" in result.stdout
    assert result.stdout.count("diverged") == 1


def test_the_number_of_seeds_is_limited(tmp_path):
    result = CliRunner().invoke(app, ["tune", "digits", "--seeds=10001", f"--out={tmp_path / 'new'}"])
    assert result.exit_code == 2
    assert "less than or equal to 10000" in result.output
    assert not (tmp_path / "new").exists()
