"""Verdicts on numbers whose verdict is known."""

import re
from dataclasses import replace

import pytest
from scipy import stats

from dynabound.lab.report.claims import judge_study
from dynabound.lab.report.groups import EARLY_TRAIN, LAST, LAST_TRAIN, Group, error_of_one
from dynabound.lab.report.read import Curve, RateEvolution, SampledRates, StudyRuns
from dynabound.lab.report.statistics import judge
from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, STUDIES, Row
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED

SPREAD = (-0.1, 0.0, 0.1)


def curve(label, values, task="digits", states=None, epochs=4, scale="demo"):
    """A method whose seeds have these constant curves, or, of a seed given as a list, that curve."""
    spec = RunSpec(task, epochs=epochs, scale=scale)
    seeds = []
    for seed, value in enumerate(values):
        points = value if isinstance(value, list) else [value] * epochs
        numbers = [x if spec.text else x / 100 for x in points]
        lines = [{f"train_{spec.metric}": x, f"test_{spec.metric}": x, "seconds": 1.0} for x in numbers]
        seeds.append(StoredRun(replace(spec, seed=seed), (states or {}).get(seed, "finished"), lines))
    return Curve(Row("panel", label, "perceptron", "adam"), spec, tuple(seeds))


def around(center, factor=1.0):
    return [center + factor * x for x in SPREAD]


def verdict(a, b, **kwargs):
    (check,) = judge([Group({"a": a, "b": b}).better("a beats b", "paper l. 1", "a", "b", **kwargs)])
    assert (check.claim, check.source) == ("a beats b", "paper l. 1")
    return check.verdict


@pytest.mark.parametrize(
    ("a", "b", "task", "expected"),
    [
        ([95, 95.2, 95.1], [90, 90.1, 90.2], "digits", SUPPORTED),
        ([90, 90.1, 90.2], [95, 95.2, 95.1], "digits", REFUTED),
        ([95, 90, 92], [91, 94, 90], "digits", UNDECIDED),
        ([95], [90], "digits", UNDECIDED),
        ([], [90, 91], "digits", UNDECIDED),
        ([100, 101], [150, 151], "pydoc", SUPPORTED),
        ([150, 151], [100, 101], "pydoc", REFUTED),
        ([90, 90], [90, 90], "digits", UNDECIDED),
        ([97.5, 97.5], [97.2, 97.2], "digits", UNDECIDED),
    ],
)
def test_better(a, b, task, expected):
    assert verdict(curve("a", a, task), curve("b", b, task)) == expected


def test_the_last_epoch_and_the_best_must_agree():
    late = curve("a", [[90, 95 + x] for x in SPREAD], epochs=2)
    early = curve("b", [[99, 92 + x] for x in SPREAD], epochs=2)
    assert verdict(late, early) == UNDECIDED
    assert verdict(late, early, measures=[LAST]) == SUPPORTED


def test_a_method_that_is_not_complete_decides_nothing():
    part = curve("a", [99, 99.1, 99.2], states={2: "failed"})
    assert verdict(part, curve("b", [90, 90.1, 90.2])) == UNDECIDED
    gone = curve("b", [90, 90], states={0: "failed", 1: "failed"})
    assert verdict(curve("a", [99, 99], states={0: "diverged"}), gone) == UNDECIDED


def test_diverged_is_worse_than_anything():
    good, bad = curve("a", [10, 10]), curve("b", [99, 99], states={1: "diverged"})
    assert verdict(good, bad) == SUPPORTED
    assert verdict(bad, good) == REFUTED
    assert verdict(bad, bad) == UNDECIDED
    same = Group({"a": good, "b": bad}).claim("", "paper", {"a": 1.0, "b": -1.0}, low=-2.0, high=2.0)
    assert same.verdict == REFUTED, "a method that diverged is not like one that did not"
    assert "b diverged" in same.measured


