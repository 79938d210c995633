"""Runs of a ledger, trained again: what is the same, what is not, and what cannot be compared."""

import dataclasses
import sys

import pytest

from dynabound.lab import ledger as module
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Entry, sample, verify
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train

SPEC = RunSpec("digits", hidden=4, epochs=2, examples=128, batch_size=32)
TEXT = RunSpec("pydoc", hidden=4, epochs=1, examples=2000)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    for spec in (SPEC, TEXT):
        train(spec, store)
    return {spec: Entry.of(spec, store) for spec in (SPEC, TEXT)}


def changed(entry, **values):
    """The entry with other metrics in its last epoch."""
    return dataclasses.replace(entry, metrics=[*entry.metrics[:-1], {**entry.metrics[-1], **values}])


def elsewhere(entry, **fields):
    return dataclasses.replace(entry, environment=[{**session, **fields} for session in entry.environment])


@pytest.mark.parametrize("spec", [SPEC, TEXT], ids=["images", "text"])
def test_the_same_run_is_identical_bit_for_bit(spec, entries):
    seen = []
    found = verify(entries[spec], progress=seen.append)
    assert (found.state, found.reason) == ("identical", "bit for bit")
    assert seen[-1].step == entries[spec].step
    slower = changed(entries[spec], seconds=1e9)
    assert verify(slower).state == "identical", "times may differ"


@pytest.mark.parametrize("error", [MemoryError(), LabError("no"), RuntimeError("can't allocate memory\nat")], ids=repr)
def test_a_run_that_cannot_be_trained_here_is_not_compared(error, entries, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, "train", fail)
    found = verify(entries[SPEC])
    assert found.state == "not compared"
    assert str(error).partition("\n")[0] in found.reason
    assert "\n" not in found.reason


def test_a_batch_that_no_tensor_can_hold_is_not_compared(entries):
    huge = dataclasses.replace(entries[SPEC], spec=dataclasses.replace(TEXT, batch_size=10**18))
    assert verify(huge).state == "not compared"


def test_a_run_that_should_have_diverged_is_not_trained_for_ever(entries):
    spec, seen = dataclasses.replace(SPEC, epochs=10**6), []
    found = verify(dataclasses.replace(entries[SPEC], spec=spec, state="diverged", step=3, metrics=[]), (), None,
                   seen.append)  # fmt: skip
    assert (found.state, found.reason) == ("differs", "diverged in the ledger, stopped here")
    assert seen[-1].step < 110


def test_on_the_same_machine_the_last_bit_counts(entries):
    entry = entries[SPEC]
    loss = entry.metrics[-1]["train_loss"]
    found = verify(changed(entry, train_loss=loss * (1 + 2**-52)))
    assert found.state == "differs"
    assert found.reason.startswith("same machine, epoch 2: train_loss")


@pytest.mark.parametrize(("spec", "factor", "state"), [(SPEC, 1.0001, "close"), (SPEC, 2, "differs"),
                                                       (TEXT, 1.002, "close"), (TEXT, 1.004, "differs")])  # fmt: skip
def test_on_another_machine_the_last_epoch_counts_within_the_tolerance(spec, factor, state, entries):
    key = f"test_{spec.metric}"
    there = elsewhere(changed(entries[spec], **{key: entries[spec].metrics[-1][key] * factor}), cpu="another")
    found = verify(there)
    assert found.state == state
    assert found.reason.startswith("another cpu; ")
    assert f"{key} {there.metrics[-1][key]:.4g} in the ledger" in found.reason


