"""What a snapshot holds: statistics of any rates, and how many snapshots are kept."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from dynabound import AdaBound
from dynabound.lens import History, LearningRateLens, Rates, effective_lr, history
from dynabound.lens.measure import Measure, column_names
from helpers.golden import GOLDEN


@settings(deadline=None)
@given(every=st.integers(1, 5), limit=st.sampled_from([2, 4, 6, 10]), steps=st.integers(1, 200))
def test_snapshots_stay_few_and_evenly_spread(every, limit, steps):
    record = History("SGD", every, (0.0, 1.0), (0.5,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "LIMIT", limit)
        for step in range(1, steps + 1):
            if (step - 1) % record.stride == 0:
                record.add(step, {})
    assert record.steps == list(range(1, steps + 1, record.stride))
    assert len(record.steps) <= limit
    assert record.stride == every or len(record.steps) > limit // 2


RATE = st.one_of(st.floats(0, 1e6, width=32), st.sampled_from([0.0, math.inf, math.nan]))


@settings(deadline=None)
@given(
    values=st.lists(RATE, min_size=1, max_size=30),
    bounds=st.none() | st.tuples(st.floats(0, 10, width=32), st.floats(10, 1e4, width=32)),
)
def test_statistics_of_any_rates_are_those_of_numpy(values, bounds):
    measure = Measure(extremes=(1.0, 100.0), quantiles=(0.1, 0.5, 0.9), sample=4096, seed=0)
    numbers, patch, shape = measure("w", Rates(torch.tensor(values), bounds))
    assert (len(patch), shape) == (min(10, len(values)), (len(values),))
    row = dict(zip(column_names(measure.quantiles), numbers, strict=True))
    raw = np.array(values, dtype=np.float32)
    rates = raw if bounds is None else np.clip(raw, *bounds)
    valid = rates[~np.isnan(rates)]
    assert (row["nan"], row["inf"]) == (np.isnan(rates).sum(), np.isinf(rates).sum())
    assert math.isnan(row["lost"])
    assert (row["below"], row["above"]) == (np.mean(rates < 1), np.mean(rates > 100))
    if bounds is not None:
        assert (row["clipped_low"], row["clipped_high"]) == (np.mean(raw < bounds[0]), np.mean(raw > bounds[1]))
    if len(valid):
        assert (row["min"], row["max"]) == (valid.min(), valid.max())
        expected = [np.quantile(valid, q, method="inverted_cdf") for q in (0.1, 0.5, 0.9)]
        assert [row["q10"], row["median"], row["q90"]] == expected
    else:
        assert math.isnan(row["min"])
        assert math.isnan(row["median"])


def test_a_parameter_of_nothing_but_nan_and_an_empty_one():
    model = nn.ParameterDict({"nan": nn.Parameter(torch.ones(3, 2)), "empty": nn.Parameter(torch.ones(0, 2, 3))})
    optimizer = optim.Adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.full_like(param, math.nan)
    with LearningRateLens(optimizer, model) as lens:
        optimizer.step()
    rows = lens.latest()
    assert rows["nan"]["nan"] == 6
    assert math.isnan(rows["nan"]["median"])
    assert rows["empty"]["nan"] == 0
    assert lens.summary()["all"]["min"] is None


@pytest.mark.parametrize("options", [{}, dict(weight_decay=0.0, amsbound=True)], ids=str)
def test_lost_updates_are_those_that_the_step_did_not_make(options):
    """Updates of 0.001 or 0, on bfloat16 from 0.01 to 4: above 0.5 half a unit in the last place is 0.00195."""
    torch.manual_seed(0)
    model = nn.ParameterDict({"w": nn.Parameter(torch.linspace(0.01, 4, 999).to(torch.bfloat16))})
    optimizer = AdaBound(model.parameters(), **options)
    before = model["w"].detach().clone()
    model["w"].grad = (torch.arange(999) % 5 != 0).to(torch.bfloat16)
    with LearningRateLens(optimizer, model) as lens:
        optimizer.step()
    unchanged = (model["w"] == before) & (model["w"].grad != 0)
    assert lens.latest()["w"]["lost"] == unchanged.double().mean().item() > 0.5
    assert lens.summary()["all"]["lost"] == lens.latest()["w"]["lost"]


def test_files_without_the_column_lost_load(tmp_path):
    old = history.load(GOLDEN / "lens.npz")
    assert all(row["lost"] is None for row in old.summary()["parameters"].values())
    old.save(tmp_path / "new.npz")
    assert torch.equal(history.load(tmp_path / "new.npz").values().nan_to_num(), old.values().nan_to_num())


def test_complex_parameters():
    model = nn.ParameterDict({"z": nn.Parameter(torch.ones(2, 3, dtype=torch.complex64))})
    optimizer = AdaBound(model.parameters())
    model["z"].grad = torch.ones_like(model["z"])
    with LearningRateLens(optimizer, model) as lens:
        optimizer.step()
    assert lens.shapes == {"z": (2, 3, 2)}
    assert lens.latest()["z"]["max"] == effective_lr(optimizer, model["z"]).max()
