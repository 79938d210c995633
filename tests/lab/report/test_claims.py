"""Verdicts on numbers whose verdict is known."""

from dataclasses import replace

import pytest

from dynabound.lab.report import claims
from dynabound.lab.report.claims import NOT_REPRODUCED, REPRODUCED, UNDECIDED, Check, better, overall
from dynabound.lab.report.learning_rates import RateEvolution, SampledRates
from dynabound.lab.report.results import Curve
from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.plan import Seed
from dynabound.lab.studies.recipes import REFERENCE, STUDIES, Row


def curve(label, finals, task="digits", states=None, epochs=4):
    spec = RunSpec(task, epochs=epochs)
    metric = spec.metric
    seeds = []
    for seed, final in enumerate(finals):
        mine = replace(spec, seed=seed)
        values = [final if spec.text else final / 100] * epochs
        lines = [{f"{split}_{metric}": value for split in ("train", "test")} | {"seconds": 1.0} for value in values]
        seeds.append(Seed(mine, (states or {}).get(seed, "finished"), lines))
    return Curve(Row("panel", label, "perceptron", "adam"), spec, tuple(seeds))


@pytest.mark.parametrize(
    ("a", "b", "task", "verdict"),
    [
        ([95, 95.2, 95.1], [90, 90.1, 90.2], "digits", REPRODUCED),
        ([90, 90.1, 90.2], [95, 95.2, 95.1], "digits", NOT_REPRODUCED),
        ([95, 90, 92], [91, 94, 90], "digits", UNDECIDED),
        ([95], [90], "digits", UNDECIDED),
        ([], [90, 91], "digits", UNDECIDED),
        ([100, 101], [150, 151], "pydoc", REPRODUCED),
        ([150, 151], [100, 101], "pydoc", NOT_REPRODUCED),
        ([90, 90], [90, 90], "digits", UNDECIDED),
    ],
)
def test_better(a, b, task, verdict):
    check = better("a beats b", curve("a", a, task), curve("b", b, task))
    assert check.verdict == verdict
    assert check.claim == "a beats b"


def test_seeds_that_agree_prove_nothing():
    assert better("", curve("a", [97.5, 97.5]), curve("b", [97.2, 97.2])).verdict == UNDECIDED
    assert better("", curve("a", [97.5, 97.5]), curve("b", [96.0, 97.4])).verdict == UNDECIDED
    assert better("", curve("a", [97.5, 97.5]), curve("b", [90.0, 90.1])).verdict == REPRODUCED


def test_a_method_that_is_not_complete_decides_nothing():
    part = curve("a", [99, 99.1, 99.2], states={2: "failed"})
    assert better("", part, curve("b", [90, 90.1, 90.2])).verdict == UNDECIDED
    gone = curve("b", [90, 90], states={0: "failed", 1: "failed"})
    assert better("", curve("a", [99, 99], states={0: "diverged"}), gone).verdict == UNDECIDED


def test_seeds_are_compared_with_their_like():
    """Seed 1 against seed 1, also where seed 0 of one of them failed."""
    adam, ours = curve("Adam", [100.0, 200.0], "pydoc"), curve("AdaBound", [50.0, 100.0], "pydoc", {0: "failed"})
    assert claims._gains(adam, ours) == [50.0]


def test_diverged_is_worse_than_anything():
    good, bad = curve("a", [10, 10]), curve("b", [99, 99], states={1: "diverged"})
    assert better("", good, bad).verdict == REPRODUCED
    assert better("", bad, good).verdict == NOT_REPRODUCED
    assert better("", bad, bad).verdict == UNDECIDED
    assert "b diverged" in better("", good, bad).measured


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REPRODUCED, UNDECIDED], UNDECIDED),
        ([REPRODUCED, UNDECIDED, NOT_REPRODUCED], NOT_REPRODUCED),
        ([], UNDECIDED),
    ],
)
def test_overall(verdicts, expected):
    assert overall([Check("", "", verdict) for verdict in verdicts]) == expected


def panels(name, value):
    """A study's panels; ``value`` gives the finals of a panel and label."""
    study = STUDIES[name]
    task = "pydoc" if name == "ptb" else "digits"
    return {p: {r.label: curve(r.label, value(p, r.label), task) for r in study.rows if r.panel == p}
            for p in study.panels()}  # fmt: skip


