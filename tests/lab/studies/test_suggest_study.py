"""The study of suggested learning rates: its runs, shared with the paper's studies, and its page."""

import json
from dataclasses import replace

import pytest

from dynabound.lab.report import pages
from dynabound.lab.report.summary import build
from dynabound.lab.spec import SCALES
from dynabound.lab.store import Store
from dynabound.lab.studies import plan, recipes, suggestions
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import DEFAULTS, PEERS, SAME_RATES, STUDIES, choose
from helpers import tiny_studies as cases

STUDY = STUDIES["suggest"]
SMALL = dict(task="digits", hidden=4, epochs=20, examples=320, batch_size=32)  # 200 steps
MODES = "helpers.two_modes:TwoModes"


def rows(scale, panel):
    return {row.label: row for row in STUDY.rows if row.panel == panel and row.included(scale)}


@pytest.mark.parametrize("scale", SCALES)
def test_every_workload_has_searched_suggested_and_default_curves(scale, monkeypatch):
    monkeypatch.setattr(recipes.Row, "installed", True)
    panels = [panel for panel in STUDY.panels() if rows(scale, panel)]
    assert len(panels) == (4 if scale == "demo" else 6)
    for panel in panels:
        found = rows(scale, panel)
        searched = {"SGD", "Adam"} if panel.startswith("L") else {"SGDM", "AdaGrad", "Adam", "AMSGrad"}
        assert set(found) == {*searched, "AdaBound", DEFAULTS["AdaBound"], *SAME_RATES.values(), *PEERS}
        suggested = {label for label, row in found.items() if row.suggested(scale)}
        assert suggested == {"AdaBound", *SAME_RATES.values()}
        assert len({found[label].bounded(scale).name for label in suggested}) == 1, "more than one suggestion"


def test_it_shares_the_runs_of_the_papers_studies(tmp_path):
    """At demo scale nothing that the other studies train has to be trained again, and no suggestion to be made."""
    store = Store(tmp_path / "runs")
    papers = {
        run.spec.name for run in plan.plan(choose(["mnist", "cifar10", "ptb"], "demo"), "demo", StoredRuns(store))
    }
    for row, _, specs in plan.resolve_rows(STUDY, "demo", StoredRuns(store), lambda spec: None, assume=True):
        extra = row.label in (*SAME_RATES.values(), *PEERS)
        skipped = row.label in recipes.SKIPPED["demo"].get(row.workload, ())
        assert ({spec.name for spec in specs[:1]} <= papers) is not (extra or skipped), (row.panel, row.label)
    shared = suggestions.missing(choose(["mnist", "cifar10", "ptb"], "demo"), "demo", store)
    assert set(suggestions.missing([STUDY], "demo", store)) <= set(shared)


def test_it_runs_only_if_it_is_named():
    assert STUDY not in choose([], "demo")
    assert choose(["suggest"], "demo") == [STUDY]


def test_a_peer_that_is_not_installed_is_left_out():
    row = recipes.Row("panel", "Peer", "perceptron", "no_such_package:Optimizer", 1.0, at_every_scale=True)
    assert not row.included("demo")
    assert replace(row, optimizer=MODES).included("demo")


@pytest.fixture
def study(monkeypatch):
    """The study on one small perceptron, with a peer that is installed and one that is not."""
    cases.make_tiny(monkeypatch)
    monkeypatch.setitem(recipes.WORKLOADS["demo"], "perceptron", SMALL)
    kept = [row for row in STUDY.rows if row.panel == "perceptron" and row.label not in ("AdaGrad", "AMSGrad")]
    optimizers = {"Prodigy": MODES, "Schedule-free AdamW": "no_such_package:Optimizer"}
    kept = [replace(row, optimizer=optimizers.get(row.label, row.optimizer)) for row in kept]
    rows = tuple(row for row in kept if row.label != "D-Adaptation Adam")
    return replace(STUDY, rows=rows, seeds=dict(demo=2))


def test_adam_and_sgd_take_the_step_sizes_of_adabound(study, tmp_path):
    store = Store(tmp_path / "runs")
    (spec,) = suggestions.missing([study], "demo", store)
    before = plan.plan([study], "demo", StoredRuns(store))
    assert len({run.spec.name for run in before}) == len(before) == 2 * 7
    found = suggestions.compute(spec, store)
    specs = {
        row.label: specs[0] for row, _, specs in plan.resolve_rows(study, "demo", StoredRuns(store), lambda spec: None)
    }
    adam, sgd = (specs[label] for label in SAME_RATES.values())
    assert (adam.optimizer, sgd.optimizer) == ("adam", "csgd")
    assert adam.lr == specs["AdaBound"].lr == pytest.approx(found.lr, rel=5e-3)
    assert sgd.lr == specs["AdaBound"].options["final_lr"] == pytest.approx(found.final_lr, rel=5e-3)
    assert adam.options == sgd.options == {}


@pytest.mark.slow
def test_from_the_suggestion_to_the_page(study, tmp_path):
    store = Store(tmp_path / "runs")
    (spec,) = suggestions.missing([study], "demo", store)
    cost = suggestions.compute(spec, store).cost
    cases.complete([study], store, cases.InProcess())
    report = build([study], ["demo"], StoredRuns(store))
    page = pages.write_html(report, tmp_path).read_text()
    (mine,) = report.studies
    assert mine.runs == {"finished": 14}
    assert any("not installed, and left out: Schedule-free AdamW; pip install" in line for line in mine.settings)
    costs, ranks, *_ = mine.figures
    (panel,) = costs.panels
    steps = {point.label: point.steps for point in panel.points}
    assert steps["AdaBound"] == steps[SAME_RATES["adam"]] == 200 + cost
    assert steps[DEFAULTS["AdaBound"]] == steps["Prodigy"] == 200
    assert sorted(rank for own in ranks.ranks.values() for rank in own)[0] == 1
    assert f"{cost} steps" in next(check.measured for check in mine.verdicts if "at most 600" in check.claim)
    assert "<b>Ours:</b>" in page
    assert "<b>The paper:</b>" not in page
    assert json.loads((tmp_path / "demo" / "report.json").read_text())["studies"][0]["ours"] is True
