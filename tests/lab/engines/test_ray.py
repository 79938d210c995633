"""Studies on a real Ray of two nodes: processes, nodes and the driver die, and runs are asked to stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound._extras import pip_command
from dynabound.cli import app
from dynabound.lab.engines.base import cores
from dynabound.lab.engines.pool import LocalEngine
from dynabound.lab.engines.ray import RayEngine, check_reachable
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import drive, recipes
from dynabound.lab.train import train
from helpers import tiny_studies as cases
from helpers import worker
from helpers.runs import assert_follows, without_seconds

# Read by Ray as it is imported: everything binds to 127.0.0.1.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
pytest.importorskip("ray", reason="needs Ray: pip install 'dynabound[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]
LONG = dict(epochs=300)  # seconds, so that there is time to kill it


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    few = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    config = {
        "worker_register_timeout_seconds": 600,  # on a loaded machine a process needs more than Ray's 60 s
        "enable_worker_prestart": False,  # no test uses a process without our code
        "prestart_worker_first_driver": False,
    }
    head = {**few, "num_cpus": 1, "include_dashboard": False, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**few, num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def connected(cluster):
    """The connection that all engines of this process use: starting workers with torch takes long."""
    with RayEngine(cluster.address, modules=["helpers"]) as engine:
        yield engine


@pytest.fixture
def engine(connected):
    with RayEngine("auto") as engine:
        yield engine


def ends(events):
    return {event.run: event.state for event in events if event.state in ("finished", "failed", "stopped", "diverged")}


def trainer(run) -> int:
    """The process that trains a run."""
    return int(re.match(r"pid (\d+) on", (run.folder / "lock").read_text()).group(1))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def node_of(cluster, pid: int):
    """The node whose raylet started the process."""
    (node,) = [n for n in cluster.list_all_nodes() if n.all_processes["raylet"][0].process.pid == parent(pid)]
    return node


def local_numbers(specs, root):
    with LocalEngine(jobs=cores()) as engine:
        assert set(ends(cases.execute(engine, specs, Store(root))).values()) == {"finished"}
    return cases.numbers(Store(root))


def test_a_killed_process_and_a_lost_node_change_no_bit(cluster, connected, tmp_path):
    store = Store(tmp_path / "ray")
    first, second, *others = [*cases.specs(2, **LONG), *cases.specs(18)]
    lost, events = {}, []
    for event in cases.execute(connected, [first, second, *others], store):
        events.append(event)
        victim = event.run in (first.name, second.name) and event.run not in lost
        if victim and event.progress and event.progress.metrics:
            pid = trainer(store.find(event.run))
            node = node_of(cluster, pid)
            if node is cluster.head_node:
                lost[event.run] = "process"
                os.kill(pid, signal.SIGKILL)
            else:
                lost[event.run] = "node"
                cluster.remove_node(node, allow_graceful=False)
    assert sorted(lost.values()) == ["node", "process"]
    assert ends(events) == {spec.name: "finished" for spec in (first, second, *others)}
    assert {event.run: event.error for event in events if event.state == "retried"}.keys() == lost.keys()
    assert all(lost[event.run] in event.error for event in events if event.state == "retried")
    assert len([event for event in events if event.state == "finished"]) == 20
    assert len(store.runs()) == 20
    assert cases.numbers(store) == local_numbers([first, second, *others], tmp_path / "local")


def test_runs_that_are_added_while_others_run_are_executed_too(engine, tmp_path):
    cases.assert_added_runs_are_run(engine, Store(tmp_path))


@pytest.fixture(scope="module")
def roomy(cluster):
    """A node for what asks for two cores."""
    return cluster.add_node(node_ip_address="127.0.0.1", object_store_memory=80 << 20, num_cpus=2)


@pytest.fixture(params=["shared", "not shared"])
def sharing(request, monkeypatch):
    """Whether tasks see the driver's store."""
    if request.param == "not shared":
        cases.hide_probe(monkeypatch)
    return request.param


