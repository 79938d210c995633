"""The report of a whole study, made small: tables, failures, the data behind the figures, the keys of its JSON."""

import json
import shutil

import pytest

from dynabound.lab.report import html
from dynabound.lab.report.results import curves
from dynabound.lab.report.summary import Failure, build, failures, run_states
from dynabound.lab.report.tables import step_size
from dynabound.lab.report.theory import headline
from dynabound.lab.store import Store
from dynabound.lab.studies import recipes
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.recipes import REFERENCE, STUDIES
from helpers import golden
from helpers import tiny_studies as cases

KEYS = golden.load("json_keys.json")["report.json"]


@pytest.mark.slow
def test_report_json_keeps_its_keys(tiny, done, tmp_path):
    shutil.copytree(done, tmp_path / "copy")
    Store(tmp_path / "copy" / "runs").runs()[0].remove()
    path = html.write(build([tiny, STUDIES["theory"]], "demo", tmp_path / "copy"), tmp_path / "copy")
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
    (study,) = build([tiny], "demo", tmp_path / "copy").studies
    (failure,) = study.failures
    assert (failure.run, failure.state) == (broken.name, "failed")
    assert f"dynabound runs remove {broken.name}" in failure.error


def test_the_data_behind_the_figure(tiny, done):
    (study,) = build([tiny], "demo", done).studies
    figure, forest = study.figures
    assert [check.claim for check in forest.checks] == [check.claim for check in study.checks if check.low is not None]
    (panel,) = figure.panels
    assert [curve.label for curve in panel.curves] == [row.label for row in tiny.rows if row.included("demo")]
    for curve in panel.curves:
        for split in ("train", "test"):
            assert [len(seed) for seed in curve.seeds(split)] == [cases.TINY["epochs"]] * 3
    assert study.runs == {"finished": 21}


def test_the_table_of_methods(tiny, done):
    (study,) = build([tiny], "demo", done).studies
    stored = {
        (r.spec().optimizer, r.spec().seed): r.metrics()[-1]["test_accuracy"] for r in Store(done / "runs").runs()
    }
    rows = {row.method: row for row in study.tables[0].rows}
    adam = [100 * stored["adam", seed] for seed in range(3)]
    assert rows["Adam"].final == pytest.approx(sum(adam) / 3)
    assert rows["Adam"].level == pytest.approx(max(adam))
    finals = {label: round(row.final, 6) for label, row in rows.items() if label != REFERENCE}
    places = {label: 1 + sum(other > final for other in finals.values()) for label, final in finals.items()}
    assert {label: rows[label].rank for label in finals} == places, "equals share a place"
    assert rows[REFERENCE].rank is None


def test_a_failed_run_of_a_search_is_reported(tiny, monkeypatch, tmp_path):
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    row = next(row for row in tiny.rows if row.label == "AdaGrad")
    study, store = recipes.Study("mnist", "", "", (row,)), Store(tmp_path / "runs")
    cases.complete([study], store, cases.InProcess())
    (curve,) = curves(study, "demo", store)
    lost = next(spec for spec, _ in curve.search.tried if spec.lr != curve.spec.lr)
    with store.run(lost).lock():
        store.run(lost).write_status("failed", error="it <i>rained</i>")
    (again,) = curves(study, "demo", store)
    assert [seed.spec for seed in again.lost] == [lost]
    method = f"perceptron: AdaGrad, search at lr {lost.lr:g}, seed 0"
    assert list(failures([again])) == [Failure(lost.name, method, "failed", "it <i>rained</i>")]
    assert run_states([again])["failed"] == 1
    assert step_size(again).endswith(f"(best of {len(curve.search.tried) - 1}, 1 failed)")


@pytest.mark.slow
def test_theory_comes_from_its_files(tiny, tmp_path):
    theorems.compute("counterexample", tmp_path / "theory")
    report = build([STUDIES["theory"]], "demo", tmp_path)
    (study,) = report.studies
    assert "refuted" in study.verdict, "Theorem 4 is false as stated"
    assert [figure.name for figure in study.figures] == ["counterexample"]
    assert len(study.failures) == 4
    assert html.write(report, tmp_path).is_file()
    (tmp_path / "theory" / "counterexample.svg").unlink()
    report = build([STUDIES["theory"]], "demo", tmp_path)
    assert len(report.studies[0].failures) == 5
    assert html.write(report, tmp_path).is_file()


def test_the_headline_of_the_theory():
    words = {"supported": ("Theorem 1", "Theorem 2", "Theorem 3", "Lemma 1"),
             "refuted": ("Theorem 4", "Corollary 4.1", "Theorem 5")}  # fmt: skip
    verdicts = [(name, word) for word, names in words.items() for name in names]
    found = {"all": {"verdicts": [{"statement": name, "kind": "theorem", "verdict": word} for name, word in verdicts]}}
    assert headline(found, [], []) == "Theorems 1 to 3 hold; 4, its corollary and 5 are refuted"
    found["all"]["verdicts"][0]["verdict"] = "undecided"
    assert headline(found, [], []) == ("Theorems 2 and 3 hold; 4, its corollary and 5 are refuted; 1 is not decided")
    found["all"]["verdicts"] = [{"statement": "Theorem 1", "kind": "theorem", "verdict": "supported"}]
    assert headline(found, ["regret"], []) == "Theorem 1 holds"
    assert headline({}, ["regret"], []) == "not decided at this scale"


def test_the_questions_at_the_top_are_answered_from_the_runs(tiny, done):
    report = build([tiny], "demo", done)
    assert [each.question for each in report.questions] == [
        "Does it start like Adam?", "Does it end as well as SGD?", "What did it cost?",
    ]  # fmt: skip
    start, end, cost = report.questions
    first = {label: [seed.series("train")[0] for seed in curve.finished]
             for label, curve in ((c.row.label, c) for c in curves(tiny, "demo", Store(done / "runs")))}  # fmt: skip
    assert f"AdaBound: {sum(first['AdaBound']) / 3:.1f} %" in start.details
    assert "of 1 network." in start.answer
    assert "of 1 network," in end.answer
    assert "times as long as Adam's on 1 network" in cost.answer + cost.details
    assert all(len(each.answer.split()) <= 25 for each in report.questions)


def test_the_environment_is_that_of_the_runs(tiny, done):
    (line,) = build([tiny], "demo", done).environment
    stored = Store(done / "runs").runs()[0].environment()[-1]
    assert line.startswith("21 runs: ")
    assert stored["torch"] in line
    assert stored["cpu"] in line
