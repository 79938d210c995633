"""Runs, ranks and tasks in processes that die, raise and are asked to stop."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from dynabound.lab.engines.base import CrashedError, cores, run_with_events, threads
from dynabound.lab.engines.pool import LocalEngine, assign_device, run_tasks, train_on_ranks
from dynabound.lab.errors import LabError, LockedError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from helpers import deadly, worker
from helpers import tiny_studies as cases

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def engine():
    with LocalEngine(jobs=2) as engine:
        yield engine


def ends(events):
    return {event.run: event.state for event in events if event.state in ("finished", "failed", "stopped", "diverged")}


def test_all_runs_end_and_give_the_numbers_of_one_process(engine, tmp_path):
    specs = cases.specs(5)
    events = list(cases.execute(engine, specs, Store(tmp_path / "two")))
    assert ends(events) == {spec.name: "finished" for spec in specs}
    started = [event.run for event in events if event.state == "started"]
    assert started == [spec.name for spec in specs]
    epochs = [event.progress.metrics["epoch"] for event in events if event.progress and event.progress.metrics]
    assert sorted(epochs) == sorted([1, 2, 3] * 5)
    list(cases.execute(cases.InProcess(), specs, Store(tmp_path / "one")))
    assert cases.numbers(Store(tmp_path / "two")) == cases.numbers(Store(tmp_path / "one"))


def test_a_death_is_retried_and_the_second_is_a_failure(engine, tmp_path):
    store, mark = Store(tmp_path), tmp_path / "mark"
    once = RunSpec(**cases.TINY, optimizer="helpers.deadly:DiesOnce", opt={"mark": str(mark)})
    always = RunSpec(**cases.TINY, optimizer="helpers.deadly:Dies")
    raises = RunSpec(**cases.TINY, optimizer="helpers.deadly:Raises")
    good = cases.specs(2)
    events = list(cases.execute(engine, [always, once, raises, *good], store))
    expected = {once.name: "finished", always.name: "failed", raises.name: "failed"}
    assert ends(events) == {**expected, **{spec.name: "finished" for spec in good}}
    assert [event.run for event in events if event.state == "retried"].count(always.name) == 1
    assert [event.run for event in events if event.state == "retried"].count(once.name) == 1
    assert store.run(always).status() == {"state": "failed", "error": f"its process died (signal {signal.SIGKILL:d})"}
    error = store.run(raises).status()["error"]
    assert error.startswith("Traceback")
    assert "deadly.py" in error
    assert error.endswith("RuntimeError: <b>no</b> & never")
    assert store.run(raises).spec() == raises


def test_a_wait_for_a_locked_run_is_reported_once(tmp_path, caplog):
    answers = iter([False, False, True])

    def train(*_, **__):
        raise LockedError("run x is being trained by pid 1")

    (spec,) = cases.specs(1)
    event = run_with_events(spec, Store(tmp_path), lambda event: None, lambda: next(answers), train)
    assert event.state == "stopped"
    assert [record.getMessage() for record in caplog.records] == ["run x is being trained by pid 1; waiting"]


def test_what_cannot_be_run_fails_with_its_reason(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = RunSpec("ptb", hidden=4)
    (failed,) = [event for event in cases.execute(engine, [spec], Store(tmp_path / "runs")) if event.state == "failed"]
    assert "dynabound data fetch ptb" in failed.error
    assert Store(tmp_path / "runs").run(spec).status()["state"] == "failed"


def test_leaving_lets_runs_save_themselves(tmp_path):
    (spec,) = cases.specs(1, epochs=100_000)
    with LocalEngine(jobs=1) as engine:
        for event in cases.execute(engine, [spec], Store(tmp_path)):
            if event.progress and event.progress.epoch > 2:
                break
    run = Store(tmp_path).run(spec)
    assert run.status()["state"] == "stopped"
    assert run.load_checkpoint()["epoch"] > 2


@pytest.mark.parametrize("after", [1, 7])
def test_a_killed_command_resumes(after, engine, tmp_path):
    assert worker.run(cases.run_and_die, str(tmp_path / "killed"), after) == -signal.SIGKILL
    assert set(ends(cases.execute(engine, cases.specs(6), Store(tmp_path / "killed"))).values()) == {"finished"}
    list(cases.execute(cases.InProcess(), cases.specs(6), Store(tmp_path / "whole")))
    assert cases.numbers(Store(tmp_path / "killed")) == cases.numbers(Store(tmp_path / "whole"))


@pytest.mark.parametrize(("variable", "expected"), [("3", 3), (None, 4), ("", 4), ("all", 4)])
def test_threads_follow_the_environment(variable, expected, monkeypatch):
    monkeypatch.setattr("dynabound.lab.engines.base.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert threads(RunSpec("cifar10"), jobs=2) == expected
    assert threads(RunSpec("mnist"), jobs=2) == threads(RunSpec("pydoc"), jobs=2) == 1, "small models"


def test_a_small_model_has_one_thread_however_many_cores_are_free(tmp_path):
    (spec,) = cases.specs(1)
    with LocalEngine(jobs=1) as engine:
        list(cases.execute(engine, [spec], Store(tmp_path)))
    assert [session["threads"] for session in Store(tmp_path).run(spec).environment()] == [1]


def test_jobs_default_to_the_cores_or_the_gpus(monkeypatch):
    assert LocalEngine().jobs == cores() >= 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert LocalEngine(device="cuda").jobs == 3
    assert LocalEngine(jobs=5, device="cuda").jobs == 5
    assert assign_device("cuda:2", 0, 0) == "cuda:2"
    assert assign_device("cpu", 1, 0) == "cpu"


def test_runs_that_are_added_while_others_run_are_executed_too(engine, tmp_path):
    cases.assert_added_runs_are_run(engine, Store(tmp_path))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is new in Python 3.11")
def test_processes_import_nothing_from_the_working_directory(tmp_path):
    """A file there may be called like a module that the workers import."""
    for name in ("sklearn", "selectors"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    code = "import sys; sys.path.remove(''); from dynabound.__main__ import main; main()"
    options = ["--optimizer=sgd", "--hidden=4", "--epochs=1", "--examples=64", "--seeds=1", "--jobs=1", "--json"]
    command = [sys.executable, "-c", code, "tune", "digits", *options, f"--out={tmp_path / 'out'}"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1800)
    assert answer.returncode == 0, answer.stderr
    assert not (tmp_path / "executed").exists()


def on_ranks(spec, root, stop=lambda: False, device="cpu"):
    seen = []
    options = {"ranks": 2, "threads": 1, "device": device, "data_dir": None}
    return train_on_ranks(spec, Store(root), progress=seen.append, stop=stop or (lambda: bool(seen)), **options), seen


def test_a_rank_that_dies_stops_the_others(tmp_path):
    spec = RunSpec(**cases.TINY, optimizer="helpers.deadly:RankDies")
    with pytest.raises(CrashedError, match="its rank 1 died"):
        on_ranks(spec, tmp_path)
    assert not Store(tmp_path).run(spec).locked()


def test_a_rank_that_raises_is_quoted(tmp_path):
    with pytest.raises(LabError, match=r"(?s)deadly\.py.*rank 1 will not"):
        on_ranks(RunSpec(**cases.TINY, optimizer="helpers.deadly:RankRaises"), tmp_path)


def test_ranks_that_cannot_join_say_why(tmp_path):
    with pytest.raises(LabError, match=r"^device='cuda:99': cannot be used here \(.*\); try cpu$"):
        on_ranks(RunSpec(**cases.TINY), tmp_path, device="cuda:99")


def test_ranks_stop_together(tmp_path):
    (spec,) = cases.specs(1, epochs=100_000)
    state, seen = on_ranks(spec, tmp_path, stop=None)
    assert state == "stopped"
    assert Store(tmp_path).run(spec).load_checkpoint()["step"] >= seen[0].step


def test_a_run_that_another_process_trains_is_said_to_be_locked(tmp_path):
    (spec,) = cases.specs(1)
    held, release = worker.CONTEXT.Event(), worker.CONTEXT.Event()
    holder = worker.start(worker.hold_lock, spec.to_dict(), str(tmp_path), held, release)
    held.wait()
    try:
        with pytest.raises(LockedError, match="is being trained by pid"):
            on_ranks(spec, tmp_path)
    finally:
        release.set()
        holder.join()


def test_all_tasks_are_called(tmp_path):
    done = []
    run_tasks([partial(Path.touch, tmp_path / str(n)) for n in range(3)], jobs=2, progress=done.append)
    assert done == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    run_tasks([], jobs=2)


def test_a_process_that_dies_is_replaced_once(tmp_path):
    with pytest.raises(LabError, match="a process that prepares the study died; run the same command again"):
        run_tasks([partial(deadly.write_or_die, tmp_path / "none" / "file")], jobs=1)
    run_tasks([partial(deadly.write_or_die, tmp_path / "file")], jobs=1)
    assert (tmp_path / "file").exists()


def test_a_task_that_fails_is_an_error_of_one_line(tmp_path):
    with pytest.raises(LabError, match=r"^FileExistsError: .*") as error:
        run_tasks([partial(Path.mkdir, tmp_path)], jobs=1)
    assert "\n" not in str(error.value)
