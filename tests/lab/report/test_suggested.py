"""The claims on suggested learning rates, on numbers whose verdict is known."""

from dataclasses import replace

import pytest

from dynabound.lab.report.claims import judge_study, ranks_by_method
from dynabound.lab.report.figures import CostFigure, CostPanel, Point, RanksFigure
from dynabound.lab.report.read import Curve, StudyRuns
from dynabound.lab.report.summary import _tuning
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.studies.recipes import DEFAULTS, PEERS, SAME_RATES, STUDIES
from dynabound.lab.studies.search import runs_to
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED
from dynabound.tuning import Suggestion

SPREAD = (-0.1, 0.0, 0.1)
ENDS = {"AdaBound": 97.0, DEFAULTS["AdaBound"]: 90.0, "SGDM": 96.7, "AdaGrad": 95.0, "Adam": 96.0, "AMSGrad": 96.0,
        SAME_RATES["adam"]: 96.0, SAME_RATES["csgd"]: 96.5, "Prodigy": 96.8, "Schedule-free AdamW": 92.0,
        "D-Adaptation Adam": 93.0}  # fmt: skip
PANELS = {"ResNet-10": "resnet10"}  # at demo scale its search was run beforehand
STEPS = 182


def curve(row, center, cost=150, states=None):
    spec = row.spec("demo")
    lines = [{"train_accuracy": 0.9, "test_accuracy": (center + x) / 100, "step": STEPS} for x in SPREAD]
    seeds = tuple(
        StoredRun(replace(spec, seed=seed), (states or {}).get(seed, "finished"), [line])
        for seed, line in enumerate(lines)
    )
    found = Suggestion(0.01, 0.1, 0.01, STEPS, cost, (), (), {}) if row.suggest else None
    return Curve(row, spec, seeds, suggestion=found)


def evidence(ends=ENDS, without=(), **kwargs):
    study = STUDIES["suggest"]
    return StudyRuns({
        panel: {row.label: curve(row, ends[row.label], **kwargs) for row in study.rows
                if row.panel == panel and row.label in ends and row.label not in without}
        for panel in PANELS
    })  # fmt: skip


def verdicts(words, found):
    """The verdicts on claims that contain ``words``."""
    return [check.verdict for check in judge_study("suggest", found) if words in check.claim]


def test_our_own_claims_hold():
    checks = judge_study("suggest", evidence())
    assert {check.verdict for check in checks} == {SUPPORTED}
    assert {check.source for check in checks} == {"ours"}
    assert len(checks) == len(PANELS) * (1 + 3 + 2) + 2
    assert len({check.claim for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("ends", "words", "expected"),
    [
        ({"AdaBound": 94.5}, "than the best searched", REFUTED),
        ({"SGDM": 99.1}, "than the best searched", UNDECIDED),
        ({"SGDM": 98.0}, "than the best searched", SUPPORTED),  # below, but within the margin
        ({DEFAULTS["AdaBound"]: 98.0}, "better than AdaBound, defaults", REFUTED),
        ({DEFAULTS["AdaBound"]: 97.0}, "better than AdaBound, defaults", UNDECIDED),
        ({SAME_RATES["adam"]: 98.0}, "better than Adam, AdaBound's α", REFUTED),
        ({SAME_RATES["csgd"]: 98.0}, "better than CSGD, AdaBound's α*", REFUTED),
        ({"Prodigy": 97.5}, "tuning-free", REFUTED),
        ({"SGDM": 97.05}, "no searched method", UNDECIDED),  # other seeds would have another rank
        ({"SGDM": 97.5}, "no searched method", REFUTED),
    ],
)
def test_each_claim_can_fail(ends, words, expected):
    assert set(verdicts(words, evidence({**ENDS, **ends}))) == {expected}


@pytest.mark.parametrize(
    ("sgdm", "counts"),
    [
        (96.9, "+0.1 points; 1 supported, 0 refuted, 0 undecided"),
        (99.5, "−2.5 points; 0 supported, 1 refuted, 0 undecided"),
        (99.0, "−2.0 points; 0 supported, 0 refuted, 1 undecided"),
    ],
)
def test_the_page_says_whether_to_tune(sgdm, counts):
    found = _tuning("demo", evidence({**ENDS, "SGDM": sgdm}).panels, None)
    costs, first, defaults = found.lines
    assert "− the best searched method (ResNet-10 only), not worse" in first
    assert first.endswith(counts)
    assert costs.endswith("a suggestion for AdaBound took 150")
    assert "−7.0 points; 0 supported, 1 refuted, 0 undecided" in defaults
    assert [dot.row for dot in found.figure.dots] == [f"{name}\n(best: SGDM)" for name in PANELS]


def test_the_searches_that_were_run_beforehand_are_counted():
    """By hand: 5 learning rates and 4 finer ones of SGDM; AdaGrad's best is its grid's last or one beyond."""
    rows = {row.label: row for row in STUDIES["suggest"].rows if row.workload == "resnet10"}
    assert runs_to(rows["SGDM"].spec("demo")) == 9
    assert runs_to(rows["AdaGrad"].spec("demo")) == 6
    assert runs_to(rows["Adam"].spec("demo")) == 20
    assert verdicts("1/5 of the cheapest", evidence(cost=6 * STEPS // 5)) == [SUPPORTED]
    assert verdicts("1/5 of the cheapest", evidence(cost=7 * STEPS // 5 + 1)) == [REFUTED]
    assert verdicts("at most 600", evidence(cost=601)) == [REFUTED]


def test_without_peers_or_searches_there_is_nothing_to_compare_with():
    searched = ("SGDM", "AdaGrad", "Adam", "AMSGrad")
    assert verdicts("tuning-free", evidence(without=tuple(PEERS))) == [NOT_TESTABLE]
    found = evidence(without=searched)
    for words in ("than the best searched", "no searched method", "1/5 of the cheapest"):
        assert set(verdicts(words, found)) == {NOT_TESTABLE}


def test_missing_runs_decide_nothing():
    found = evidence(states={0: "new"})
    left = {check.verdict for check in judge_study("suggest", found) if "steps" not in check.claim
            and "cheapest" not in check.claim}  # fmt: skip
    assert left == {UNDECIDED}


def test_ranks_are_shared_by_equals_and_last_for_a_method_that_diverged():
    found = evidence({"AdaBound": 97.0, "SGDM": 97.0, "Adam": 96.0})
    (name, curves), *_ = found.panels.items()
    curves["Adam"] = curve(curves["Adam"].row, 99.0, states={0: "diverged"})
    assert ranks_by_method({name: curves}) == {"SGD(M)": [1], "AdaBound": [1], "Adam": [3]}


def test_figures_show_the_means_and_the_best_first():
    points = (Point("SGD", 1000, [100.0, 110.0]), Point("AdaBound", 300, [90.0, 100.0]))
    panels = (CostPanel("L1", "perplexity", points), CostPanel("ResNet", "accuracy (%)", ()))
    first, *others = CostFigure("name", "", panels).draw().axes
    assert len(others) == 1
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    drawn = [container.lines[0].get_xydata().tolist() for container in first.containers]
    assert drawn == [[[1000.0, 105.0]], [[300.0, 95.0]]]
    (axes,) = RanksFigure("name", "", {"Adam": [2, 3], "AdaBound": [1, 2]}).draw().axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "AdaBound (1.50, 2 workloads)", "Adam (2.50, 2 workloads)",
    ]  # fmt: skip
