"""The demonstrations: their numbers, and that a verdict changes when its claim no longer holds."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from dynabound._extras import pip_command
from dynabound.cli import app
from dynabound.theory import problems, studies, theorems_1_to_3, theorems_4_and_5
from dynabound.theory.fast import race
from dynabound.theory.framework import Method
from dynabound.theory.regret import regret


def verdicts(study, *words):
    """The verdicts whose claim or settings contain every word, as a list of booleans."""
    found = [v.holds for v in study.verdicts if all(word in f"{v.claim} | {v.settings}" for word in words)]
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


@pytest.mark.parametrize("scheme", ["sqrt", "constant"])
@pytest.mark.parametrize("beta2", [0.9, 0.99])
def test_adam_and_rmsprop_never_leave(beta2, scheme):
    problem = problems.theorem_1(problems.theorem_1_period(beta2))
    lanes = [
        (problem, Method(name, alpha=float(alpha), beta2=beta2, scheme=scheme))
        for name in ("Adam", "RMSprop")
        for alpha in np.logspace(-10, 10, 21)
    ]
    for run in race(lanes, 10_000):
        assert run.lowest >= 0
        assert (regret(run) >= 100.0 * run.at - 1).all()


def test_theorem_1(theorem_1):
    assert all(verdicts(theorem_1, "stays at x ≥ 0"))
    assert all(verdicts(theorem_1, "reaches x < 0"))
    assert all(verdicts(theorem_1, "AdaBound escapes for every α"))
    firsts = {v.claim.split()[0]: v.measured for v in theorem_1.verdicts if "reaches" in v.claim}
    assert "t = 3;" in firsts["SGD"]
    assert "t = 53;" in firsts["AdaGrad"]
    assert "t = 653;" in firsts["AMSGrad"]
    # The catches.
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


def test_theorem_2_verdicts_change():
    mild = theorems_1_to_3.theorem_2(period=4, beta2=0.9, steps=100_000)
    assert verdicts(mild, "C meets") == [False]
    assert not any(verdicts(mild, "Adam's average regret stays"))
    timid = theorems_1_to_3.theorem_2(alpha=1e-6, steps=20_000)
    assert verdicts(timid, "SGD's average regret goes to 0") == [False]


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
    short = theorems_1_to_3.theorem_3(alpha=1e-4, final_lr=1e-4, steps=100, seeds=3)
    assert verdicts(short, "SGD converges") == [False]


def test_counterexample(counterexample):
    for name, theorem in (("AdaBound", "Theorem 4"), ("AMSBound", "Theorem 5")):
        assert verdicts(counterexample, f"{theorem}'s inequality", "smallest", name) == [False, False]
        found = counterexample.data[f"smallest {name}"]
        rows = {t: (r, right) for t, r, right in zip(found["t"], found["regret"], found["theorem"], strict=True)}
        assert rows[4] == pytest.approx((8, 7), abs=1e-3)
        assert rows[100] == pytest.approx((200, 39), abs=1e-2)
        assert rows[2][0] < rows[2][1]
    assert all(verdicts(counterexample, "meets"))
    assert all(verdicts(counterexample, "corrected"))
    assert verdicts(counterexample, "Theorem 4's inequality", "Savarese") == [False]
    assert counterexample.data["savarese AdaBound"]["ratios"][:, -1].min() > 1.3


def test_counterexample_verdicts_change():
    moving = theorems_4_and_5.counterexample(alpha=1.0, steps=200, seeds=2)
    assert all(verdicts(moving, "inequality", "smallest"))
    short = theorems_4_and_5.counterexample(steps=50, seeds=3)
    assert verdicts(short, "Theorem 4's inequality", "Savarese") == [True]


def test_regret(measured):
    assert all(verdicts(measured, "random convex problems"))
    assert not any(verdicts(measured, "1/η_t never decreases"))
    assert all(verdicts(measured, "The smallest M"))
    assert measured.data["gamma_threshold"] == pytest.approx(4.0, abs=1e-3)
    assert verdicts(measured, "O(√T)", "constant") == [False]
    assert verdicts(measured, "O(√T)", "β₁/t") == [True]


def test_regret_verdicts_change():
    quick = theorems_4_and_5.regret_bounds(seeds=1, steps=50, gamma=4.0)
    assert verdicts(quick, "1/η_t never decreases") == [True]


def test_every_study_can_be_written(tmp_path, theorem_1, theorem_2, theorem_3, measured, counterexample):
    for study in (theorem_1, theorem_2, theorem_3, measured, counterexample):
        paths = studies.write(study, tmp_path / "new")
        assert [path.suffix for path in paths] == [".json", ".png", ".svg", ".pdf"]
        stored = json.loads(paths[0].read_text("utf-8"))
        assert [v["holds"] for v in stored["verdicts"]] == [v.holds for v in study.verdicts]
        assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "new").iterdir())) == 20
    again = studies.write(study, tmp_path / "again")  # the same numbers, the same bytes
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


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


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_missing_extra_is_named():
    hide = "import sys; sys.modules['numba'] = None; "
    failed = python(hide + "import dynabound.theory")
    assert f"numba is not installed: {pip_command('lab')}" in failed.stderr
    failed = python(hide + "sys.argv[1:] = ['theory']; from dynabound.__main__ import main; main()")
    assert failed.stderr.strip() == f"dynabound: numba is not installed: {pip_command('lab')}"


def test_the_core_does_not_import_the_lab():
    loaded = python("import sys, dynabound; print({'numba', 'matplotlib', 'rich', 'typer'} & set(sys.modules))")
    assert loaded.stdout.strip() == "set()"


def run(*arguments):
    return CliRunner().invoke(app, ["theory", *map(str, arguments)])


def test_without_a_name_the_command_lists_the_studies():
    result = run()
    assert result.exit_code == 0
    for name in studies.DEMONSTRATIONS:
        assert name in result.stdout
    assert json.loads(run("--json").stdout).keys() == studies.DEMONSTRATIONS.keys()


def test_the_command_prints_verdicts_and_writes(tmp_path):
    result = run("theorem-3", "--seeds", 3, "--T", 2000, "--out", tmp_path)
    assert result.exit_code == 0
    assert "holds" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {f"theorem-3.{kind}" for kind in ("json", "png", "svg", "pdf")}


def test_the_command_prints_json_alone(tmp_path):
    result = run("theorem-3", "--seeds", 2, "--C", 30, "--T", 500, "--json", "--out", tmp_path)
    (study,) = json.loads(result.stdout)
    assert study["settings"]["period"] == 30
    stored = json.loads((tmp_path / "theorem-3.json").read_text("utf-8"))
    assert study == {key: value for key, value in stored.items() if key not in ("data", "digest")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("theorem-9",), "study='theorem-9': must be one of theorem-1"),
        (("theorem-2", "--C", 21), "C=21: must be an even integer"),
        (("theorem-2", "--beta1", 0.8), "beta1=0.8: must be in [0, sqrt(beta2))"),
        (("theorem-1", "--T", 0), "steps=0: must be at least 1"),
        (("theorem-1", "--scheme", "cosine"), "scheme='cosine': must be"),
        (("theorem-3", "--seeds", 0), "seeds=0: must be at least 1"),
        (("regret", "--C", 20), "C=20: regret does not use it"),
        (("theorem-3", "theorem-2", "--C", 21, "--T", 100), "C=21: must be an even integer"),
    ],
)
def test_bad_input_writes_nothing(arguments, message, tmp_path):
    result = run(*arguments, "--out", tmp_path / "new")
    assert result.exit_code != 0
    assert message in result.output
    assert not (tmp_path / "new").exists()
