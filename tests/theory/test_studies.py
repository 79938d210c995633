"""The demonstrations: their numbers, and that a verdict changes when its claim no longer holds."""

import json
import os
import re

import numpy as np
import pytest

from dynabound.bounds import certificate
from dynabound.theory import problems, studies, theorems_1_to_3, theorems_4_and_5, what_holds
from dynabound.theory.draw import draw
from dynabound.theory.verdict import REFUTED, SUPPORTED, UNDECIDED

HOLDS = {SUPPORTED: True, REFUTED: False, UNDECIDED: None}


def verdicts(study, *words):
    """The verdicts whose claim or settings contain every word: True, False, or None for undecided."""
    found = [HOLDS[v.verdict] for v in study.verdicts if all(word in f"{v.claim} | {v.settings}" for word in words)]
    assert found, words
    return found


@pytest.fixture(scope="module")
def theorem_1():
    return theorems_1_to_3.theorem_1()


@pytest.fixture(scope="module")
def theorem_2():
    return theorems_1_to_3.theorem_2()


@pytest.fixture(scope="module")
def theorem_3():
    return theorems_1_to_3.theorem_3()


@pytest.fixture(scope="module")
def counterexample():
    return theorems_4_and_5.counterexample()


@pytest.fixture(scope="module")
def measured():
    return theorems_4_and_5.regret_bounds(seeds=1, steps=100)


@pytest.fixture(scope="module")
def guarantees():
    return what_holds.guarantees(seeds=100)


@pytest.fixture(scope="module")
def slow_bounds():
    return what_holds.slow_bounds(steps=20_000)


def test_theorem_1(theorem_1):
    assert all(verdicts(theorem_1, "stays at x ≥ 0"))
    assert all(verdicts(theorem_1, "reaches x < 0"))
    assert all(verdicts(theorem_1, "AdaBound escapes for every α"))
    firsts = {v.claim.split()[0]: v.measured for v in theorem_1.verdicts if "reaches" in v.claim}
    assert "t = 3;" in firsts["SGD"]
    assert "t = 53;" in firsts["AdaGrad"]
    assert "t = 653;" in firsts["AMSGrad"]
    assert verdicts(theorem_1, "applies to AMSGrad") == [False]
    # The caveats.
    assert verdicts(theorem_1, "f_t is convex") == [False]
    assert verdicts(theorem_1, "debiased, α/√t") == [True]
    assert verdicts(theorem_1, "debiased, constant") == [False]
    assert verdicts(theorem_1, "Momentum does not free Adam") == [False]
    assert verdicts(theorem_1, "small ε") == [True]
    outcomes = theorem_1.data["outcomes"]
    assert set(outcomes["AdaBound"]) == {0}
    assert 0 not in outcomes["Adam"] + outcomes["RMSprop"]
    largest = theorem_1.data["alphas"][np.flatnonzero(np.array(outcomes["SGD"]) == 0)[-1]]
    assert largest == pytest.approx(1.0)


def test_theorem_1_verdicts_change():
    short = theorems_1_to_3.theorem_1(period=3)
    assert verdicts(short, "C meets") == [False]
    assert not any(verdicts(short, "Adam stays at x ≥ 0"))
    steep = theorems_1_to_3.theorem_1(alpha=2.0, steps=1000)
    assert verdicts(steep, "SGD reaches") == [False]
    wide = theorems_1_to_3.theorem_1(gamma=0.01, steps=1000)  # α*(1 + 1/γ) = 10.1 lets the first step jump past 1
    assert verdicts(wide, "AdaBound escapes for every α") == [False]


def test_theorem_2(theorem_2):
    assert all(verdicts(theorem_2, "Adam's average regret stays"))
    assert all(verdicts(theorem_2, "average regret goes to 0"))
    units = {name: values[-1] for name, values in theorem_2.data["units"].items()}
    assert units["Adam"] == pytest.approx(1.0, abs=0.01)
    assert units["AdaBound"] == pytest.approx(0.0216, abs=0.001)
    assert units["AMSBound"] == pytest.approx(0.0215, abs=0.001)
    assert units["AMSGrad"] == pytest.approx(0.015, abs=0.001)
    assert units["SGD"] == pytest.approx(0.0212, abs=0.001)
    ends = [values[-1] for values in theorem_2.data["adam_units"].values()]
    assert 0.998 < min(ends) < max(ends) < 1.07
    assert verdicts(theorem_2, "With a constant step", "α* = 0.1") == [False]
    assert verdicts(theorem_2, "With a constant step", "α* = 0.001") == [True]
    assert theorem_2.data["constant_step"]["adabound"]["0.1"] == pytest.approx(10.4, abs=0.1)
    assert verdicts(theorem_2, "With its default settings") == [False]  # a constant step and β₁ = 0.9


