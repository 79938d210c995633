"""The report of a whole study, made small: tables, failures, the data behind the figures, the keys of its JSON."""

import json
import shutil
from dataclasses import replace

import pytest

from dynabound.lab.report import pages, summary
from dynabound.lab.report.claims import COUNT
from dynabound.lab.report.read import Curve, read_study
from dynabound.lab.report.summary import StudyReport, _count, _cpu_times
from dynabound.lab.report.tables import Failure, failures, run_states, tuned_settings
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import recipes
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.plan import StoredRun, StoredRuns
from dynabound.lab.studies.recipes import REFERENCE, STUDIES, Row
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED, Verdict
from helpers import golden
from helpers import tiny_studies as cases

KEYS = golden.load("json_keys.json")["report.json"]


def build(studies, out):
    return summary.build(studies, ["demo"], StoredRuns(Store(out / "runs")), out / "theory")


@pytest.mark.slow
def test_report_json_keeps_its_keys(tiny, done, tmp_path):
    shutil.copytree(done, tmp_path / "copy")
    Store(tmp_path / "copy" / "runs").runs()[0].remove()
    path = pages.write_html(build([tiny, STUDIES["theory"]], tmp_path / "copy"), tmp_path / "copy")
    written = json.loads((path.parent / "report.json").read_text())
    assert golden.has_keys(written, KEYS)
    assert len(written["studies"][0]["failures"]) == 1
    assert len(written["studies"][0]["tables"][0]["rows"]) == 7


def test_a_damaged_run_of_a_curve_is_reported_with_the_remedy(tiny, done, tmp_path):
    shutil.copytree(done, tmp_path / "copy")
    broken = Store(tmp_path / "copy" / "runs").runs()[0]
    (broken.folder / "metrics.jsonl").write_text("{")
    for checkpoint in broken.folder.glob("checkpoint-*"):
        checkpoint.unlink()
    (study,) = build([tiny], tmp_path / "copy").studies
    (failure,) = study.failures
    assert (failure.run, failure.state) == (broken.name, "failed")
    assert f"dynabound runs remove {broken.name}" in failure.error


def test_the_data_behind_the_figure(tiny, done):
    (study,) = build([tiny], done).studies
    figure, forest = study.figures
    assert [dot.row for dot in forest.dots] == [each.claim for each in study.verdicts if each.low is not None]
    (panel,) = figure.panels
    assert [curve.label for curve in panel.curves] == [row.label for row in tiny.rows if row.included("demo")]
    for curve in panel.curves:
        for split in ("train", "test"):
            assert [len(seed) for seed in curve.seeds(split)] == [cases.TINY["epochs"]] * 3
    assert study.runs == {"finished": 21}


def test_the_table_of_methods(tiny, done):
    (study,) = build([tiny], done).studies
    stored = {
        (r.spec().optimizer, r.spec().seed): r.metrics()[-1]["test_accuracy"] for r in Store(done / "runs").runs()
    }
    rows = {row.method: row for row in study.tables[0].rows}
    adam = [100 * stored["adam", seed] for seed in (100, 101, 102)]
    assert rows["Adam"].final == pytest.approx(sum(adam) / 3)
    assert rows["Adam"].level == pytest.approx(max(adam))
    finals = {label: round(row.final, 6) for label, row in rows.items() if label != REFERENCE}
    places = {label: 1 + sum(other > final for other in finals.values()) for label, final in finals.items()}
    assert {label: rows[label].rank for label in finals} == places, "equals share a place"
    assert rows[REFERENCE].rank is None


@pytest.fixture
def searched(tiny, monkeypatch, tmp_path):
    """A study of one searched method, its runs, and its curve."""
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    row = next(row for row in tiny.rows if row.label == "AdaGrad")
    study, store = recipes.Study("mnist", "", "", (row,)), Store(tmp_path / "runs")
    cases.complete([study], store, cases.InProcess())
    (curve,) = read_study(study, "demo", StoredRuns(store)).curves
    return study, store, curve


def test_a_failed_run_of_a_search_is_reported(searched):
    study, store, curve = searched
    lost = next(spec for spec, _ in curve.search.tried if spec.lr != curve.spec.lr)
    with store.run(lost).lock():
        store.run(lost).write_status("failed", error="it <i>rained</i>")
    (again,) = read_study(study, "demo", StoredRuns(store)).curves
    assert [run.spec for run in again.failed_trials] == [lost]
    method = f"perceptron: AdaGrad, search at lr {lost.lr:g}, seed 100"
    assert list(failures([again])) == [Failure(lost.name, method, "failed", "it <i>rained</i>")]
    assert run_states([again])["failed"] == 1
    assert tuned_settings(again).endswith(f"(best of {len(curve.search.tried) - 1}, 1 failed)")


@pytest.mark.slow
def test_theory_comes_from_its_files(tiny, tmp_path):
    theorems.compute("counterexample", tmp_path / "theory")
    report = build([STUDIES["theory"]], tmp_path)
    (study,) = report.studies
    assert study.counts[REFUTED], "Theorem 4 is false as stated"
    assert [figure.name for figure in study.figures] == ["counterexample"]
    assert len(study.failures) == len(theorems.NAMES) - 1
    assert pages.write_html(report, tmp_path).is_file()
    (tmp_path / "theory" / "counterexample.svg").unlink()
    report = build([STUDIES["theory"]], tmp_path)
    assert len(report.studies[0].failures) == len(theorems.NAMES)
    assert pages.write_html(report, tmp_path).is_file()