def test_on_another_machine_a_chaotic_run_may_differ_by_the_spread_of_its_seeds(entries):
    """The spread is that of the same settings; of a run without other seeds, the largest of its network."""

    def seeds(*values, **fields):
        spec = dataclasses.replace(TEXT, **fields)
        return [
            dataclasses.replace(
                changed(entries[TEXT], test_perplexity=value), spec=dataclasses.replace(spec, seed=seed)
            )
            for seed, value in enumerate(values, start=1)
        ]

    value = entries[TEXT].metrics[-1]["test_perplexity"]
    there = elsewhere(changed(entries[TEXT], test_perplexity=1.2 * value), cpu="another")
    chaotic, calm = (value, 1.1 * value, 1.2 * value), (value, 1.001 * value, 1.002 * value)
    assert verify(there, others=seeds(*chaotic)).state == "close"
    slightly = (value, 1.05 * value, 1.1 * value)
    assert "tolerance 19.0 %" in verify(there, others=seeds(*slightly)).reason, (
        "four standard deviations of 0.05 in 1.05"
    )
    assert verify(there, others=seeds(*calm)).state == "differs"
    assert verify(there, others=[*seeds(*calm), *seeds(*chaotic, lr=1.0)]).state == "differs"
    assert verify(there, others=seeds(*chaotic, lr=1.0)).state == "close"
    assert verify(there, others=seeds(*chaotic, lr=1.0, layers=2)).state == "differs", "another network"


def test_no_spread_excuses_a_false_result(entries):
    """The first epoch must agree: there chaos has not grown yet."""

    def others(key):
        return [
            dataclasses.replace(changed(entries[SPEC], **{key: value}), spec=dataclasses.replace(SPEC, seed=seed))
            for seed, value in enumerate((0.1, 0.5, 0.9))
        ]

    first, last = entries[SPEC].metrics
    for key in ("test_accuracy", "train_accuracy"):
        metrics = [dict(first), dict(last)]
        metrics[0][key] += 0.011
        false = elsewhere(dataclasses.replace(entries[SPEC], metrics=metrics), cpu="another")
        found = verify(false, others=others(key))
        assert found.state == "differs"
        assert f"epoch 1: {key}" in found.reason


def test_the_last_epoch_that_both_have_is_compared(entries):
    """A run that diverged may have lasted longer elsewhere."""
    first, second = entries[SPEC].metrics
    longer = elsewhere(dataclasses.replace(entries[SPEC], metrics=[first, second, {**second, "test_accuracy": 0.0}]),
                       cpu="another")  # fmt: skip
    assert verify(longer).state == "close"


def test_points_of_accuracy_are_counted(entries):
    accuracy = entries[SPEC].metrics[-1]["test_accuracy"]
    states = [verify(elsewhere(changed(entries[SPEC], test_accuracy=accuracy + points / 100), torch="1.0")).state
              for points in (0.29, 0.31)]  # fmt: skip
    assert states == ["close", "differs"]


def test_a_run_that_ended_otherwise_differs(entries):
    diverged = dataclasses.replace(entries[SPEC], state="diverged", metrics=[])
    found = verify(elsewhere(diverged, cpu="another"))
    assert (found.state, found.reason) == ("differs", "diverged in the ledger, finished here")


def test_what_cannot_be_trained_is_said(entries, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNABOUND_DATA", str(tmp_path))
    monkeypatch.setattr("dynabound.lab.tasks.datasets.locate", lambda task, folder=None: None)
    mnist = dataclasses.replace(entries[SPEC], spec=RunSpec("mnist"))
    found = verify(mnist)
    assert found.state == "not compared"
    assert "mnist not found; dynabound data fetch mnist" in found.reason
    assert verify(elsewhere(entries[SPEC], data="0123")).reason == "trained on other data (0123)"


def test_a_ledger_cannot_make_us_import_anything(entries):
    """Nothing of a foreign package is imported unless the studies have it."""
    foreign = dataclasses.replace(SPEC, optimizer="antigravity:Optimizer", lr=0.1)
    found = verify(dataclasses.replace(entries[SPEC], spec=foreign))
    assert found.state == "not compared"
    assert "antigravity:Optimizer is not one of the studies' optimizers" in found.reason
    assert "antigravity" not in sys.modules


def test_the_sample_depends_only_on_the_seed(entries):
    many = {str(n): dataclasses.replace(entries[SPEC], step=n) for n in range(30)}
    backwards = dict(reversed(many.items()))
    first = sample(many, 5, seed=0)
    assert first == sample(backwards, 5, seed=0)
    assert len({entry.step for entry in first}) == 5
    assert first != sample(many, 5, seed=1)
    assert len(sample(many, 100, seed=0)) == 30
