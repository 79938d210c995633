import io
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from dynabound import AdaBound
from dynabound.lens import History, LearningRateLens, load


@pytest.mark.slow
def test_a_saved_record_comes_back_whole(lens, tmp_path):
    path = tmp_path / "rates.npz"
    lens.save(path)
    again = load(path)
    assert again.steps == lens.steps == [1, 3, 5, 7, 9]
    assert (again.columns, again.shapes, again.extremes) == (lens.columns, lens.shapes, lens.extremes)
    assert torch.equal(again.values().nan_to_num(-1), lens.values().nan_to_num(-1))
    assert json.dumps(again.summary()) == json.dumps(lens.summary())
    assert all(
        torch.equal(again.patches[name].nan_to_num(), patch.nan_to_num()) for name, patch in lens.patches.items()
    )
    for draw in ("heatmap", "evolution", "funnel"):
        pictures = [io.BytesIO(), io.BytesIO()]
        for record, file in zip((lens, again), pictures, strict=True):
            getattr(record, draw)().savefig(file, metadata={"Software": None})
        assert pictures[0].getvalue() == pictures[1].getvalue()


def test_a_file_holds_no_pickle_and_a_foreign_file_is_refused(lens, tmp_path):
    lens.save(tmp_path / "rates.npz")
    with np.load(tmp_path / "rates.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
    (tmp_path / "text").write_text("step,rate")
    np.savez(tmp_path / "other.npz", values=np.ones(3))
    np.savez(tmp_path / "pickle.npz", header=np.array([{}], dtype=object))
    np.savez(tmp_path / "future.npz", header=json.dumps({"format": "dynabound.lens 9", "patches": []}), values=[1.0])
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "empty").touch()
    for name in ("empty", "text", "other.npz", "pickle.npz", "future.npz", "array.npy"):
        with pytest.raises(ValueError, match=rf"{name}'?: must be a file written by LearningRateLens.save"):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.npz")


SETTINGS = ["optimizer_name", "every", "stride", "extremes", "quantiles", "steps", "shapes"]


@pytest.mark.parametrize(
    ("name", "value"),
    [*((name, "missing") for name in SETTINGS), ("extremes", None), ("steps", [1]), ("quantiles", []), ("shapes", {})],
)
def test_a_file_with_a_damaged_header_is_refused(lens, tmp_path, name, value):
    path = tmp_path / "rates.npz"
    lens.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    header[name] = value
    if value == "missing":
        del header[name]
    np.savez(path, **{**arrays, "header": json.dumps(header)})
    with pytest.raises(ValueError, match=r"rates\.npz'?: must be a file written by LearningRateLens\.save"):
        load(path)


def test_the_summary_is_plain_data_that_adds_up(lens):
    summary = lens.summary()
    rows = summary["parameters"]
    assert json.loads(json.dumps(summary))["step"] == 9
    assert rows["0.bias"]["updated"] is False
    assert rows["0.bias"]["median"] is None
    assert (rows["3.weight"]["nan"], summary["all"]["nan"]) == (1, 1)
    updated = [row for row in rows.values() if row["updated"]]
    assert summary["all"]["elements"] == sum(row["elements"] for row in updated) == 48 + 24 + 3
    clipped = sum(round(row["clipped_low"] * row["elements"]) for row in updated)
    assert summary["all"]["clipped_low"] == pytest.approx(clipped / 75)
    assert summary["all"]["max"] == max(row["max"] for row in updated)


def test_records_are_flat_dictionaries_of_everything(lens):
    records = lens.records()
    assert [record["step"] for record in records] == [step for step in lens.steps for _ in range(3)]
    for record in records:
        where = lens.steps.index(record["step"])
        for column in lens.columns:
            value = lens.series(record["parameter"], column)[where].item()
            assert record.get(column, math.nan) == value or math.isnan(value)
    assert "0.bias" not in {record["parameter"] for record in records}


def test_a_record_survives_torch_save(lens, tmp_path):
    torch.save(lens.state_dict(), tmp_path / "checkpoint.pt")
    again = History("AdaBound", 1, (0.0, 1.0), (0.5,))
    again.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert json.dumps(again.summary()) == json.dumps(lens.summary())
    assert again.records() == lens.records()
    again.add(11, {"3.bias": [1.0] * len(again.columns)})
    assert (len(again.steps), len(lens.steps)) == (6, 5), "the loaded record must not change the saved one"


def test_the_state_of_another_optimizer_or_thing_is_refused(lens):
    other = History("Adam", 1, (0.0, 1.0), (0.5,))
    with pytest.raises(ValueError, match="state of AdaBound: must be that of a lens on Adam"):
        other.load_state_dict(lens.state_dict())
    with pytest.raises(ValueError, match=r"state without optimizer_name, .* values: must be the state_dict"):
        other.load_state_dict({"steps": [1]})
    assert other.steps == []


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        assert (tag, step) not in self.scalars
        self.scalars[tag, step] = value


def test_tensorboard_gets_every_number_once(lens):
    writer = Writer()
    lens.to_tensorboard(writer)
    medians = [writer.scalars["learning_rate/3.bias/median", step] for step in lens.steps]
    assert medians == lens.series("3.bias", "median").tolist()
    for bound in ("lower", "upper"):
        written = [writer.scalars[f"learning_rate/3.bias/{bound}", step] for step in lens.steps]
        assert written == lens.series("3.bias", bound).tolist()
    assert not any("0.bias" in tag for tag, _ in writer.scalars)
    later = Writer()
    lens.to_tensorboard(later, since=5)
    assert later.scalars == {key: value for key, value in writer.scalars.items() if key[1] > 5}


@pytest.mark.parametrize("use", ["summary", "values", "latest", "heatmap", "evolution", "funnel", "table"])
def test_an_empty_record_says_so(use):
    model = nn.Linear(1, 1)
    lens = LearningRateLens(AdaBound(model.parameters()), model)
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        getattr(lens, use)()


def test_unknown_layers_and_columns_list_the_known_ones(lens):
    known = "0.weight, 0.bias, 3.weight, 3.bias"
    for use in (lens.heatmap, lens.evolution):
        with pytest.raises(ValueError, match=rf"layers=\['4.weight'\]: must be names among {known}; did you mean"):
            use(["4.weight"])
        with pytest.raises(ValueError, match=r"layers=\[\]"):
            use([])
    with pytest.raises(ValueError, match=known):
        lens.series("4.weight", "min")
    with pytest.raises(ValueError, match=r"column='mean': must be one of min, q5, .* inf"):
        lens.series("0.weight", "mean")


@pytest.mark.processes
def test_the_lens_itself_needs_torch_alone():
    script = """
import sys
for name in ("matplotlib", "rich", "typer"):
    sys.modules[name] = None  # so that importing it fails
import torch
from dynabound.lens import LearningRateLens
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters())
with LearningRateLens(optimizer, model) as lens:
    model(torch.ones(2)).sum().backward()
    optimizer.step()
lens.summary()
for use in (lens.heatmap, lens.evolution, lens.funnel, lens.table):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(re.findall(r"is not installed: pip install '.+\[lens\]'", result.stdout)) == 4
