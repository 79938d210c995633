"""Studies on a real Ray of two nodes, which lose processes and nodes, are told to stop, and lose their driver."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import lab_worker as worker
import pytest
import study_cases as cases
from test_ranks import assert_follows
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab import ray_engine, reproduce
from dynabound.lab.engine import LocalEngine, cores
from dynabound.lab.ray_engine import RayEngine
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train

# Read by Ray as it is imported: everything binds to 127.0.0.1.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
pytest.importorskip("ray", reason="needs Ray: pip install 'dynabound[ray]'")
LONG = dict(epochs=400)


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    few = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**few, "num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**few, num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def connected(cluster):
    """The connection that all engines of this process use: workers that have torch loaded are dear."""
    with RayEngine(cluster.address, modules=["deadly"]) as engine:
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
        assert set(ends(engine.run(specs, Store(root))).values()) == {"finished"}
    return cases.numbers(Store(root))


def test_a_killed_process_and_a_lost_node_change_no_bit(cluster, connected, tmp_path):
    store = Store(tmp_path / "ray")
    first, second, *others = [*cases.specs(2, **LONG), *cases.specs(18)]
    lost, events = {}, []
    for event in connected.run([first, second, *others], store):
        events.append(event)
        if event.progress and event.progress.metrics and event.run in (first.name, second.name):
            pid = trainer(store.run(first if event.run == first.name else second))
            if event.run == first.name and not lost:
                lost[event.run] = "process"
                os.kill(pid, signal.SIGKILL)
            elif event.run == second.name and lost.keys() == {first.name}:
                lost[event.run] = "node"
                cluster.remove_node(node_of(cluster, pid), allow_graceful=False)
    assert ends(events) == {spec.name: "finished" for spec in (first, second, *others)}
    assert {event.run: event.error for event in events if event.state == "retried"}.keys() == lost.keys()
    assert all(lost[event.run] in event.error for event in events if event.state == "retried")
    assert len([event for event in events if event.state == "finished"]) == 20
    assert len(store.runs()) == 20
    assert not list(store.root.glob(".*")), "the token stays"
    assert cases.numbers(store) == local_numbers([first, second, *others], tmp_path / "local")
