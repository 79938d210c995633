"""How long studies take on N workers: against a clock that ticks, against the real thing, and against theorems."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.engines.base import Event
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import drive, recipes
from dynabound.lab.studies.plan import wanted
from dynabound.lab.studies.recipes import choose
from dynabound.lab.studies.search import GRIDS
from dynabound.lab.studies.simulate import chains, estimate_time, measured_paces, simulate, synthetic_loss
from dynabound.lab.train import train
from helpers import tiny_studies as cases

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
    found = simulate(rows, seconds, workers)
    work = sum(seconds[name] for name in {name for row in rows for stage in row for name in stage})
    chain = simulate(rows, seconds, len(seconds)).makespan
    assert found.work == work
    assert max(work / workers, chain) <= found.makespan + 1e-9
    assert found.makespan <= work / workers + chain * (1 - 1 / workers) + 1e-9
    assert 0 < found.utilisation <= 1 + 1e-12
    assert found.most <= workers


@given(problems())
def test_one_worker_takes_the_sum_of_the_times(problem):
    rows, seconds = problem
    assert simulate(rows, seconds, 1).makespan == simulate(rows, seconds, 1).work
    assert simulate(rows, seconds, 1).utilisation == 1


@given(st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_rows_that_share_nothing_take_the_longest_of_their_sums(stages):
    """With a worker for every run: row i has the stages i, i + 1, …, each as long as its longest run."""
    rows, seconds, sums = [], {}, []
    for first in range(len(stages)):
        row = [[f"{first}-{n}-{k}" for k in range(len(stage))] for n, stage in enumerate(stages[first:])]
        seconds |= {
            name: t
            for names, stage in zip(row, stages[first:], strict=True)
            for name, t in zip(names, stage, strict=True)
        }
        rows.append(row)
        sums.append(sum(max(stage) for stage in stages[first:]))
    assert simulate(rows, seconds, len(seconds)).makespan == max(sums)


@pytest.mark.parametrize(("workers", "makespan"), [(1, 15.0), (2, 8.0), (3, 7.0), (4, 7.0)])
def test_a_case_worked_out_by_hand(workers, makespan):
    """Two workers: a and b at 0, c at 3, d and e at 4. Three: a, b, c at 0, d at 1, e at 4."""
    rows = [[["a", "b"], ["e"]], [["c"]], [["d"]]]
    seconds = dict(a=4.0, b=3.0, c=1.0, d=4.0, e=3.0)
    assert simulate(rows, seconds, workers).makespan == makespan


def test_nothing_takes_no_time():
    found = simulate([[], []], {}, 8)
    assert (found.makespan, found.work, found.most, found.utilisation) == (0, 0, 0, 1)


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
    assert simulate(names, seconds, workers).makespan == engine.clock


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
    adam = [RunSpec(**{**cases.TINY, "optimizer": "adam", "seed": seed}) for seed in (0, 1)]
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


def test_a_session_without_a_device_does_not_break_the_plan(tmp_path):
    store, (spec,) = Store(tmp_path), cases.specs(1)
    train(spec, store)
    (store.run(spec).folder / "environment.json").write_text('[{"shared": false}]')
    assert [source for _, source in measured_paces(store).values()] == ["1 runs on ?"]
    assert estimate_time(choose(["mnist"], "demo"), "demo", store, [1], 1e12)["runs"]
