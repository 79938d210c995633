"""What runs cost: against arithmetic by hand, against torch's own counter on a real step, against real files."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dynabound.lab.spec import RunSpec, workload_key
from dynabound.lab.store import Store
from dynabound.lab.studies import cost
from dynabound.lab.studies.recipes import STUDIES
from dynabound.lab.tasks.datasets import load
from dynabound.lab.train import train
from dynabound.lab.training.loop import Training

CIFAR, HELD_OUT = 50_000, 10_000


def paper(study, workload):
    return next(row.spec("paper") for row in STUDIES[study].rows if row.workload == workload)


def test_a_perceptron():
    """A weight costs 2 operations forward, 2 for its gradient, 2 for that of its input, which the images need not."""
    specs = [replace(paper("mnist", "perceptron"), seed=seed) for seed in (0, 1, 1)]
    (found,) = cost.estimate(specs)
    assert (found.runs, found.steps) == (2, 2 * 100 * 469), "a run that is asked for twice is made once"
    trained, tested = 4 * 784 * 100 + 6 * 100 * 10, 2 * (784 * 100 + 100 * 10)
    assert found.flops == pytest.approx(2 * 100 * (60_000 * trained + 10_000 * tested))
    assert found.gpu_hours == pytest.approx(2 * 100 * (469 + 20 / 3) * cost.STEP_SECONDS / 3600)
    assert found.seconds > 0


def resnet34(size=32):
    """Multiplications of a forward pass, and the stem's: stages of 3, 4, 6, 3 blocks of two 3×3 convolutions."""
    stem = total = 9 * 3 * 64 * size**2
    inputs = 64
    for stage, (channels, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        pixels = (size // 2**stage) ** 2
        total += 9 * inputs * channels * pixels + (2 * blocks - 1) * 9 * channels**2 * pixels
        total += inputs * channels * pixels if stage else 0  # the shortcut where the shape changes
        inputs = channels
    return total + 512 * 10, stem


def densenet121(size=32, growth=32):
    stem = total = 9 * 3 * 2 * growth * size**2
    channels = 2 * growth
    for stage, layers in enumerate((6, 12, 24, 16)):
        if stage:  # the transition's convolution comes before its pooling
            total += channels * (channels // 2) * (size // 2 ** (stage - 1)) ** 2
            channels //= 2
        for _ in range(layers):
            total += (channels * 4 * growth + 9 * 4 * growth * growth) * (size // 2**stage) ** 2
            channels += growth
    return total + channels * 10, stem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "formula", "giga"), [("resnet34", resnet34, 1.16), ("densenet121", densenet121, 0.89)]
)
def test_convolutional_networks(model, formula, giga):
    forward, stem = formula()
    assert forward / 1e9 == pytest.approx(giga, abs=0.005)
    counted = cost.profile(workload_key(paper("cifar10", model)))
    assert counted.steps == 391
    assert counted.flops == pytest.approx(CIFAR * (6 * forward - 2 * stem) + HELD_OUT * 2 * forward, rel=1e-12)
    assert counted.parameters == {"resnet34": 21_282_122, "densenet121": 6_956_298}[model]


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_language_models_with_both_held_out_texts(layers):
    """Each word: 4 gates of 2 products of 200×200 in every layer, and 200×10,000 at the end; times 2.

    Backward twice as much, but the state that the first of 35 words takes over needs no gradient.
    """
    counted = cost.profile(workload_key(paper("ptb", f"lstm-{layers}")))
    forward = 2 * (layers * 8 * 200**2 + 200 * 10_000)
    spared = 2 * layers * 4 * 200**2 / 35
    assert counted.flops == pytest.approx(929_589 * (3 * forward - spared) + (73_760 + 82_430) * forward, rel=1e-12)
    gates = 4 * (200 * 200 + 200 * 200 + 200 + 200)
    assert counted.parameters == 10_000 * 200 + layers * gates + 200 * 10_000 + 10_000
    assert counted.steps == -(-(929_589 // 20 - 1) // 35)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [dict(model="perceptron"), dict(model="resnet34"), dict(model="densenet121")])
def test_a_real_epoch_on_this_machine_counts_as_many(fields):
    spec = RunSpec("digits", **fields, examples=64, batch_size=32)
    training = Training(spec, load("digits"), torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        list(training.train_epoch())
        training.finish_epoch()
    assert cost.profile(workload_key(spec)).flops == pytest.approx(counter.get_total_flops(), rel=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "sgdm", "adagrad", "adam", "amsgrad", "adabound", "amsbound"])
def test_the_size_of_a_run_is_that_of_its_folder(optimizer, tmp_path):
    spec = RunSpec("digits", hidden=20_000, epochs=1, examples=64, optimizer=optimizer)
    folder = train(spec, Store(tmp_path)).run.folder
    assert cost.size(spec) == pytest.approx(sum(file.stat().st_size for file in folder.iterdir()), rel=0.01)


@pytest.mark.slow
def test_the_size_of_rates(tmp_path):
    spec = RunSpec("digits", model="resnet34", epochs=2, examples=64, rates=True)
    metrics = train(spec, Store(tmp_path)).run.folder / "metrics.jsonl"
    told = (cost.size(spec) - cost.size(replace(spec, rates=False))) / 2
    assert told == pytest.approx(metrics.stat().st_size, rel=0.2)


def test_a_step_that_was_disturbed_does_not_count(monkeypatch):
    """The first step warms up, the third is disturbed: the median of 2, 50 and 3 s counts."""
    now = [0.0]

    class Timed:
        def __init__(self, *_):
            pass

        def train_epoch(self):
            for seconds in (100.0, 2.0, 50.0, 3.0):
                now[0] += seconds
                yield

    monkeypatch.setattr(cost, "Training", Timed)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    spec = paper("cifar10", "resnet34")
    (found,) = cost.estimate([spec])
    counted = cost.profile(workload_key(spec))
    assert found.seconds == pytest.approx(200 * (counted.steps + counted.evaluated) * 3.0 * 128 / 16)


def test_a_step_takes_at_least_its_time():
    """A small network cannot use a GPU; a large one is as fast as that."""
    small, large = paper("mnist", "perceptron"), paper("cifar10", "resnet34")
    assert cost.gpu_seconds(small, 1e15) == cost.gpu_seconds(small, 1e12) > 100 * 469 * cost.STEP_SECONDS
    assert cost.gpu_seconds(large, 1e13) == pytest.approx(10 * cost.gpu_seconds(large, 1e14))
    assert cost.gpu_seconds(large) == pytest.approx(200 * cost.profile(workload_key(large)).flops / 1e13)
