import dataclasses
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynabound.lab.errors import LabError
from dynabound.lab.spec import SCALES, RunSpec
from dynabound.lab.tasks import optimizers
from dynabound.lab.tasks.catalog import TASKS
from dynabound.lab.tasks.models import MODELS

ROOT = Path(__file__).parents[2]


@st.composite
def specs(draw):
    task = draw(st.sampled_from(sorted(TASKS)))
    model = draw(st.sampled_from([m for m in MODELS if (m == "lstm") == TASKS[task].text]))
    numbers = {"hidden": st.integers(1, 999), "width": st.floats(0.01, 2.0), "layers": st.integers(1, 3)}
    fields = {name: draw(numbers[name]) for name in MODELS[model] if name in numbers}
    epochs = draw(st.integers(2, 500))
    return RunSpec(
        task=task,
        model=model,
        optimizer=draw(st.sampled_from(["adabound", "amsbound"])),
        lr=draw(st.floats(0, 100)),
        opt=draw(st.fixed_dictionaries({}, optional={"final_lr": st.floats(1e-6, 10), "betas": st.just([0.5, 0.25])})),
        epochs=epochs,
        decay_after=draw(st.none() | st.integers(1, epochs - 1)),
        seed=draw(st.integers(0, 2**32)),
        scale=draw(st.none() | st.sampled_from(SCALES)),
        **fields,
    )


@given(specs())
def test_json_pickle_and_hash_keep_a_spec(spec):
    stored = RunSpec.stored(json.loads(spec.to_json()), spec.name)
    assert vars(stored).items() >= {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}.items()
    again = RunSpec.from_dict(json.loads(spec.to_json()))
    assert again == spec
    assert again.name == spec.name
    assert hash(again) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@given(specs(), specs())
def test_names_tell_runs_apart(one, other):
    assert (one == other) == (one.name == other.name)


def test_the_same_run_written_differently_has_one_name():
    short = RunSpec("cifar10")
    long = RunSpec("cifar10", model="resnet34", width=0.125, lr=0.001, batch_size=128, weight_decay=5e-4, opt={})
    assert short.name == long.name
    one = RunSpec("mnist", lr=1, opt={"gamma": 0.1, "betas": [0.9, 0.99]})
    two = RunSpec("mnist", lr=1.0, opt=(("betas", (0.9, 0.99)), ("gamma", 0.1)))
    assert one == two
    assert one.name == two.name


@pytest.mark.parametrize(
    ("optimizer", "option", "one", "other"),
    [
        ("sgd", "momentum", 0, 0.0),
        ("sgdm", "momentum", 0, 0.0),
        ("rmsprop", "momentum", 0, 0.0),
        ("sgd", "dampening", 0, -0.0),
        ("adagrad", "initial_accumulator_value", 1, 1.0),
        ("sgdm", "nesterov", 1, True),
        ("adam", "amsgrad", 1.0, True),
        ("adabound", "bounds", ("constant", 1, 2), ("constant", 1.0, 2.0)),
        ("adabound", "box", (-1, 1), (-1.0, 1.0)),
        ("adabound", "box", (-0.0, 1), [0.0, 1]),
        ("torch.optim:RAdam", "eps", 1, 1.0),
        ("torch.optim:RAdam", "eps", 0.0, -0.0),
        ("torch.optim:RAdam", "betas", (0, 0.5), (0.0, 0.5)),
    ],
)
def test_equal_options_have_one_name(optimizer, option, one, other):
    first, second = (RunSpec("digits", optimizer=optimizer, opt={option: value}) for value in (one, other))
    assert first == second
    assert first.name == second.name


def test_options_that_name_two_runs_are_not_equal():
    """The class is not imported, so nobody knows whether 1 means True."""
    one, other = (RunSpec("digits", optimizer="torch.optim:Adam", opt={"amsgrad": value}) for value in (1, True))
    assert one.name != other.name
    assert one != other


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*-*.jsonl")), ids=lambda path: path.stem)
def test_published_runs_keep_their_names(path):
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert RunSpec.from_dict(entry["spec"]).name == entry["run"]


