import json
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dynabound import AdaBound, bounds
from dynabound.lab.errors import LabError, StoreError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import datasets, models
from dynabound.lab.train import _cpu_model, train
from dynabound.lab.training import loop
from dynabound.lab.training.batches import make_batches
from helpers import worker
from helpers.runs import without_seconds

DIGITS = RunSpec("digits", hidden=16, epochs=3)
SPECS = {
    "perceptron": DIGITS,
    "lstm": RunSpec("pydoc", hidden=8, examples=4000, epochs=2, optimizer="amsgrad"),
    "two modes": RunSpec("digits", hidden=16, epochs=2, optimizer="helpers.two_modes:TwoModes", lr=0.1),
    "resnet": RunSpec("digits", model="resnet34", width=1 / 32, examples=200, epochs=2, decay_after=1),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_same_spec_twice_gives_identical_metrics(spec, tmp_path):
    torch.manual_seed(1)
    first = train(spec, Store(tmp_path / "a"))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = train(spec, Store(tmp_path / "b"))
    assert torch.equal(before, torch.get_rng_state()), "the caller's random state was touched"
    assert without_seconds(first.metrics) == without_seconds(second.metrics)
    assert len(first.metrics) == spec.epochs
    assert first.metrics[-1]["train_loss"] < first.metrics[0]["train_loss"]


def test_an_optimizer_with_two_modes_is_evaluated_in_the_other_one(tmp_path):
    """Against the stored weights, which are those of evaluation, on the test images."""
    spec, data = SPECS["two modes"], datasets.load("digits")
    result = train(spec, Store(tmp_path))
    state = result.run.load_checkpoint()
    assert state["optimizer"]["param_groups"][0]["training"] is False
    model = models.build(spec.model, spec.to_dict(), data)
    model.load_state_dict(state["model"])
    (batch,) = make_batches(data, spec, torch.device("cpu")).evaluation("test")
    with torch.no_grad():
        loss = F.cross_entropy(model(batch.x), batch.y)
    assert loss.item() == pytest.approx(result.metrics[-1]["test_loss"], rel=1e-6)


def test_another_seed_is_another_run(tmp_path):
    results = [train(RunSpec("digits", hidden=16, epochs=1, seed=seed), Store(tmp_path)) for seed in (0, 1)]
    assert without_seconds(results[0].metrics) != without_seconds(results[1].metrics)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_run_that_is_stopped_at_any_step_resumes_bit_for_bit(spec, tmp_path):
    whole = train(spec, Store(tmp_path / "whole"))
    store = Store(tmp_path / "pieces")
    sessions = 0
    while True:
        asked = iter(range(sessions % 2))  # one step, then two, then one …
        result = train(spec, store, stop=lambda asked=asked: next(asked, None) is None)
        sessions += 1
        if result.state == "finished":
            break
        assert result.state == result.run.status()["state"] == "stopped"
    assert sessions > 4
    assert without_seconds(result.metrics) == without_seconds(whole.metrics)
    pair = result.run.load_checkpoint()["model"], whole.run.load_checkpoint()["model"]
    torch.testing.assert_close(*pair, rtol=0, atol=0)


def test_follows_a_hand_written_loop(tmp_path):
    spec = RunSpec("digits", hidden=16, epochs=3, decay_after=2, optimizer="adam", weight_decay=1e-3)
    data = datasets.load("digits")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    pixels = data.train[0].double()
    test = ((data.test[0].double() - pixels.mean()) / pixels.std(unbiased=False)).float()
    expected = []
    for epoch in (1, 2, 3):
        if epoch == 3:
            optimizer.param_groups[0]["lr"] = 1e-4
        total = 0.0
        for x, y, _ in make_batches(data, spec, torch.device("cpu")).epoch(epoch):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        with torch.no_grad():
            accuracy = (model(test).argmax(1) == data.test[1]).double().mean().item()
        expected.append((total / len(pixels), accuracy, optimizer.param_groups[0]["lr"]))
    got = [(m["train_loss"], m["test_accuracy"], m["lr"]) for m in train(spec, Store(tmp_path)).metrics]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_perplexity_and_bounds_are_what_they_are_called(tmp_path):
    text = train(SPECS["lstm"], Store(tmp_path)).metrics[-1]
    for split in ("train", "valid", "test"):
        assert text[f"{split}_perplexity"] == pytest.approx(math.exp(text[f"{split}_loss"]))
    assert "lower" not in text
    image = train(SPECS["resnet"], Store(tmp_path)).metrics[-1]
    lower, upper = bounds.evaluate("harmonic", 1e-3, image["step"])
    assert image["lr"] == pytest.approx(1e-4)  # decayed, and the bounds with it
    assert (image["lower"], image["upper"]) == pytest.approx((0.01 * lower, 0.01 * upper))


def test_recorded_bounds_include_the_decay_of_the_step_size(tmp_path):
    spec = RunSpec("digits", examples=64, epochs=2, opt={"sqrt_decay": True, "gamma": 0.1})
    metrics = train(spec, Store(tmp_path)).metrics[-1]
    lower, upper = bounds.evaluate("harmonic", 0.1, metrics["step"])
    root = math.sqrt(metrics["step"])
    assert (metrics["lower"], metrics["upper"]) == pytest.approx((0.1 * lower / root, 0.1 * upper / root))


def test_finished_run_is_read_and_not_run_again(tmp_path, monkeypatch):
    first = train(DIGITS, Store(tmp_path))
    monkeypatch.setattr(sys.modules["dynabound.lab.train"], "Training", None)
    again = train(DIGITS, Store(tmp_path))
    assert (again.state, again.metrics) == (first.state, first.metrics)


def test_divergence_is_a_result_with_its_step(tmp_path):
    spec = RunSpec("digits", optimizer="sgd", lr=1e30, epochs=2)
    result = train(spec, Store(tmp_path))
    assert result.state == "diverged"
    assert result.details["step"] == train(spec, Store(tmp_path / "again")).details["step"]
    assert 1 < result.details["step"] <= 4
    assert result.run.status()["state"] == "diverged"
    assert train(spec, Store(tmp_path)).state == "diverged"


def test_progress_reports_every_step_and_every_epoch(tmp_path):
    events = []
    result = train(DIGITS, Store(tmp_path), progress=events.append)
    steps = [event.step for event in events if event.metrics is None]
    assert steps == list(range(1, 3 * 23 + 1))
    assert {event.steps for event in events} == {69}
    assert [event.metrics for event in events if event.metrics] == result.metrics
    assert events[-1].loss == result.metrics[-1]["train_loss"]


def test_checkpoints_by_steps_keep_the_last_two(tmp_path):
    kept = []
    run = Store(tmp_path).run(DIGITS)
    train(
        DIGITS, Store(tmp_path), checkpoint_steps=10, progress=lambda _: kept.append(len(list(run.folder.glob("*.pt"))))
    )
    assert max(kept) == 2
    assert [path.name for path in run.folder.glob("*.pt")] == ["checkpoint-000000069.pt"]


def test_environment_records_what_bits_depend_on(tmp_path):
    run = train(DIGITS, Store(tmp_path)).run
    (session,) = run.environment()
    assert session["torch"] == torch.__version__
    assert session["threads"] == 1
    assert session["data"] == datasets.fingerprint(datasets.load("digits"))


def test_other_data_under_the_same_name_is_refused(tmp_path, monkeypatch):
    train(DIGITS, Store(tmp_path), stop=lambda: True)
    data = datasets.load("digits")
    data.train[0][0, 0, 0, 0] += 1
    monkeypatch.setattr(datasets, "load", lambda *_: data)
    with pytest.raises(StoreError, match="other data"):
        train(DIGITS, Store(tmp_path))


def test_a_crash_is_recorded_and_the_run_can_be_resumed(tmp_path, monkeypatch):
    def crash(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "finish_epoch", crash)
        with pytest.raises(MemoryError):
            train(DIGITS, Store(tmp_path), checkpoint_steps=5)
    status = Store(tmp_path).run(DIGITS).status()
    assert (status["state"], status["error"]) == ("failed", "MemoryError: no room")
    assert train(DIGITS, Store(tmp_path)).state == "finished"


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [("nowhere:Thing", "cannot be imported"), ("json:JSONDecoder", "subclass of torch.optim.Optimizer")],
)
def test_nothing_is_written_before_all_is_checked(optimizer, message, tmp_path):
    with pytest.raises(LabError, match=message):
        train(RunSpec("digits", optimizer=optimizer), Store(tmp_path))
    with pytest.raises(LabError, match=r"ptb\.train\.txt not found"):
        train(RunSpec("ptb"), Store(tmp_path), data_dir=tmp_path)
    with pytest.raises(LabError, match="device='cuda:77'"):
        train(DIGITS, Store(tmp_path), device="cuda:77")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