def test_early_claims_are_tested_in_pairs():
    """Seeds differ by 20 points, the methods by one in each of them."""
    a, b = curve("a", [60.0, 70.1, 80.0, 65.0]), curve("b", [59.1, 69.0, 78.9, 64.1])
    assert verdict(a, b, measures=[EARLY_TRAIN]) == SUPPORTED
    assert verdict(a, b, measures=[LAST_TRAIN]) == UNDECIDED, "ends are not paired"
    expected = stats.ttest_rel([60.0, 70.1, 80.0, 65.0], [59.1, 69.0, 78.9, 64.1], alternative="greater")
    estimate = Group({"a": a, "b": b}).comparison({"a": 1.0, "b": -1.0}, EARLY_TRAIN).estimate
    assert estimate.p_above(0.0) == pytest.approx(expected.pvalue)
    same = curve("b", [59.0, 69.1, 79.0, 64.0])
    assert verdict(a, same, measures=[EARLY_TRAIN]) == NOT_TESTABLE, "four differences that agree have no spread"


def test_an_interval_agrees_with_its_verdict():
    group = Group({"a": curve("a", around(95)), "b": curve("b", around(94)), "c": curve("c", around(94.9))})
    far, near = judge([group.better("", "paper", "a", "b"), group.better("", "paper", "a", "c")])
    assert far.verdict == SUPPORTED
    assert 0 < far.low < far.difference < far.high
    assert far.p < 0.01
    assert near.verdict == UNDECIDED
    assert near.low < 0 < near.high


def test_every_error_contains_the_binomial_error_of_the_test_set():
    values = [97.0, 97.4, 97.2]
    assert error_of_one("digits", values) == pytest.approx((0.2**2 + 97.2 * 2.8 / 360) ** 0.5)
    assert error_of_one("mnist", values) == pytest.approx((0.2**2 + 97.2 * 2.8 / 10_000) ** 0.5)
    assert error_of_one("pydoc", values) == pytest.approx(0.2)
    group = Group({"a": curve("a", values), "b": curve("b", values)})
    assert group.comparison({"a": 1.0, "b": -1.0}, LAST).test_error == pytest.approx((2 * 97.2 * 2.8 / 360) ** 0.5)


def panels(name, value, **kwargs):
    """A study's panels; ``value`` gives the seeds' numbers of a panel and label."""
    study = STUDIES[name]
    task = "pydoc" if name == "ptb" else "digits"
    labels = {p: [r.label for r in study.rows if r.panel == p] for p in study.panels()}
    if name in ("mnist", "cifar10"):
        labels = {p: list(dict.fromkeys([*names, *DEFAULTS.values()])) for p, names in labels.items()}
    return {p: {label: curve(label, rotated(value(p, label), place), task, **kwargs)
                for place, label in enumerate(names)} for p, names in labels.items()}  # fmt: skip


def rotated(values, places):
    """Other seeds are lucky with other methods: differences of equal seeds spread too."""
    places %= len(values) or 1
    return [*values[places:], *values[:places]]


def verdicts_on(name, value, **kwargs):
    return judge_study(name, StudyRuns(panels(name, value, **kwargs)))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "ptb", "bound-speed", "final-step-size"])
def test_missing_runs_decide_nothing(name):
    assert {each.verdict for each in verdicts_on(name, lambda panel, label: [])} <= {UNDECIDED, NOT_TESTABLE}


@pytest.mark.parametrize("name", ["mnist", "cifar10", "ptb", "bound-speed", "final-step-size"])
@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_claims_are_about_the_curves_of_the_scale(name, scale):
    study = STUDIES[name]
    found = {p: {r.label: curve(r.label, around(95.0), "pydoc" if name == "ptb" else "digits", scale=scale)
                 for r in study.rows if r.panel == p and r.included(scale)} for p in study.panels()}  # fmt: skip
    checks = judge_study(name, StudyRuns({p: curves for p, curves in found.items() if curves}))
    assert len(checks) >= 5
    assert len({check.claim for check in checks}) == len(checks)


STORY = {"AdaBound": 99.9, "AMSBound": 99.8, "SGDM": 99.6, "AdaGrad": 99.3, "Adam": 99.4, "AMSGrad": 99.3,
         REFERENCE: 99.8, "AdaBound, defaults": 99.85, "AMSBound, defaults": 99.75}  # fmt: skip


