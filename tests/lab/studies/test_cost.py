"""What runs cost: against arithmetic by hand, torch's own counter and real files; how long studies take."""

import json
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.engines.base import Event
from dynabound.lab.spec import RunSpec, workload_key
from dynabound.lab.store import Store
from dynabound.lab.studies import cost, drive, recipes
from dynabound.lab.studies.cost import chains, estimate_time, schedule, synthetic_loss
from dynabound.lab.studies.plan import wanted
from dynabound.lab.studies.recipes import STUDIES, choose
from dynabound.lab.studies.search import GRIDS
from dynabound.lab.tasks.datasets import load
from dynabound.lab.train import train
from dynabound.lab.training.loop import Training
from helpers import tiny_studies as cases

CIFAR, HELD_OUT = 50_000, 10_000


def paper(study, workload):
    return next(row.spec("paper") for row in STUDIES[study].rows if row.workload == workload)


def test_a_perceptron():
    """A weight costs 2 operations forward, 2 for its gradient, 2 for that of its input, which the images need not."""
    specs = [replace(paper("mnist", "perceptron"), seed=seed) for seed in (0, 1, 1)]
    (found,) = cost.estimate(specs)
    assert (found["runs"], found["steps"]) == (2, 2 * 100 * 469), "a run that is asked for twice is made once"
    trained, tested = 4 * 784 * 100 + 6 * 100 * 10, 2 * (784 * 100 + 100 * 10)
    assert found["flops"] == pytest.approx(2 * 100 * (60_000 * trained + 10_000 * tested))
    assert found["gpu_hours"] == pytest.approx(2 * 100 * (469 + 20 / 3) * cost.STEP_SECONDS / 3600)
    assert found["seconds"] > 0


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


def test_a_step_takes_at_least_its_time():
    """A small network cannot use a GPU; a large one is as fast as that."""
    small, large = paper("mnist", "perceptron"), paper("cifar10", "resnet34")
    assert cost.gpu_seconds(small, 1e15) == cost.gpu_seconds(small, 1e12) > 100 * 469 * cost.STEP_SECONDS
    assert cost.gpu_seconds(large, 1e13) == pytest.approx(10 * cost.gpu_seconds(large, 1e14))
    assert cost.gpu_seconds(large) == pytest.approx(200 * cost.profile(workload_key(large)).flops / 1e13)


TIMES = st.integers(1, 50).map(float)


@st.composite
def problems(draw):
    """Rows of stages of runs, some of them in several rows, and how long each takes."""
    number = draw(st.integers(1, 12))
    stage = st.lists(st.integers(0, number - 1).map(str), min_size=1, max_size=5)
    rows = draw(st.lists(st.lists(stage, min_size=1, max_size=3), min_size=1, max_size=5))
    return rows, {str(name): draw(TIMES) for name in range(number)}


@given(problems(), st.integers(1, 9))
def test_makespans_are_between_their_bounds(problem, workers):
    """Graham 1966: no worker idles while a run is ready, so work / workers + the longest chain is not exceeded."""
    rows, seconds = problem
    makespan, most = schedule(rows, seconds, workers)
    work = sum(seconds[name] for name in {name for row in rows for stage in row for name in stage})
    chain, _ = schedule(rows, seconds, len(seconds))
    assert max(work / workers, chain) <= makespan + 1e-9
    assert makespan <= work / workers + chain * (1 - 1 / workers) + 1e-9
    assert most <= workers


@pytest.mark.parametrize(("workers", "makespan"), [(1, 15.0), (2, 8.0), (3, 7.0), (4, 7.0)])
def test_a_case_worked_out_by_hand(workers, makespan):
    """Two workers: a and b at 0, c at 3, d and e at 4. Three: a, b, c at 0, d at 1, e at 4."""
    rows = [[["a", "b"], ["e"]], [["c"]], [["d"]]]
    seconds = dict(a=4.0, b=3.0, c=1.0, d=4.0, e=3.0)
    assert schedule(rows, seconds, workers)[0] == makespan


class Pretend:
    """An engine that lets a clock tick, second by second, instead of training."""

    def __init__(self, jobs, seconds):
        self.jobs, self.seconds, self.clock, self.ended, self.queue = jobs, seconds, 0, set(), []

    def submit(self, specs, store):
        self.queue += specs

    def events(self):
        left = {}
        while self.queue or left:
            while self.queue and len(left) < self.jobs:
                spec = self.queue.pop(0)
                left[spec.name] = self.seconds(spec)
            self.clock += 1
            for name in left:
                left[name] -= 1
            for name in sorted(name for name, rest in left.items() if rest == 0):
                del left[name]
                self.ended.add(name)
                yield Event(name, "finished")


