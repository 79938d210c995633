"""How long studies take on N workers: searches are simulated with synthetic losses, and their runs scheduled."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec, workload_key, workload_title
from dynabound.lab.store import Store
from dynabound.lab.studies import cost
from dynabound.lab.studies.plan import StoredRuns, wanted
from dynabound.lab.studies.recipes import Study
from dynabound.lab.studies.search import GRIDS

__all__ = ["ASSUMED", "Chain", "Timeline", "chains", "estimate_time", "measured_paces", "simulate", "synthetic_loss"]

Chain: TypeAlias = "Sequence[Sequence[str]]"
"""Runs in stages: the runs of a stage are known when those of the stage before have ended."""

ASSUMED = (
    "each search finds its best step size inside its first grid, and SGD's finer pass a better one; "
    "stored runs are better than all runs still to do",
    "a run takes as long as others of its workload, even if it diverges early; an interrupted one counts in full",
)
"""Assumptions about runs that have not ended."""
_WORSE = 1e9  # than any real loss
_NEAR = 1.1  # a makespan of at most this multiple of a lower bound is limited by it
_BETWEEN = 1.8  # times the middle of a grid: not in any grid, and nearest to the factor 2 of the finer pass


def chains(studies: Iterable[Study], scale: str, store: Store) -> list[list[list[RunSpec]]]:
    """For each row of the studies, the remaining runs in stages."""
    runs = StoredRuns(store)
    return [_chain(replace(study, rows=(row,)), scale, runs) for study in studies for row in study.rows]


def _chain(study: Study, scale: str, runs: StoredRuns) -> list[list[RunSpec]]:
    done: set[str] = set()
    stored = runs.losses(())

    def loss(spec: RunSpec) -> float | None:
        known = stored(spec)
        return synthetic_loss(spec) if known is None and spec.name in done else known

    stages: list[list[RunSpec]] = []
    while True:
        specs = [spec for spec in wanted([study], scale, runs, loss, assume=True) if loss(spec) is None]
        if not specs:
            return stages
        stages.append(specs)
        done |= {spec.name for spec in specs}


def synthetic_loss(spec: RunSpec) -> float:
    """A loss whose minimum is near the middle of the method's grid."""
    lrs = GRIDS[spec.optimizer].lrs if spec.optimizer in GRIDS else (1.0,)
    return _WORSE + abs(math.log(spec.lr / lrs[len(lrs) // 2] / _BETWEEN))


@dataclass(frozen=True)
class Timeline:
    """A set of runs on a number of workers."""

    workers: int
    makespan: float
    """Seconds from the first start to the last end."""
    work: float
    """Seconds of all runs together."""
    most: int
    """The largest number of runs at the same time."""

    @property
    def utilisation(self) -> float:
        """The fraction of the workers' time in which they are busy."""
        return self.work / (self.workers * self.makespan) if self.makespan else 1.0


def simulate(rows: Sequence[Chain], seconds: Mapping[str, float], workers: int) -> Timeline:
    """Give each run to the first idle worker, as :func:`dynabound.lab.studies.drive.complete` does.

    The next stages are requested when a worker would be idle; a run that several rows share is executed once. With a
    worker for every run the makespan is the longest chain of runs.

    >>> rows, seconds = [[["a", "b"], ["c"]], [["d"], ["e"]]], dict(a=1.0, b=3.0, c=1.0, d=2.0, e=3.0)
    >>> [simulate(rows, seconds, workers).makespan for workers in (1, 2, 3)]
    [10.0, 6.0, 5.0]
    """
    left = [deque(row) for row in rows]
    queue: deque[str] = deque()
    running: list[tuple[float, str]] = []
    known: set[str] = set()
    ended: set[str] = set()
    clock, most = 0.0, 0
    while True:
        if not queue:
            for stages in left:
                while stages and ended.issuperset(stages[0]):
                    stages.popleft()
                for name in stages[0] if stages else ():
                    if name not in known:
                        known.add(name)
                        queue.append(name)
        while queue and len(running) < workers:
            name = queue.popleft()
            heapq.heappush(running, (clock + seconds[name], name))
        most = max(most, len(running))
        if not running:
            return Timeline(workers, clock, math.fsum(seconds[name] for name in known), most)
        clock, name = heapq.heappop(running)
        ended.add(name)


def estimate_time(
    studies: Iterable[Study], scale: str, store: Store, workers: Iterable[int], flops: float
) -> dict[str, Any]:
    """The remaining runs, their cost, and their time on each number of ``workers``, for JSON.

    A run takes as long as the finished runs of its workload in ``store`` took. If there are none, its time is assumed
    to be that of a GPU with ``flops`` operations per second.
    """
    rows = chains(studies, scale, store)
    specs = {spec.name: spec for row in rows for stage in row for spec in stage}
    paces = measured_paces(store)
    seconds = {
        name: spec.epochs * paces[key][0] if (key := workload_key(spec)) in paces else cost.gpu_seconds(spec, flops)
        for name, spec in specs.items()
    }
    names = [[[spec.name for spec in stage] for stage in row] for row in rows]
    chain = simulate(names, seconds, len(specs) or 1)
    sizes = {name: cost.size(spec) for name, spec in specs.items()}
    return {
        "scale": scale,
        "assumed": list(ASSUMED),
        "workloads": _workloads(specs, seconds, sizes, paces),
        "runs": len(specs),
        "at_once": chain.most,
        "flops": math.fsum(spec.epochs * cost.profile(workload_key(spec)).flops for spec in specs.values()),
        "work_seconds": chain.work,
        "chain_seconds": chain.makespan,
        "bytes": sum(sizes.values()),
        "largest_bytes": max(sizes.values(), default=0),
        "schedules": [_fields(simulate(names, seconds, number), chain.makespan) for number in workers],
    }


def _fields(found: Timeline, chain: float) -> dict[str, Any]:
    share = found.work / found.workers
    limit = "both: some chains begin late"
    if found.makespan <= _NEAR * max(share, chain):
        limit = "total work" if share >= chain else "longest chain of runs"
    return {**vars(found), "utilisation": found.utilisation, "share": share, "limit": limit}


def measured_paces(store: Store) -> dict[RunSpec, tuple[float, str]]:
    """For each workload with finished runs in ``store``, by its key: seconds per epoch, and where they come from."""
    epochs: dict[RunSpec, list[float]] = {}
    devices: dict[RunSpec, set[str]] = {}
    runs: dict[RunSpec, int] = {}
    for run in store.runs():
        try:
            key, metrics = workload_key(run.spec()), run.metrics()
        except LabError:  # damaged: it will be run again
            continue
        if run.status()["state"] == "finished":
            epochs.setdefault(key, []).extend(line["seconds"] for line in metrics)
            devices.setdefault(key, set()).update(session.get("device", "?") for session in run.environment())
            runs[key] = runs.get(key, 0) + 1
    return {
        key: (math.fsum(times) / len(times), f"{runs[key]} runs on {', '.join(sorted(devices[key]))}")
        for key, times in epochs.items()
    }


def _workloads(
    specs: Mapping[str, RunSpec],
    seconds: Mapping[str, float],
    sizes: Mapping[str, int],
    paces: Mapping[RunSpec, tuple[float, str]],
) -> list[dict[str, Any]]:
    workloads: dict[RunSpec, list[str]] = {}
    for name, spec in specs.items():
        workloads.setdefault(workload_key(spec), []).append(name)
    return [
        {
            "workload": workload_title(key),
            "runs": len(names),
            "parameters": cost.profile(key).parameters,
            "flops": math.fsum(specs[name].epochs * cost.profile(key).flops for name in names),
            "seconds": math.fsum(seconds[name] for name in names),
            "time": f"measured: {paces[key][1]}" if key in paces else "assumed",
            "bytes": sum(sizes[name] for name in names),
        }
        for key, names in workloads.items()
    ]