def test_the_papers_claims_are_supported_where_they_are_true():
    found = verdicts_on("mnist", lambda _, label: around(STORY[label], 0.1))
    assert {each.verdict for each in found if each.of_paper} == {SUPPORTED}
    assert {each.verdict for each in found if not each.of_paper} == {SUPPORTED}
    found = verdicts_on("cifar10", lambda _, label: around(STORY[label], 0.1))
    early = [each for each in found if "than SGDM early in training (epoch 1 of 4)" in each.claim]
    # The curves are flat. Some pairs of seeds differ by the same amount, and three of these decide nothing.
    assert {each.verdict for each in early} == {REFUTED, NOT_TESTABLE}
    size = [each for each in found if "about" in each.claim]
    assert {each.verdict for each in size} == {NOT_TESTABLE}
    assert {each.verdict for each in found if each.of_paper and each not in early + size} == {SUPPORTED}


@pytest.mark.parametrize(("seeds", "verdict"), [(3, NOT_TESTABLE), (5, SUPPORTED)])
def test_a_few_seeds_that_agree_cannot_decide_that_all_methods_come_near_100_percent(seeds, verdict):
    group = Group({"a": curve("a", [100.0] * seeds), "b": curve("b", [99.5, 99.6, 99.7])})
    (found,) = judge([group.all_of("", "paper", [{"a": 1.0}, {"b": 1.0}], LAST_TRAIN, constant=-99.0)])
    assert found.verdict == verdict
    assert ("3 seeds of a method agree exactly, and a sign test takes 5" in found.measured) == (seeds == 3)
    group = Group({"a": curve("a", [100.0] * 3), "b": curve("b", around(90.0))})
    (found,) = judge([group.all_of("", "paper", [{"a": 1.0}, {"b": 1.0}], LAST_TRAIN, constant=-99.0)])
    assert found.verdict == REFUTED


def test_the_size_of_an_effect_is_judged_at_paper_scale():
    ends = {**STORY, "AdaBound": 95.0, "Adam": 93.0, "SGDM": 94.0}
    found = verdicts_on("cifar10", lambda _, label: around(ends[label]), scale="paper")
    assert [each.verdict for each in found if "about" in each.claim] == [SUPPORTED] * 3


def test_language_models():
    ends = {"Adam": 130.0, "SGD": 101.0, "AdaBound": 100.0, "AMSBound": 100.0}
    gain = {"L1": 0.0, "L2": 5.0, "L3": 10.0}
    value = lambda p, label: ends[label.partition(", ")[0]] - (gain[p[:2]] if "Bound" in label else 0)  # noqa: E731
    found = verdicts_on("ptb", lambda p, label: around(value(p, label)))
    verdicts = {each.claim: each.verdict for each in found}
    assert all(v == SUPPORTED for c, v in verdicts.items() if c.endswith("ends better than Adam"))
    assert (
        verdicts["the gain of AdaBound and AMSBound over Adam is larger with three layers than with one"] == SUPPORTED
    )
    assert verdicts["L1: Adam is the fastest of all early in training (epoch 1 of 4)"] == REFUTED, "flat curves"
    assert verdicts["L1: the curves of AdaBound and AMSBound are smoother than that of SGD"] == NOT_TESTABLE
    falling = {label: [200 - 4 * i + (9 if label == "SGD" and i % 2 else 0) for i in range(20)] for label in ends}
    long = verdicts_on(
        "ptb", lambda p, label: [[x + y for x in falling[label.partition(", ")[0]]] for y in SPREAD], epochs=20
    )
    assert {each.verdict for each in long if "smoother" in each.claim} == {SUPPORTED}
    assert any("early in training (epochs 1 to 5 of 20)" in each.claim for each in long)


@pytest.mark.parametrize(
    ("adabound", "verdict"),
    [([80.5, 80.4, 80.6], SUPPORTED), ([99.5, 99.4, 99.2], REFUTED), ([90.0, 79.0, 91.0], UNDECIDED),
     ([], UNDECIDED)],
)  # fmt: skip
def test_a_start_is_like_adams_if_it_is_nearer_to_it_than_to_sgdms(adabound, verdict):
    finals = {DEFAULTS["AdaBound"]: adabound, REFERENCE: around(80.0), "SGDM": around(90.0)}
    found = verdicts_on("mnist", lambda _, label: finals.get(label, around(99.0)))
    assert next(each.verdict for each in found if "after one epoch" in each.claim) == verdict


