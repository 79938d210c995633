"""Runs whose model is cut up among processes: what they compute, what they save, and who can go on with it."""

import itertools
import logging
import random

import lab_worker as worker
import pytest
import torch
from test_kill import assert_same_run
from test_ranks import assert_follows
from test_store import DAMAGES

from dynabound.lab import checkpoint, ranks
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, StoreError
from dynabound.lab.train import train

PERCEPTRON = dict(task="digits", hidden=9, epochs=3, batch_size=33, rates=True)  # nothing divides evenly
LSTM = dict(task="pydoc", hidden=8, layers=2, examples=14_000, epochs=2, dropout=0.0, optimizer="amsbound", lr=0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of a spec in one process that nobody interrupts."""
    store = Store(tmp_path_factory.mktemp("alone"))
    return lambda fields: train(RunSpec(**fields), store).run


# Sessions of a run, each in so many processes, sharded or not. All but the last are stopped in the middle of an epoch.
SHARDED, WHOLE = True, False
HISTORIES = {
    "2 in one go": [(2, SHARDED)],
    "2 to 1": [(2, SHARDED), (1, SHARDED)],
    "1 to 2": [(1, SHARDED), (2, SHARDED)],
    "2 to 3 to plain": [(2, SHARDED), (3, SHARDED), (1, WHOLE)],
    "plain to DDP to 2": [(1, WHOLE), (2, WHOLE), (2, SHARDED)],
}


@pytest.mark.parametrize("fields", [PERCEPTRON, LSTM], ids=["perceptron", "lstm"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_any_number_of_ranks_follows_one_process(fields, history, alone, tmp_path):
    run = Store(tmp_path).run(RunSpec(**fields))
    for (count, fsdp), following in itertools.zip_longest(history, history[1:]):
        worker.train_in_ranks(fields, tmp_path, count, fsdp, stop_after=1 if following else 10**9)
        assert run.status()["state"] == ("stopped" if following else "finished")
    assert [(session["ranks"], session["fsdp"]) for session in run.environment()] == history
    assert_follows(run, alone(fields))
    assert_follows_rates(run.metrics(), alone(fields).metrics())


def assert_follows_rates(metrics, expected):
    for line, other in zip(metrics, expected, strict=True):
        assert line.keys() == other.keys()
        assert (line.get("lower"), line.get("upper")) == (other.get("lower"), other.get("upper"))
        for name, quantiles in line.get("rates", {}).items():
            assert quantiles == pytest.approx(other["rates"][name], rel=0.02)


def test_as_many_ranks_go_on_bit_for_bit(tmp_path):
    fields = {**LSTM, "dropout": 0.3}
    worker.train_in_ranks(fields, tmp_path / "whole", fsdp=True)
    worker.train_in_ranks(fields, tmp_path / "pieces", fsdp=True, stop_after=1)
    worker.train_in_ranks(fields, tmp_path / "pieces", fsdp=True, stop_after=2)
    worker.train_in_ranks(fields, tmp_path / "pieces", fsdp=True)
    run, whole = (Store(tmp_path / name).run(RunSpec(**fields)) for name in ("pieces", "whole"))
    assert len(run.environment()) == 3
    assert_same_run(run, whole)


def test_batch_normalisation_follows_data_parallel(tmp_path):
    fields = dict(task="digits", model="resnet34", width=1 / 32, examples=200, epochs=2)
    for fsdp in (False, True):
        worker.train_in_ranks(fields, tmp_path / str(fsdp), fsdp=fsdp)
    assert_follows(*(Store(tmp_path / str(fsdp)).run(RunSpec(**fields)) for fsdp in (True, False)))