def test_the_name_of_a_stored_run_never_changes():
    assert RunSpec("digits").name == "729f669e1ea9540a"


def test_a_spec_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunSpec("digits").seed = 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "cifar"}, "task='cifar': must be one of digits, digits-half"),
        ({"task": None}, "task=None"),
        ({"task": "ptb", "model": "resnet34"}, "model='resnet34': ptb takes lstm"),
        ({"task": "mnist", "model": "vgg"}, "model='vgg': mnist takes perceptron"),
        ({"task": "mnist", "width": 0.5}, "width=0.5: perceptron has no width"),
        ({"task": "cifar10", "hidden": 5}, "hidden=5: resnet34 has no hidden"),
        ({"task": "mnist", "layers": 2}, "layers=2: perceptron has no layers"),
        ({"task": "cifar10", "width": 0}, "width=0: must be a number in"),
        ({"task": "ptb", "dropout": 1.0}, "dropout=1.0: must be a number in"),
        ({"task": "mnist", "epochs": 0}, "epochs=0: must be an integer >= 1"),
        ({"task": "mnist", "epochs": 2.5}, "epochs=2.5: must be an integer"),
        ({"task": "mnist", "batch_size": True}, "batch_size=True: must be an integer"),
        ({"task": "mnist", "seed": -1}, "seed=-1: must be an integer >= 0"),
        ({"task": "mnist", "seed": 2**63}, "seed=9223372036854775808: must be"),
        ({"task": "mnist", "lr": float("nan")}, "lr=nan: must be a number >= 0"),
        ({"task": "mnist", "lr": "0.1"}, "lr='0.1': must be a number"),
        ({"task": "mnist", "weight_decay": -1}, "weight_decay=-1"),
        ({"task": "mnist", "epochs": 10, "decay_after": 10}, "decay_after=10: must be below epochs=10"),
        ({"task": "mnist", "optimizer": "adm"}, "optimizer='adm'.*did you mean"),
        ({"task": "mnist", "optimizer": "torch.optim:"}, "must be module:Class"),
        ({"task": "mnist", "optimizer": 3}, "optimizer=3"),
        ({"task": "mnist", "opt": {"gama": 1}}, "opt gama=1.*did you mean gamma"),
        ({"task": "mnist", "opt": {"lr": 1}}, "opt lr: is a field of its own"),
        ({"task": "mnist", "opt": {"gamma": float("inf")}}, "opt=.*must map names to finite numbers"),
        ({"task": "mnist", "opt": 3}, "opt=3"),
        ({"task": "mnist", "precision": "fp8"}, "precision='fp8': must be one of float32, bf16"),
        ({"task": "mnist", "scale": "huge"}, "scale='huge': must be one of demo, laptop, paper"),
        ({"task": "mnist", "rates": 1}, "rates=1"),
        ({"task": "mnist", "epoch": 3}, "epoch: is not a field .*did you mean epochs"),
        ({"epochs": 3}, "task: is missing"),
    ],
)
def test_mistakes_name_the_field(fields, message):
    with pytest.raises(LabError, match=message) as raised:
        RunSpec.from_dict(fields)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_defaults_for_all_but_its_name(task):
    spec = RunSpec(task)
    assert spec.optimizer == "adabound"
    assert spec.metric == ("perplexity" if task in ("ptb", "pydoc") else "accuracy")
    assert all(getattr(spec, name) is not None for name in ("model", "lr", "batch_size", "weight_decay", "scale"))


def test_replacing_fields_builds_no_optimizer_again(monkeypatch):
    """A plan makes hundreds of specs that share their optimizer's settings."""
    spec = RunSpec("digits", lr=0.0123)
    monkeypatch.setattr(optimizers, "build", None)
    assert [dataclasses.replace(spec, seed=seed).lr for seed in range(3)] == [0.0123] * 3
