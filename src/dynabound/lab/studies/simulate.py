"""How long studies take on N workers: searches are played with made-up losses, their runs put on a calendar."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dynabound.lab.errors import LabError
from dynabound.lab.report.results import losses
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import cost as estimate
from dynabound.lab.studies.drive import wanted
from dynabound.lab.studies.recipes import Study
from dynabound.lab.studies.search import GRIDS, Loss

__all__ = ["ASSUMED", "Chain", "Schedule", "chains", "plan", "simulate"]

Chain: TypeAlias = "Sequence[Sequence[str]]"
"""Runs in stages: which runs the next one has is known when those of the last have ended."""

ASSUMED = (
    "each search finds its best step size inside its grid at once, and SGD's finer pass a better one; where runs are "
    "stored, their best is better than all that is to come",
    "a run takes as long as others of its kind, even if it will diverge early; an interrupted one counts whole",
)
"""What cannot be known before the runs are made."""
_BEHIND = 1e9  # a loss that is worse than any real one
_NEAR = 1.1  # times a lower bound: what is no longer is limited by it
_BETWEEN = 1.8  # a step size that no grid has, and that is nearest to the finer pass's double


def chains(studies: Iterable[Study], scale: str, store: Store) -> list[list[list[RunSpec]]]:
    """For each row of the studies the runs that are to be made, in stages."""
    stored = losses(store, ())
    return [_chain(replace(study, rows=(row,)), scale, store, stored) for study in studies for row in study.rows]


def _chain(study: Study, scale: str, store: Store, stored: Loss) -> list[list[RunSpec]]:
    made: set[str] = set()

    def loss(spec: RunSpec) -> float | None:
        known = stored(spec)
        return _made_up(spec) if known is None and spec.name in made else known

    stages: list[list[RunSpec]] = []
    while True:
        specs = [spec for spec in wanted([study], scale, store, loss) if loss(spec) is None]
        if not specs:
            return stages
        stages.append(specs)
        made |= {spec.name for spec in specs}


def _made_up(spec: RunSpec) -> float:
    """A loss whose minimum is near the middle of the method's grid."""
    lrs = GRIDS[spec.optimizer].lrs if spec.optimizer in GRIDS else (1.0,)
    return _BEHIND + abs(math.log(spec.lr / lrs[len(lrs) // 2] / _BETWEEN))


@dataclass(frozen=True)
class Schedule:
    """A set of runs on a number of workers."""

    workers: int
    makespan: float
    """Seconds from the first start to the last end."""
    work: float
    """Seconds of all runs together."""
    most: int
    """Runs at a time, at the busiest moment."""

    @property
    def utilisation(self) -> float:
        """The share of the workers' time in which they work."""
        return self.work / (self.workers * self.makespan) if self.makespan else 1.0


def simulate(rows: Sequence[Chain], seconds: Mapping[str, float], workers: int) -> Schedule:
    """Give each run to the first idle worker, as :func:`dynabound.lab.studies.drive.complete` does.

    The next stages are asked for when a worker would be idle; a run of several rows is made once. With a worker for
    every run the makespan is the longest chain of runs.

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
            return Schedule(workers, clock, math.fsum(seconds[name] for name in known), most)
        clock, name = heapq.heappop(running)
        ended.add(name)


def plan(studies: Iterable[Study], scale: str, store: Store, workers: Iterable[int], flops: float) -> dict[str, Any]:
    """What is still to be run, what it costs, and how long it takes on each number of ``workers``, as JSON has it.

    Runs take as long as finished ones of their kind in ``store`` took, or else what a GPU with so many ``flops`` per
    second is assumed to need.
    """
    rows = chains(studies, scale, store)
    specs = {spec.name: spec for row in rows for stage in row for spec in stage}
    paces = _measured(store)
    seconds = {
        name: spec.epochs * paces[like][0]
        if (like := estimate.kind(spec)) in paces
        else estimate.gpu_seconds(spec, flops)
        for name, spec in specs.items()
    }
    names = [[[spec.name for spec in stage] for stage in row] for row in rows]
    chain = simulate(names, seconds, len(specs) or 1)
    sizes = {name: estimate.size(spec) for name, spec in specs.items()}
    return {
        "scale": scale,
        "assumed": list(ASSUMED),
        "workloads": _workloads(specs, seconds, sizes, paces),
        "runs": len(specs),
        "at_once": chain.most,
        "flops": math.fsum(spec.epochs * estimate.count(estimate.kind(spec)).flops for spec in specs.values()),
        "work_seconds": chain.work,
        "chain_seconds": chain.makespan,
        "bytes": sum(sizes.values()),
        "largest_bytes": max(sizes.values(), default=0),
        "schedules": [_told(simulate(names, seconds, number), chain.makespan) for number in workers],
    }


def _told(found: Schedule, chain: float) -> dict[str, Any]:
    share = found.work / found.workers
    limit = "both: some chains begin late"
    if found.makespan <= _NEAR * max(share, chain):
        limit = "total work" if share >= chain else "longest chain of runs"
    return {**vars(found), "utilisation": found.utilisation, "share": share, "limit": limit}


def _measured(store: Store) -> dict[RunSpec, tuple[float, str]]:
    """For each kind of runs that ``store`` has finished, its seconds per epoch, and where they come from."""
    epochs: dict[RunSpec, list[float]] = {}
    devices: dict[RunSpec, set[str]] = {}
    runs: dict[RunSpec, int] = {}
    for run in store.runs():
        try:
            like, metrics = estimate.kind(run.spec()), run.metrics()
        except LabError:  # a damaged one: it will be run again
            continue
        if run.status()["state"] == "finished":
            epochs.setdefault(like, []).extend(line["seconds"] for line in metrics)
            devices.setdefault(like, set()).update(session.get("device", "?") for session in run.environment())
            runs[like] = runs.get(like, 0) + 1
    return {
        like: (math.fsum(times) / len(times), f"{runs[like]} runs on {', '.join(sorted(devices[like]))}")
        for like, times in epochs.items()
    }


def _workloads(
    specs: Mapping[str, RunSpec],
    seconds: Mapping[str, float],
    sizes: Mapping[str, int],
    paces: Mapping[RunSpec, tuple[float, str]],
) -> list[dict[str, Any]]:
    kinds: dict[RunSpec, list[str]] = {}
    for name, spec in specs.items():
        kinds.setdefault(estimate.kind(spec), []).append(name)
    return [
        {
            "workload": estimate.title(like),
            "runs": len(names),
            "parameters": estimate.count(like).parameters,
            "flops": math.fsum(specs[name].epochs * estimate.count(like).flops for name in names),
            "seconds": math.fsum(seconds[name] for name in names),
            "time": f"measured: {paces[like][1]}" if like in paces else "assumed",
            "bytes": sum(sizes[name] for name in names),
        }
        for like, names in kinds.items()
    ]