def verdicts(name, value):
    return [check.verdict for check in claims.CLAIMS[name](claims.Evidence(panels(name, value)))]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "ptb", "bound-speed", "final-step-size"])
def test_missing_runs_decide_nothing(name):
    assert set(verdicts(name, lambda panel, label: [])) == {UNDECIDED}


def test_the_papers_own_story_is_reproduced():
    order = {"AdaBound": 99.9, "AMSBound": 99.8, "SGDM": 99.6, "AdaGrad": 99.3, "Adam": 99.4, "AMSGrad": 99.3}
    order[REFERENCE] = 99.85
    spread = {label: 0.001 * place for place, label in enumerate(order, start=1)}
    for study in ("mnist", "cifar10"):
        ends = lambda _, label: [order[label] - spread[label], order[label] + spread[label]]  # noqa: E731
        assert set(verdicts(study, ends)) == {REPRODUCED}
    worse = {"Adam": 130.0, "SGD": 101.0, "AdaBound": 100.0, "AMSBound": 100.0}
    gain = {"L1": 0.0, "L2": 5.0, "L3": 10.0}
    ends = lambda p, label: worse[label] - (gain[p[:2]] if label == "AdaBound" else 0)  # noqa: E731
    story = verdicts("ptb", lambda p, label: [ends(p, label) - 0.1, ends(p, label) + 0.1])
    fast = [
        check.claim.endswith("in the first quarter")
        for check in claims.CLAIMS["ptb"](claims.Evidence(panels("ptb", lambda *_: [])))
    ]
    assert [verdict for verdict, early in zip(story, fast, strict=True) if not early] == [REPRODUCED] * 10
    assert [verdict for verdict, early in zip(story, fast, strict=True) if early] == [NOT_REPRODUCED] * 3, "flat curves"


@pytest.mark.parametrize(
    ("adabound", "verdict"),
    [([80.5, 80.4], REPRODUCED), ([99.5, 99.4], NOT_REPRODUCED), ([90.0, 79.0], UNDECIDED), ([], UNDECIDED)],
)
def test_a_start_is_like_adams_if_it_is_nearer_to_it_than_sgdms(adabound, verdict):
    finals = {"AdaBound": adabound, REFERENCE: [80.0, 80.0], "SGDM": [90.0, 90.1]}
    assert verdicts("mnist", lambda _, label: finals.get(label, [99.0, 99.0]))[0] == verdict


def test_bound_speed_needs_all_within_the_margin():
    near = {"β = 1 − 1/10": [95.0, 95.1]}
    assert verdicts("bound-speed", lambda _, label: near.get(label, [95.5, 95.6])) == [REPRODUCED] * 2
    far = {"β = 1 − 1/10": [80.0, 80.1]}
    assert verdicts("bound-speed", lambda _, label: far.get(label, [95.5, 95.6])) == [NOT_REPRODUCED] * 2


def test_final_step_size_compares_ranges_and_each_step():
    sgdm = iter([50.0, 95.0, 90.0, 80.0, 60.0, 40.0])
    values = {f"α = {a:g}": next(sgdm) for a in (1, 0.1, 0.03, 0.01, 0.003, 0.001)}
    found = verdicts("final-step-size", lambda panel, label: [values.get(label, 96.0) - 0.01, values.get(label, 96.0)])
    assert found == [REPRODUCED] * 7
    found = verdicts("final-step-size", lambda panel, label: [96.0, 96.1])
    assert found == [NOT_REPRODUCED] + [UNDECIDED] * 6


def test_learning_rates_and_their_evolution():
    adam = SampledRates(8, {}, {}, 100, min=1e-5, max=10.0, below=0.1, above=0.0)
    checks = claims.CLAIMS["learning-rates"](claims.Evidence({}, sampled={"Adam": adam}))
    assert [check.verdict for check in checks] == [REPRODUCED, NOT_REPRODUCED]
    rises = {"max": [1, 9, 5, 2, 0.2], "median": [0.1, 0.5, 0.3, 0.2, 0.11]}
    assert evolution_verdicts(rises) == [REPRODUCED] * 2
    falls = {"max": [9, 5, 4, 2, 0.2], "median": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert evolution_verdicts(falls) == [UNDECIDED, NOT_REPRODUCED]


def evolution_verdicts(layer):
    evidence = claims.Evidence({}, evolution=RateEvolution({"a": layer}, [], [], 0.1))
    return [check.verdict for check in claims.CLAIMS["rate-evolution"](evidence)]