def test_bound_speeds_are_almost_the_same_only_if_each_is_like_the_default():
    near = {"β = 1 − 1/10": around(95.0)}
    found = verdicts_on("bound-speed", lambda _, label: near.get(label, around(95.5)))
    assert {each.verdict for each in found} == {SUPPORTED}
    far = {"β = 1 − 1/10": around(80.0)}
    found = verdicts_on("bound-speed", lambda _, label: far.get(label, around(95.5)))
    assert [each.verdict for each in found] == [REFUTED, *[SUPPORTED] * 3, REFUTED] * 2


def test_final_step_sizes():
    sgdm = {"α = 1": 50.0, "α = 0.1": 95.0, "α = 0.03": 90.0, "α = 0.01": 80.0, "α = 0.003": 60.0, "α = 0.001": 40.0}
    found = verdicts_on("final-step-size", lambda panel, label: around(sgdm[label] if panel == "SGDM" else 96.0))
    assert {each.verdict for each in found} == {SUPPORTED}
    assert {each.source for each in found} == {"paper l. 1124", "paper l. 1126", "paper l. 1130", "Savarese 2019"}
    found = verdicts_on("final-step-size", lambda panel, label: around(96.0))
    assert [each.verdict for each in found] == [UNDECIDED, *[SUPPORTED] * 5, *[UNDECIDED] * 6, *[SUPPORTED] * 6]


def test_learning_rates():
    adam = SampledRates(8, {}, {}, min=1e-5, max=10.0, below=0.1, above=0.0)
    for reached, second in ((99.9, REFUTED), (90.0, NOT_TESTABLE)):
        evidence = StudyRuns({"ResNet-34": {"Adam": curve("Adam", [reached])}}, sampled={"Adam": adam})
        assert [each.verdict for each in judge_study("learning-rates", evidence)] == [SUPPORTED, second]


@pytest.mark.parametrize(("task", "verdict"), [("cifar10", SUPPORTED), ("digits", NOT_TESTABLE)])
def test_huge_rates_count_where_images_are_large_enough(task, verdict):
    """In images of 8×8 pixels some weights see only padding, and weight decay alone makes their rates huge."""
    adam = SampledRates(8, {}, {}, min=1e-5, max=2000.0, below=0.1, above=0.01)
    evidence = StudyRuns({"ResNet-34": {"Adam": curve("Adam", [99.9], task)}}, sampled={"Adam": adam})
    assert judge_study("learning-rates", evidence)[1].verdict == verdict


def test_the_evolution_of_learning_rates():
    rises = {"max": [1, 9, 5, 2, 0.2], "median": [0.1, 0.5, 0.3, 0.2, 0.11]}
    assert evolution_verdicts(rises) == [SUPPORTED] * 2
    falls = {"max": [9, 5, 4, 2, 0.2], "median": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert evolution_verdicts(falls) == [NOT_TESTABLE, REFUTED]
    lifted = {"max": [0.01, 0.02, 0.04, 0.06, 0.08], "median": [0.01, 0.02, 0.04, 0.06, 0.0801]}
    assert evolution_verdicts(lifted, lower=0.08) == [NOT_TESTABLE] * 2  # the bounds have not closed
    assert evolution_verdicts(lifted, lower=0.05) == [REFUTED] * 2


def evolution_verdicts(layer, lower=0.0):
    evidence = StudyRuns({}, evolution=RateEvolution({"a": layer}, [lower], [1.0], 0.1))
    return [each.verdict for each in judge_study("rate-evolution", evidence)]


def test_every_claim_names_its_source():
    """Those of the paper name the line of its LaTeX source that states them."""
    lines = set()
    for name in ("mnist", "cifar10", "ptb", "bound-speed", "final-step-size"):
        for each in verdicts_on(name, lambda panel, label: around(95.0)):
            source = re.fullmatch(r"paper l\. (\d+)|ours|Savarese 2019", each.source)
            assert source, each
            lines.add(source.group(1))
    assert lines == {"96", "396", "397", "398", "449", "450", "451", "452", "456", "457", "488", "489", "492", "497",
                     "1091", "1093", "1124", "1126", "1130", None}  # fmt: skip