def test_a_run_that_raises_or_always_dies_fails_alone(engine, tmp_path):
    raises = RunSpec(**cases.TINY, optimizer="helpers.deadly:Raises")
    always = RunSpec(**cases.TINY, optimizer="helpers.deadly:Dies")
    (good,) = cases.specs(1)
    events = list(cases.execute(engine, [always, raises, good], Store(tmp_path)))
    assert ends(events) == {raises.name: "failed", always.name: "failed", good.name: "finished"}
    assert [event.run for event in events if event.state == "retried"] == [always.name]
    errors = {event.run: event.error for event in events if event.state == "failed"}
    assert "deadly.py" in errors[raises.name]
    assert errors[raises.name].endswith("RuntimeError: <b>no</b> & never")
    assert "process" in errors[always.name]
    for spec in (raises, always):
        assert Store(tmp_path).run(spec).status() == {"state": "failed", "error": errors[spec.name]}


def test_a_store_that_is_not_shared_is_written_by_the_driver(engine, tmp_path, monkeypatch):
    cases.hide_probe(monkeypatch)
    store, raises = Store(tmp_path / "ray"), RunSpec(**cases.TINY, optimizer="helpers.deadly:Raises")
    specs = cases.specs(3)
    list(cases.execute(engine, [*specs, raises], store))
    assert {run.environment()[-1]["shared"] for run in store.runs()} == {False}
    assert "deadly.py" in store.run(raises).status()["error"]
    store.run(raises).remove()
    assert cases.numbers(store) == local_numbers(specs, tmp_path / "local")
    for spec in specs:
        ours, theirs = store.run(spec), Store(tmp_path / "local").run(spec)
        assert ours.status() == theirs.status()
        assert ours.load_checkpoint()["step"] == theirs.load_checkpoint()["step"]
        assert sorted(path.name for path in ours.folder.iterdir()) == sorted(p.name for p in theirs.folder.iterdir())


def test_leaving_lets_runs_save_a_checkpoint_and_they_resume(connected, sharing, tmp_path):
    spec, *waiting = cases.specs(5, epochs=100_000)  # none ends before it is asked to stop
    store, reached = Store(tmp_path / "ray"), 0
    for specs in ([spec, *waiting], [spec]):
        with RayEngine("auto") as engine:
            for event in cases.execute(engine, specs, store):
                if event.run == spec.name and event.progress:
                    assert event.progress.epoch >= reached, "it started over"
                    if event.progress.epoch > reached + 2:
                        break
        stopped = store.run(spec).load_checkpoint()["epoch"]
        assert stopped > reached + 2
        assert store.run(spec).status()["state"] == "stopped"
        assert {run.status()["state"] for run in store.runs()} <= {"stopped", "new"}
        reached = stopped
    epochs: list[int] = []
    alone = train(spec, Store(tmp_path / "local"), progress=lambda p: p.metrics and epochs.append(p.epoch),
                  stop=lambda: len(epochs) >= reached)  # fmt: skip
    assert without_seconds(alone.metrics)[: reached - 1] == without_seconds(store.run(spec).metrics())


def run_and_die(address: str, root: str, after: int) -> None:
    """A driver that is killed when ``after`` runs have finished."""
    with RayEngine(address) as engine:
        finished = 0
        for event in cases.execute(engine, cases.specs(6), Store(root)):
            finished += event.state == "finished"
            if finished == after:
                os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_driver_loses_no_finished_run(cluster, engine, tmp_path):
    store = Store(tmp_path / "ray")
    assert worker.run(run_and_die, cluster.address, str(store.root), 3) == -signal.SIGKILL
    finished = {run.name: (run.folder / "status.json").stat().st_mtime_ns for run in store.runs()
                if run.status()["state"] == "finished"}  # fmt: skip
    assert len(finished) >= 3
    started = []
    drive.complete(lambda loss: cases.specs(6), store, engine, lambda specs: started.extend(specs), lambda event: 0)
    assert not finished.keys() & {spec.name for spec in started}
    for name, time in finished.items():
        assert (store.find(name).folder / "status.json").stat().st_mtime_ns == time, "it was run again"
    assert cases.numbers(store) == local_numbers(cases.specs(6), tmp_path / "local")


def test_two_ranks_follow_one(connected, roomy, tmp_path):
    spec = RunSpec("digits", hidden=16, epochs=3)
    with RayEngine("auto", cpus=2, ranks=2) as engine:
        events = list(cases.execute(engine, [spec], Store(tmp_path / "two")))
    assert ends(events) == {spec.name: "finished"}
    assert [e.progress.metrics["epoch"] for e in events if e.progress and e.progress.metrics] == [1, 2, 3]
    run = Store(tmp_path / "two").run(spec)
    assert [(s["ranks"], s["threads"]) for s in run.environment()] == [(2, 1)]
    assert_follows(run, train(spec, Store(tmp_path / "one")).run)