def test_a_run_whose_status_was_emptied_is_named(searched):
    """It is neither new nor waiting: somebody has to repair it."""
    study, store, curve = searched
    for spec in (curve.spec, next(spec for spec, _ in curve.search.tried if spec.lr != curve.spec.lr)):
        (store.run(spec).folder / "status.json").write_text("")
        (damaged,) = read_study(study, "demo", StoredRuns(store)).curves
        assert run_states([damaged])["damaged"] == 1
        named = [each for each in failures([damaged]) if each.state == "damaged"]
        assert [each.run for each in named] == [spec.name]
        assert f"dynabound train --resume {spec.name}" in named[0].error
        cases.complete([study], store, cases.InProcess())


def verdict(word, difference=None, source="paper l. 1"):
    return Verdict("", "", word, source, difference=difference, unit="points")


def test_a_study_counts_the_papers_claims_or_ours():
    verdicts = (*map(verdict, (SUPPORTED, UNDECIDED, SUPPORTED, NOT_TESTABLE)), verdict(REFUTED, source="ours"))
    study = StudyReport("mnist", "", "", "demo", verdicts, (), {}, (), ())
    assert study.counts == {SUPPORTED: 2, REFUTED: 0, UNDECIDED: 1, NOT_TESTABLE: 1}
    assert study.headline == "2 supported, 1 undecided, 1 not testable here"
    counted = replace(verdict(SUPPORTED, source="ours"), kind=COUNT)
    ours = replace(study, ours=True, verdicts=(*verdicts, counted))
    assert ours.headline == "1 refuted; of the claims about numbers of steps 1 supported"


def test_a_fact_counts_the_networks_and_gives_the_range():
    found = [verdict(SUPPORTED, 1.26), verdict(UNDECIDED, -0.5)]
    counts = "−0.5 to +1.3 points; 1 supported, 0 refuted, 1 undecided"
    assert _count("A − B", found) == f"A − B: {counts}"
    assert _count("A − B", found[:1]) == "A − B: +1.3 points; 1 supported, 0 refuted, 0 undecided"


def timed(seconds, cpus):
    lines = [[{"cpu_seconds": second - 0.5}, {"cpu_seconds": 0.5}] for second in seconds]
    seeds = [StoredRun(RunSpec("digits", seed=i), "finished", line, environment=[{"cpu": cpu}])
             for i, (line, cpu) in enumerate(zip(lines, cpus, strict=True))]  # fmt: skip
    return Curve(Row("panel", "", "perceptron", "adam"), RunSpec("digits"), tuple(seeds))


def test_times_of_different_machines_are_not_divided_by_each_other():
    curves = {"AdaBound": timed((9.0, 1.0, 1.1), "BAA"), "Adam": timed((1.0, 1.2, 9.0), "AAB")}
    assert _cpu_times(curves) == {"AdaBound": [1.0, 1.1], "Adam": [1.0, 1.2]}
    assert _cpu_times({"AdaBound": timed((1.0,), "A"), "Adam": timed((1.0,), "B")}) == {}
    unknown = timed((1.0,), [""])
    assert _cpu_times({"AdaBound": unknown, "Adam": unknown}) == {}


def test_the_facts_at_the_top_come_from_the_runs(tiny, done):
    report = build([tiny], done)
    start, end, cost = report.facts
    (first,) = [each for each in report.studies[0].verdicts if "after one epoch" in each.claim]
    assert start.lines[0].startswith("Training accuracy after one epoch, in %: perceptron: AdaBound")
    assert f"1 {first.verdict}" in start.lines[1]
    assert end.lines[0].startswith("Final test accuracy in %, or perplexity: perceptron: AdaBound ")
    assert [line.partition(":")[0] for line in end.lines][2:] == [
        "AdaBound − Adam at the last epoch, better",
        "AdaBound − Adam with learning rate 0.001, without a search, better",
    ]
    assert [dot.row for dot in end.figure.dots] == ["perceptron"] * 2
    assert cost.lines[0].startswith("CPU time of a run, AdaBound / Adam: ")


def test_adabound_is_compared_with_sgd_and_adam_on_every_network(tiny, done):
    report = build([tiny], done)
    ((name, found),) = report.networks.items()
    assert name == "scikit-learn's digits, perceptron (demo)"
    stored = {(run.spec().optimizer, run.spec().seed): 100 * run.metrics()[-1]["test_accuracy"]
              for run in Store(done / "runs").runs()}  # fmt: skip
    means = {name: sum(stored[name, seed] for seed in (100, 101, 102)) / 3 for name in ("adabound", "sgdm", "adam")}
    assert found["SGD"].finals == (f"{means['adabound']:.2f}", f"{means['sgdm']:.2f}")
    assert found["Adam"].finals[1] == f"{means['adam']:.2f}"
    assert [dot.label for dot in report.forest.dots] == ["AdaBound − SGD", "AdaBound − Adam"]


def test_the_environment_is_that_of_the_runs(tiny, done):
    (line,) = build([tiny], done).environment
    stored = Store(done / "runs").runs()[0].environment()[-1]
    assert line.startswith("21 runs: ")
    assert stored["torch"] in line
    assert stored["cpu"] in line
