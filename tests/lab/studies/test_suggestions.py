"""Suggested learning rates: made once, kept, read by everything that lists runs."""

import dataclasses
import json
import random
from pathlib import Path

import pytest

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import plan, recipes, suggestions
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import DEFAULTS
from dynabound.tuning import Suggestion, decide, suggest
from helpers import tiny_studies as cases

SMALL = dict(task="digits", hidden=4, epochs=20, examples=320, batch_size=32)  # 200 steps


@pytest.fixture
def study(monkeypatch):
    """AdaBound, suggested and at its defaults, on a small perceptron."""
    study = cases.make_tiny(monkeypatch)
    monkeypatch.setattr(recipes, "SUGGESTED", ("demo",))
    monkeypatch.setitem(recipes.WORKLOADS["demo"], "perceptron", SMALL)
    rows = tuple(row for row in study.rows if row.label in ("AdaBound", DEFAULTS["AdaBound"]))
    return recipes.Study("mnist", "", "", rows, seeds={"demo": 2})


def specs(study, store):
    return plan.wanted([study], "demo", StoredRuns(store), StoredRuns(store).losses())


def test_runs_wait_for_their_suggestion_and_are_counted_before(study, tmp_path):
    store = Store(tmp_path / "runs")
    (missing,) = suggestions.missing([study], "demo", store)
    assert missing == study.rows[0].spec("demo")
    assert len(specs(study, store)) == 2, "those at the defaults"
    assert len({run.spec.name for run in plan.plan([study], "demo", StoredRuns(store))}) == 4
    assert len(set(plan.wanted([study], "demo", StoredRuns(store), StoredRuns(store).losses(), assume=True))) == 4


def test_a_suggestion_is_made_once_and_used(study, tmp_path):
    store = Store(tmp_path / "runs")
    (spec,) = suggestions.missing([study], "demo", store)
    found = suggestions.compute(spec, store)
    assert suggestions.missing([study], "demo", store) == []
    assert suggestions.read(spec, store) == found
    suggested, defaults = specs(study, store)[::2]
    assert {"lr": suggested.lr, **suggested.options} == pytest.approx(
        {"lr": found.lr, "final_lr": found.final_lr, "gamma": found.gamma}, rel=5e-3
    )  # three digits are kept
    assert defaults == spec
    (path,) = (tmp_path / "suggestions").iterdir()
    assert json.loads(path.read_text())["spec"] == json.loads(spec.to_json())


def test_it_is_that_of_the_models_own_training(study, tmp_path):
    """Against suggest itself, called on the run's model and batches with nothing of the lab's around it."""
    import torch
    import torch.nn.functional as F

    from dynabound.lab.tasks.datasets import load
    from dynabound.lab.training.loop import Training

    spec = study.rows[0].spec("demo")
    training = Training(spec, load("digits"), torch.device("cpu"))
    batches = [batch for epoch in range(1, 21) for batch in training.batches.epoch(epoch, 0)]
    expected = suggest(training.model, lambda model, batch: F.cross_entropy(model(batch.x), batch.y), batches, 200,
                       weight_decay=0.0, amsbound=False)  # fmt: skip
    found = suggestions.compute(spec, Store(tmp_path / "runs"))
    assert (found.lr, found.final_lr) == (expected.lr, expected.final_lr)


@pytest.mark.parametrize(
    "contents", [b"", b"{", b"[]", b"{}", b'{"suggestion": {}}', b'{"suggestion": {"lr": 1}}', b"\xff"]
)
def test_a_damaged_suggestion_is_made_again(contents, study, tmp_path):
    store = Store(tmp_path / "runs")
    (spec,) = suggestions.missing([study], "demo", store)
    (tmp_path / "suggestions").mkdir()
    (tmp_path / "suggestions" / f"{spec.name}.json").write_bytes(contents)
    assert suggestions.missing([study], "demo", store) == [spec]


def test_no_flipped_bit_of_a_suggestion_is_believed(study, tmp_path):
    store, choose = Store(tmp_path / "runs"), random.Random(0)
    (spec,) = suggestions.missing([study], "demo", store)
    found = suggestions.compute(spec, store)
    (path,) = (tmp_path / "suggestions").iterdir()
    contents = path.read_bytes()
    for _ in range(200):
        place, bit = choose.randrange(len(contents)), 1 << choose.randrange(8)
        path.write_bytes(contents[:place] + bytes([contents[place] ^ bit]) + contents[place + 1 :])
        assert suggestions.read(spec, store) in (found, None)


def test_the_suggestion_for_another_run_is_not_used(study, tmp_path):
    store = Store(tmp_path / "runs")
    (spec,) = suggestions.missing([study], "demo", store)
    suggestions.compute(spec, store)
    (path,) = (tmp_path / "suggestions").iterdir()
    other = dataclasses.replace(spec, seed=1)
    path.rename(path.with_name(f"{other.name}.json"))
    assert suggestions.read(other, store) is None


def test_what_cannot_be_suggested_is_an_error_that_names_it(tmp_path):
    short = RunSpec(**{**SMALL, "epochs": 1})
    with pytest.raises(LabError, match=r"no learning rates for digits perceptron adabound: steps=10"):
        suggestions.compute(short, Store(tmp_path / "runs"))
    assert not (tmp_path / "suggestions").exists()


def test_published_suggestions_load_and_are_shown():
    """Those of an older rule keep their reasons; their trials are of other kinds."""
    lines = (Path(__file__).parents[3] / "results" / "suggestions.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for found in (Suggestion.from_dict(json.loads(line)["suggestion"]) for line in lines):
        assert str(found).startswith(f"lr = {found.lr:.3g}\nfinal_lr = {found.final_lr:.3g}\n")
        assert Suggestion.from_dict(found.to_dict()) == found
        assert len(found.figure().axes) == 2


def test_suggestions_of_the_present_rule_follow_from_their_trials(study, tmp_path):
    (spec,) = suggestions.missing([study], "demo", Store(tmp_path / "runs"))
    found = suggestions.compute(spec, Store(tmp_path / "runs"))
    again = decide.decide(found.start, found.trials, found.steps)
    assert again.reasons == found.reasons
    assert again[:3] == pytest.approx((found.lr, found.final_lr, found.gamma), rel=5e-3), "three digits are kept"