def test_theorem_2_verdicts_change():
    mild = theorems_1_to_3.theorem_2(period=4, beta2=0.9, steps=100_000)
    assert verdicts(mild, "C meets") == [False]
    assert not any(verdicts(mild, "Adam's average regret stays"))
    constant = theorems_1_to_3.theorem_2(scheme="constant", steps=20_000)
    assert verdicts(constant, "SGD's average regret goes to 0") == [False]


def test_theorem_3(theorem_3):
    last = theorem_3.data["last"]
    assert last["Adam"].min() > 0.99
    assert max(last[name].max() for name in ("AdaBound", "AMSBound", "SGD")) < -0.92
    assert last["AMSGrad"].max() < -0.96
    assert all(verdicts(theorem_3, "in every run", "converge"))
    assert verdicts(theorem_3, "constant α", "α* = 0.1") == [False]
    assert verdicts(theorem_3, "constant α", "α* = 0.0003") == [True]


def test_theorem_3_verdicts_change():
    kind = theorems_1_to_3.theorem_3(period=2, beta2=0.99, seeds=5)
    assert verdicts(kind, "Adam does not converge") == [False]
    assert verdicts(kind, "expected step points away") == [False]
    assert not kind.statements  # C is too small: what was run is not the theorem's problem
    constant = theorems_1_to_3.theorem_3(scheme="constant", steps=2000, seeds=3)
    assert verdicts(constant, "SGD converges") == [False]