@pytest.mark.parametrize("fields", [dict(task="digits"), dict(task="pydoc", hidden=8, examples=4000)])
def test_bf16_computes_in_bf16_and_keeps_float32(fields, tmp_path):
    fields = {**fields, "epochs": 2, "precision": "bf16", "optimizer": "adam"}
    assert worker.run(worker.train_in_bf16, fields, str(tmp_path)) == 0
    run = Store(tmp_path).run(RunSpec(**fields))
    assert {tensor.dtype for tensor in run.load_checkpoint()["model"].values()} == {torch.float32}
    losses = [line["train_loss"] for line in run.metrics()]
    assert losses[1] < losses[0]


def test_foreign_optimizer_by_import(tmp_path):
    spec = RunSpec("digits", optimizer="torch.optim:RAdam", lr=1e-2, opt={"betas": [0.8, 0.9]}, epochs=2)
    result = train(spec, Store(tmp_path))
    assert result.run.load_checkpoint()["optimizer"]["param_groups"][0]["betas"] == (0.8, 0.9)
    assert result.metrics[-1]["test_accuracy"] > 0.8


def test_rates_are_those_of_the_last_step(tmp_path):
    pytest.importorskip("dynabound.lens.record")
    result = train(RunSpec("digits", hidden=16, epochs=2, rates=True), Store(tmp_path))
    json.dumps(result.metrics, allow_nan=False)
    last = result.metrics[-1]
    assert set(last["rates"]) == set(result.run.load_checkpoint()["model"])
    for quantiles in last["rates"].values():
        assert quantiles == sorted(quantiles)
        assert last["lower"] <= quantiles[0] * (1 + 1e-6)
        assert quantiles[-1] <= last["upper"] * (1 + 1e-6)
    state = result.run.load_checkpoint()["optimizer"]
    group, moments = state["param_groups"][0], state["state"][1]  # of hidden.bias
    assert group.keys() >= AdaBound([torch.zeros(1)]).param_groups[0].keys() - {"params"}
    step, rate = last["step"], group["lr"] / (1 - 0.9 ** last["step"]) * math.sqrt(1 - 0.999 ** last["step"])
    by_hand = (rate / (moments["exp_avg_sq"].double().sqrt() + 1e-8)).clamp(last["lower"], last["upper"])
    assert last["rates"]["hidden.bias"][0] == pytest.approx(by_hand.min().item(), rel=1e-5)
    assert last["rates"]["hidden.bias"][4] == pytest.approx(by_hand.max().item(), rel=1e-5)
    assert step == moments["step"]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_several_channels_are_convolved_with_adjacent_channels(channels):
    """The same loss as with adjacent columns, up to rounding; the parameters stay as they are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (16, channels, 8, 8), generator=generator, dtype=torch.uint8)
    data = datasets.Images((x, torch.arange(16) % 10), (x[:4], torch.arange(4)))
    spec = RunSpec("cifar10", model="resnet34", width=1 / 16, batch_size=16)
    training = loop.Training(spec, data, torch.device("cpu"))
    layouts = []
    training.model.blocks[0].register_forward_pre_hook(
        lambda _, inputs: layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    (batch,) = training.batches.epoch(1)
    loss = training.loss(training.model, batch)
    assert layouts == [channels > 1]
    expected = F.cross_entropy(training.model(batch.x.contiguous()), batch.y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(parameter.is_contiguous() for parameter in training.model.parameters())


def test_the_cpu_s_family_and_model_tell_processors_of_one_name_apart(monkeypatch):
    processor = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    monkeypatch.setattr(Path, "read_text", lambda path: processor + processor.replace("26", "25"))
    assert _cpu_model() == "AMD EPYC (family 26, model 2)"