def test_the_command_on_a_ray_of_its_own(tmp_path):
    """Ray's own messages stay out of the output, even when a process dies."""
    options = ["--hidden=4", "--epochs=3", "--examples=64", "--batch-size=32", "--seeds=1", f"--out={tmp_path}"]
    command = [sys.executable, "-m", "dynabound", "tune", "digits", "--optimizer=helpers.deadly:DiesLater", *options]
    answer = subprocess.run([*command, "--engine=ray", "--json"], capture_output=True, text=True, timeout=3000,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, cwd=tmp_path)  # fmt: skip
    assert answer.returncode == 1, answer.stderr
    assert answer.stdout, answer.stderr
    assert json.loads(answer.stdout)["helpers.deadly:DiesLater"]["tried"] == []
    (run,) = Store(tmp_path / "runs").runs()
    assert "process" in run.status()["error"]


def keep_sigterm() -> None:
    """Exit with 3 if a Ray that is started here leaves our handler of SIGTERM in place."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    with RayEngine("local"):
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(3 if received == [signal.SIGTERM] else 4)


def test_ray_does_not_replace_the_handler_of_sigterm():
    assert worker.run(keep_sigterm) == 3


def test_a_study_continues_and_shows_the_traceback_of_a_run_that_raises(connected, tmp_path, monkeypatch):
    study = cases.make_tiny(monkeypatch)
    rows = (replace(study.rows[0], optimizer="helpers.deadly:Raises"), *study.rows[1:])
    monkeypatch.setitem(recipes.STUDIES, "mnist", replace(study, rows=rows, seeds={**study.seeds, "demo": 1}))
    answer = CliRunner().invoke(app, ["reproduce", "mnist", "--engine=ray", "--address=auto", f"--out={tmp_path}"])
    assert answer.exit_code == 1
    assert "1 failed, 6 finished" in answer.stdout
    assert "Traceback (most recent call last)" in answer.stderr, "on the board"
    assert "RuntimeError: <b>no</b> & never" in answer.stderr
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<pre>Traceback (most recent call last)" in page
    assert "RuntimeError: &lt;b&gt;no&lt;/b&gt; &amp; never</pre>" in page


def test_without_ray_the_command_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = CliRunner().invoke(app, ["reproduce", "mnist", "--engine=ray", f"--out={tmp_path}"])
    assert answer.exit_code == 1
    assert answer.stderr.splitlines() == [f"dynabound: --engine ray: ray is not installed: {pip_command('ray')}"]


def test_a_ray_that_does_not_start_is_one_line_with_a_remedy(monkeypatch, tmp_path):
    """After 30 s on a busy machine Ray raises an Exception of no class of its own."""
    import ray

    def time_out(**options):
        raise Exception("The current node timed out during startup.\nMore about it.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", time_out)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    message = r"\(The current node timed out during startup\.\); run the same command again"
    with pytest.raises(LabError, match=message), RayEngine(None):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_without_a_listener_is_refused_at_once(scheme):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(OSError, match="refused"):
        check_reachable(address)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("--engine=slurm", "must be local or ray"),
        ("--address=auto", "add --engine ray"),
        ("--ranks-per-run=2", "add --engine ray"),
        ("--engine=ray --jobs=2", "--cpus-per-run"),
        ("--engine=ray --device=cuda:1", "must be cpu or cuda"),
        ("--engine=ray --gpus-per-run=1", "add --device cuda"),
        ("--engine=ray --gpus-per-run=0 --device=cuda", "leave out --gpus-per-run"),
        ("--engine=ray --gpus-per-run=1.5 --device=cuda", "ask for 1 at most, or an integer"),
        ("--engine=ray --ranks-per-run=4 --cpus-per-run=2", "every rank needs a CPU"),
        ("--engine=ray --ranks-per-run=2 --gpus-per-run=1 --device=cuda", "on cuda a GPU"),
    ],
)
def test_options_that_do_not_go_together(options, remedy, tmp_path):
    answer = CliRunner().invoke(app, ["reproduce", "mnist", *options.split(), f"--out={tmp_path}"])
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert remedy in line