@pytest.mark.parametrize(
    ("demonstration", "options", "undecided", "decided"),
    [
        ("theorem_1", dict(beta2=0.99), ["AMSGrad reaches", "AdaBound reaches", "AMSBound reaches", "AdaBound escapes"],
         {"SGD reaches": True, "Adam stays": True}),
        ("theorem_1", dict(alpha=2.0, steps=100), [], {"SGD reaches": False}),  # beyond 1 there is no way back
        ("theorem_2", dict(beta2=0.9), ["SGD's", "AMSGrad's", "AdaBound's average regret goes", "AMSBound's"],
         {"Adam's average": True}),
        ("theorem_2", dict(steps=5000), ["SGD's", "AMSGrad's", "AdaBound's average regret goes", "AMSBound's"], {}),
        ("theorem_2", dict(alpha=1e-6, steps=20_000), ["SGD's", "Adam's average regret stays at 2/C: "], {}),
        ("theorem_3", dict(beta2=0.9, period=50), ["SGD converges", "AdaBound converges", "AMSBound converges"],
         {"Adam does not": True, "AMSGrad converges": True}),
        ("theorem_3", dict(alpha=1e-4, final_lr=1e-4, steps=100, seeds=3), ["SGD converges", "Adam does not"], {}),
    ],
    ids=lambda value: "-".join(f"{key}={number}" for key, number in value.items()) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_run_that_is_too_short_decides_nothing(demonstration, options, undecided, decided):
    demo = getattr(theorems_1_to_3, demonstration)(**options)
    for words in undecided:
        assert set(verdicts(demo, words)) == {None}, words
    for words, verdict in decided.items():
        assert set(verdicts(demo, words)) == {verdict}, words


def test_longer_runs_decide():
    """What was undecided at T = 10,000 comes out as it should at T = 100,000."""
    longer = theorems_1_to_3.theorem_3(beta2=0.9, period=50, steps=100_000, seeds=5)
    assert all(verdicts(longer, "converges to x* = −1"))


STATEMENTS = {
    "Theorem 1": SUPPORTED, "Theorem 2": SUPPORTED, "Theorem 3": SUPPORTED,
    "Theorem 4": REFUTED, "Corollary 4.1": REFUTED, "Theorem 5": REFUTED,
    "Lemma 1": SUPPORTED, "Lemma 2": SUPPORTED, "Lemma 3": SUPPORTED,
}  # fmt: skip


@pytest.fixture(scope="module")
def demos(theorem_1, theorem_2, theorem_3, measured, counterexample, guarantees, slow_bounds):
    return theorem_1, theorem_2, theorem_3, measured, counterexample, guarantees, slow_bounds


def test_theorems_1_to_3_hold_and_4_and_5_are_refuted(demos):
    found = {name: word for demo in demos for name, word in demo.statements.items()}
    numbered = {verdict.statement for demo in demos for verdict in demo.verdicts if verdict.kind == "theorem"}
    assert numbered == STATEMENTS.keys()
    assert {name: found[name] for name in STATEMENTS} == STATEMENTS
    assert found["Theorem 1 for AMSGrad"] == found["Theorem 1 for debiased Adam"] == REFUTED
    assert (found["AdaBound's regret is O(√T)"], found["AMSBound's regret is O(√T)"]) == (REFUTED, SUPPORTED)
    assert found["Theorem 2 for decreasing β₁"] == found["Theorem 1 with a constant step"] == SUPPORTED


def test_every_verdict_has_its_source(demos):
    for demo in demos:
        for verdict, stored in zip(demo.verdicts, demo.as_dict()["verdicts"], strict=True):
            assert re.fullmatch(r"paper l\. \d+|Savarese 2019|ours", verdict.source), verdict
            assert verdict.source.startswith("paper") == bool(verdict.statement) == bool(verdict.kind)
            assert verdict.verdict in (SUPPORTED, REFUTED), verdict  # the default settings decide every claim
            assert stored == {key: value for key, value in vars(verdict).items() if key in stored}
        assert demo.as_dict()["statements"] == demo.statements


def test_outside_its_condition_a_claim_is_not_the_papers():
    small = theorems_1_to_3.theorem_1(period=3, steps=100)
    assert "Theorem 1" not in small.statements
    assert "Theorem 2" not in theorems_1_to_3.theorem_2(period=4, steps=100).statements


def test_counterexample(counterexample):
    for name, theorem in (("AdaBound", "Theorem 4"), ("AMSBound", "Theorem 5")):
        assert verdicts(counterexample, f"{theorem}'s inequality", "smallest", name) == [False, False]
        found = counterexample.data[f"smallest {name}"]
        rows = {t: (r, right) for t, r, right in zip(found["t"], found["regret"], found["theorem"], strict=True)}
        assert rows[4] == pytest.approx((8, 7), abs=1e-3)
        assert rows[100] == pytest.approx((200, 39), abs=1e-2)
        assert rows[2][0] < rows[2][1]
    assert all(verdicts(counterexample, "meets"))
    assert verdicts(counterexample, "Theorem B holds") == 4 * [True]
    assert verdicts(counterexample, "All bounds hold") == [True, True]
    assert verdicts(counterexample, "corollary") == [False, False]
    shown = [v.measured for v in counterexample.verdicts if "corollary" in v.claim]
    assert shown == ["R_T = 8.0000, right-hand side 7", "R_T = 8.0000, right-hand side 7.008"]
    assert verdicts(counterexample, "Theorem 4's inequality", "Savarese") == [False]
    assert counterexample.data["savarese AdaBound"]["ratios"][:, -1].min() > 1.3


def test_counterexample_verdicts_change():
    moving = theorems_4_and_5.counterexample(alpha=1.0, steps=200, seeds=2)
    assert all(verdicts(moving, "inequality", "smallest"))
    short = theorems_4_and_5.counterexample(steps=50, seeds=3)
    assert verdicts(short, "Theorem 4's inequality", "Savarese") == [True]


def test_regret(measured):
    assert all(verdicts(measured, "random convex problems"))
    assert all(verdicts(measured, "The corollary"))  # however few seeds there are
    for lemma in ("Lemma 1: ", "Lemma 2: ", "Lemma 3: "):
        assert verdicts(measured, lemma) == [True]
    assert verdicts(measured, "The lemma's proof") == [False, False]
    assert verdicts(measured, "Lemma 2 for β₁ₜ ≤ β₁") == [False]
    assert not any(verdicts(measured, "1/η_t never decreases"))
    assert all(verdicts(measured, "The smallest M"))
    assert measured.data["gamma_threshold"] == pytest.approx(4.0, abs=1e-3)
    assert verdicts(measured, "O(√T)", "β₁ₜ = β₁") == [False, True, True]
    assert verdicts(measured, "O(√T)", "β₁/t") == [True]


def test_regret_verdicts_change():
    quick = theorems_4_and_5.regret_bounds(seeds=1, steps=50, gamma=4.0)
    assert verdicts(quick, "1/η_t never decreases") == [True]


def test_guarantees(guarantees):
    assert len(verdicts(guarantees, "holds")) == 5
    assert all(verdicts(guarantees, ""))
    useful = guarantees.data["promised"]["useful_from"]
    assert useful == {"Theorem A": 2332, "Savarese 2019": pytest.approx(1.61e9, rel=0.01)}
    strict = what_holds.guarantees(gamma=10.0, final_lr=1.0, steps=5, seeds=2)
    assert strict.data["promised"]["useful_from"]["Theorem A"] < 20


def test_slow_bounds(slow_bounds):
    assert all(verdicts(slow_bounds, "Theorems A and C hold"))
    assert verdicts(slow_bounds, "The regret is O(√T)", "AdaBound") == [False, False, False, True]
    assert verdicts(slow_bounds, "The regret is O(√T)", "AMSBound") == 4 * [True]
    assert verdicts(slow_bounds, "grows like T^(1−a)") == 3 * [True]
    # Each period of six steps costs t^−a, once x returns to 1.
    regret, t = slow_bounds.data["regret"]["AdaBound, a = 0.1"], slow_bounds.data["t"]
    expected = (np.arange(1.0, 20_001) ** -0.1).cumsum()[t - 1] / 6
    np.testing.assert_allclose(regret[-10:], expected[-10:], rtol=0.02)
    assert set(verdicts(what_holds.slow_bounds(steps=1000), "The regret is O(√T)")) == {None}


@pytest.mark.parametrize("name", ["AdaBound", "AMSBound"])
def test_slow_bounds_meet_what_theorem_4_asks_for(name):
    method = problems.slow_bounds(100, 0.4, name)[1]
    found = certificate(lambda t: method.bounds(t), final_lr=method.final_lr)
    monotone = found.lower_positive and found.lower_never_decreases and found.upper_never_increases
    assert monotone  # and 1 ± t^−a/2 converges to 1
    assert found.kappa > 100  # it grows with the steps that are looked at


@pytest.mark.slow
def test_every_study_can_be_written(tmp_path, demos, counterexample):
    for study in demos:
        draw(study).draw_without_rendering()
    paths = studies.write(counterexample, tmp_path / "new")
    assert [path.suffix for path in paths] == [".json", ".png", ".svg", ".pdf"]
    stored = json.loads(paths[0].read_text("utf-8"))
    assert [v["verdict"] for v in stored["verdicts"]] == [v.verdict for v in counterexample.verdicts]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "new").iterdir())) == 4
    again = studies.write(counterexample, tmp_path / "again")  # the same numbers, the same bytes
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_a_picture_says_which_regrets_it_cannot_show(theorem_1, theorem_2):
    assert min(theorem_2.data["adam_units"]["10"]) < 0
    figures = {name: draw(demo) for name, demo in (("theorem-1", theorem_1), ("theorem-2", theorem_2))}
    texts = {name: [text.get_text() for axes in figure.axes for text in axes.texts] for name, figure in figures.items()}
    assert "not shown where it is negative or below 1e-06: Adam, α = 1; Adam, α = 10" in texts["theorem-2"]
    assert not any("negative" in text for text in texts["theorem-1"])  # nothing is below its floor


def test_an_interrupt_leaves_no_incomplete_file(tmp_path, theorem_3, monkeypatch):
    def interrupted(source, target):  # when the new file is written, and before it takes the old one's place
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        studies.write(theorem_3, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", studies.DEMONSTRATIONS)
def test_one_step_is_enough_to_run(name):
    options = studies.choose([name], dict(steps=1))[name]
    assert studies.DEMONSTRATIONS[name](**options).as_dict()["settings"]