@pytest.mark.parametrize("workers", [1, 2, 5, 16, 100])
def test_the_simulation_is_what_complete_does(workers, tmp_path):
    """The whole search of six methods, with runs of very different lengths."""
    store, studies = Store(tmp_path / "none"), choose(["mnist"], "paper")
    dice = random.Random(workers)
    seconds = {}
    engine = Pretend(workers, lambda spec: seconds[spec.name])
    rows = chains(studies, "paper", store)
    for spec in (spec for row in rows for stage in row for spec in stage):
        seconds.setdefault(spec.name, dice.randint(1, 60))

    def source(_):
        loss = lambda spec: synthetic_loss(spec) if spec.name in engine.ended else None  # noqa: E731
        return wanted(studies, "paper", store, loss)

    drive.complete(source, store, engine, lambda specs: None, lambda event: None)
    names = [[[spec.name for spec in stage] for stage in row] for row in rows]
    assert engine.ended == seconds.keys()
    assert schedule(names, seconds, workers)[0] == engine.clock


def test_runs_that_an_engine_loses_are_not_submitted_twice(tmp_path):
    class Loses(cases.InProcess):
        def events(self):
            self.ran += [spec for spec, _ in self.queue]
            self.queue.clear()
            return iter(())

    engine = Loses()
    drive.complete(lambda loss: cases.specs(6), Store(tmp_path), engine, lambda specs: None, id)
    assert engine.ran == cases.specs(6)


def test_a_search_is_simulated_with_its_best_inside():
    sizes = {}
    for method in ("sgdm", "adagrad", "adam", "amsgrad", "adabound", "amsbound"):
        row = next(row for row in recipes.STUDIES["mnist"].rows if row.optimizer == method)
        study = recipes.Study("one", "", "", (row,))
        sizes[method] = [len(stage) for stage in chains([study], "paper", Store("none"))[0]]
    number = {name: len(grid.lrs) * len(grid.options) for name, grid in GRIDS.items()}
    assert sizes == {
        "sgdm": [number["sgdm"], len(GRIDS["sgdm"].fine), 2], "adagrad": [number["adagrad"], 2],
        "adam": [number["adam"], 2], "amsgrad": [number["amsgrad"], 2], "adabound": [3], "amsbound": [3],
    }  # fmt: skip


def test_stored_runs_count_as_made_and_measured(monkeypatch, tmp_path):
    study = cases.make_tiny(monkeypatch)
    store = Store(tmp_path / "runs")
    adam = [RunSpec(**{**cases.TINY, "optimizer": "adam", "seed": seed}) for seed in (100, 101)]
    seconds = [line["seconds"] for spec in adam for line in train(spec, store).metrics]
    estimate = estimate_time([study], "demo", store, [1, 2], 1e12)
    assert estimate["runs"] == 7 * 3 - 2
    (workload,) = estimate["workloads"]
    assert workload["time"] == "measured: 2 runs on cpu"
    assert estimate["work_seconds"] == pytest.approx(19 * 3 * sum(seconds) / len(seconds))
    run = estimate["work_seconds"] / 19
    assert [found["makespan"] for found in estimate["schedules"]] == pytest.approx([19 * run, 10 * run])


def test_a_stored_search_is_continued(monkeypatch, tmp_path):
    """Its winner is a real run: the finer pass around it is foreseen, and its other seeds."""
    study = cases.make_tiny(monkeypatch)
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    row = next(row for row in study.rows if row.optimizer == "sgdm")
    spec, store = row.spec("demo"), Store(tmp_path)
    grid = [RunSpec(**{**spec.to_dict(), "lr": lr}) for lr in GRIDS["sgdm"].lrs]
    states = [train(point, store).metrics[-1]["train_loss"] for point in grid[:2]]
    assert states[1] < states[0]
    for point in grid[2:]:  # as if the large ones had diverged
        with store.run(point).lock():
            store.run(point).begin(point, {"device": "cpu"})
            store.run(point).write_metrics([])
            store.run(point).end("diverged", [])
    (stages,) = chains([recipes.Study("one", "", "", (row,))], "demo", store)
    assert [[point.lr for point in stage] for stage in stages] == [[0.02, 0.05, 0.2, 0.5], [0.1, 0.1]]


def plan(*arguments):
    return CliRunner().invoke(app, ["reproduce", "--plan", *arguments])


def test_the_command_prints_a_table_or_json(tmp_path):
    out = ["--out", str(tmp_path / "out")]
    estimate = json.loads(plan("mnist", "--workers", "4", "--workers", "100", "--tflops", "5", "--json", *out).stdout)
    assert [found["workers"] for found in estimate["schedules"]] == [4, 100]
    assert [found["limit"] for found in estimate["schedules"]] == ["total work", "longest chain of runs"]
    assert estimate["schedules"][1]["makespan"] == estimate["chain_seconds"]
    assert estimate["runs"] == sum(workload["runs"] for workload in estimate["workloads"])
    assert estimate["bytes"] == sum(workload["bytes"] for workload in estimate["workloads"])
    shown = plan("mnist", *out).stdout
    assert f"{estimate['runs']} runs to do at demo scale" in shown
    assert all(text in shown for text in ("digits-half perceptron", "512", "assumed: a GPU does 10 TFLOP/s"))
    assert not (tmp_path / "out").exists()


def test_a_study_without_runs_is_nothing_to_do(tmp_path):
    assert "0 runs to do" in plan("theory", "--out", str(tmp_path)).stdout
