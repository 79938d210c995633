"""What a set of runs would cost, and how long studies take on N workers.

Operations and bytes are counted, a step is measured on this machine. Neither the data sets nor a GPU are needed: the
networks are on torch's meta device. Searches are simulated with synthetic losses, and their runs scheduled.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dynabound.lab.engines.base import threads
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec, workload_key, workload_title
from dynabound.lab.store import Store
from dynabound.lab.studies.plan import StoredRun, StoredRuns, wanted
from dynabound.lab.studies.recipes import Study
from dynabound.lab.studies.search import GRIDS
from dynabound.lab.tasks import models, optimizers
from dynabound.lab.tasks.catalog import SOURCES, TASKS
from dynabound.lab.tasks.datasets import Data, Images, Text, load
from dynabound.lab.tasks.models import LanguageModel
from dynabound.lab.training.batches import make_batches
from dynabound.lab.training.loop import Training

GPU_FLOPS = 10e12
"""Operations per second that a data-centre GPU is assumed to sustain on these networks."""
STEP_SECONDS = 1e-3
"""The shortest time of a step on a GPU: Python has to launch its kernels, however small they are."""
_PTB_WORDS, _PTB_VOCABULARY = (929_589, 73_760, 82_430), 10_000
_TIMED_IMAGES = 16  # per step of a convolutional network, scaled up to a batch: one of a wide network takes minutes
_TIMED_STEPS = 3
_ASSUMED = [
    "each search finds its best learning rate inside its first grid, and SGD's finer pass a better one; "
    "stored runs are better than all runs still to do",
    "a run takes as long as others of its workload, even if it diverges early; an interrupted one counts in full",
]
_WORSE = 1e9  # than any real loss
_NEAR = 1.1  # a makespan of at most this multiple of a lower bound is limited by it
_BETWEEN = 1.8  # times the middle of a grid: not in any grid, and nearest to the factor 2 of the finer pass


@dataclass(frozen=True)
class Profile:
    """What all runs of a workload have in common."""

    steps: int
    """Per epoch."""
    flops: float
    """Per epoch: forward and backward through the training set, forward through the held-out sets."""
    evaluated: float
    """Steps of the evaluation after an epoch; each counts as a third of a training step."""
    parameters: int
    model_bytes: int
    """Parameters and buffers."""


def estimate(specs: Iterable[RunSpec], progress: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """The cost of all runs of each workload, for JSON; each run is counted once, and some steps are timed.

    ``seconds`` are those of this machine, one run at a time.
    """
    costs = []
    for key, runs in _by_workload(dict.fromkeys(specs)).items():
        progress(workload_title(key))
        counted, epochs = profile(key), sum(spec.epochs for spec in runs)
        costs.append({
            "workload": workload_title(key),
            "runs": len(runs),
            "steps": epochs * counted.steps,
            "flops": epochs * counted.flops,
            "gpu_hours": sum(map(gpu_seconds, runs)) / 3600,
            "seconds": epochs * (counted.steps + counted.evaluated) * _step_seconds(key),
        })  # fmt: skip
    return costs


def _by_workload(specs: Iterable[RunSpec]) -> dict[RunSpec, list[RunSpec]]:
    workloads: dict[RunSpec, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        workloads[workload_key(spec)].append(spec)
    return workloads


def gpu_seconds(spec: RunSpec, flops_per_second: float = GPU_FLOPS) -> float:
    """The time that a run is assumed to take on a GPU."""
    counted = profile(workload_key(spec))
    least = (counted.steps + counted.evaluated) * STEP_SECONDS
    return spec.epochs * max(counted.flops / flops_per_second, least)


def size(spec: RunSpec) -> int:
    """Bytes of a finished run's checkpoint; its other files are small."""
    counted = profile(workload_key(spec))
    return counted.model_bytes + 4 * counted.parameters * _state_copies(spec.optimizer)


@cache
def profile(spec: RunSpec) -> Profile:
    """Count the operations and bytes of a workload."""
    data = _stand_in(spec)
    batches = make_batches(data, spec, torch.device("cpu"))
    with torch.device("meta"):
        model = models.build(spec.model, spec.to_dict(), data)
    trained, *held_out = (
        (data.train, data.valid, data.test) if isinstance(data, Text) else (data.train[1], data.test[1])
    )
    forward, both = _flops(model, spec, data)
    return Profile(
        steps=batches.steps,
        flops=len(trained[: spec.examples]) * both + sum(map(len, held_out)) * forward,
        evaluated=sum(1 for split in batches.splits for _ in batches.evaluation(split)) / 3,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        model_bytes=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
    )


def _flops(model: nn.Module, spec: RunSpec, data: Data) -> tuple[float, float]:
    """Operations per image or word: forward, and forward and backward."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        if isinstance(model, LanguageModel):
            words = torch.zeros(spec.bptt or 1, 2, dtype=torch.long)
            output, number = model(words, model.start(2))[0], words.numel()
        else:
            output, number = model(torch.zeros(2, *data.train[0].shape[1:])), 2
        forward = counter.get_total_flops()
        output.sum().backward()
    return forward / number, counter.get_total_flops() / number


@cache
def _state_copies(optimizer: str) -> int:
    """The number of state tensors that a method keeps for every parameter, counted after a first step."""
    parameter = torch.nn.Parameter(torch.ones(64))
    parameter.grad = torch.ones(64)
    method = optimizers.build(optimizer, [parameter], lr=1e-3)
    optimizers.set_mode(method, training=True)
    method.step()
    return sum(value.numel() for value in method.state[parameter].values() if torch.is_tensor(value)) // 64


def _step_seconds(spec: RunSpec) -> float:
    """Seconds of a step on this machine: the median of a few, which other processes hardly disturb."""
    small = min(spec.batch_size, _TIMED_IMAGES) if spec.width else spec.batch_size
    torch.set_num_threads(threads(spec, jobs=1))
    with torch.random.fork_rng([]):
        batches = Training(replace(spec, batch_size=small), _stand_in(spec), torch.device("cpu")).train_epoch()
        next(batches)  # the first is slower
        times = [time.perf_counter()]
        times += [time.perf_counter() for _ in itertools.islice(batches, _TIMED_STEPS)]
    return statistics.median(end - start for start, end in itertools.pairwise(times)) * spec.batch_size / small


def _stand_in(spec: RunSpec) -> Data:
    """Placeholder data of the right size."""
    if spec.task not in SOURCES:
        return load(spec.task)
    if spec.text:
        train, valid, test = (torch.zeros(number, dtype=torch.long) for number in _PTB_WORDS)
        return Text(train, valid, test, _PTB_VOCABULARY)
    source = SOURCES[spec.task]
    number, held_out, *size = source.shape
    height, width = (pixels // TASKS[spec.task].averaged for pixels in size)
    cifar = source.kind == "cifar"  # five files of coloured training images
    images = torch.zeros(1, 3 if cifar else 1, height, width, dtype=torch.uint8)
    images, labels = images.expand(5 * number if cifar else number, -1, -1, -1), torch.zeros(5 * number).long()
    return Images((images, labels[: len(images)]), (images[:held_out], labels[:held_out]), augment=cifar)


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


def schedule(rows: Sequence[Sequence[Sequence[str]]], seconds: Mapping[str, float], workers: int) -> tuple[float, int]:
    """The time of all runs, and the largest number of them at a time, if each goes to the first idle worker.

    A row has its runs in stages: those of a stage are known when those of the stage before have ended. The next stages
    are requested when a worker would be idle, as :func:`dynabound.lab.studies.drive.complete` does. A run that several
    rows share is executed once.

    >>> rows, seconds = [[["a", "b"], ["c"]], [["d"], ["e"]]], dict(a=1.0, b=3.0, c=1.0, d=2.0, e=3.0)
    >>> [schedule(rows, seconds, workers) for workers in (1, 2, 3)]
    [(10.0, 1), (6.0, 2), (5.0, 3)]
    """
    left, queue = [deque(row) for row in rows], deque[str]()
    running: list[tuple[float, str]] = []
    known, ended = set[str](), set[str]()
    clock, most = 0.0, 0
    while True:
        for stages in () if queue else left:
            while stages and ended.issuperset(stages[0]):
                stages.popleft()
            new = [name for name in dict.fromkeys(stages[0] if stages else ()) if name not in known]
            known.update(new)
            queue.extend(new)
        while queue and len(running) < workers:
            name = queue.popleft()
            heapq.heappush(running, (clock + seconds[name], name))
        if not running:
            return clock, most
        most = max(most, len(running))
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
    measured = _measure(store)
    seconds = {name: spec.epochs * measured[key][0] if (key := workload_key(spec)) in measured
               else gpu_seconds(spec, flops) for name, spec in specs.items()}  # fmt: skip
    workloads = [_workload(key, runs, seconds, measured) for key, runs in _by_workload(specs.values()).items()]
    names = [[[spec.name for spec in stage] for stage in row] for row in rows]
    work = math.fsum(seconds.values())
    chain, most = schedule(names, seconds, len(specs) or 1)
    return {
        "scale": scale,
        "assumed": _ASSUMED,
        "workloads": workloads,
        "runs": len(specs),
        "at_once": most,
        "flops": math.fsum(each["flops"] for each in workloads),
        "work_seconds": work,
        "chain_seconds": chain,
        "bytes": sum(each["bytes"] for each in workloads),
        "largest_bytes": max(map(size, specs.values()), default=0),
        "schedules": [_on_workers(number, *schedule(names, seconds, number), work, chain) for number in workers],
    }


def _workload(
    key: RunSpec, runs: list[RunSpec], seconds: Mapping[str, float], measured: Mapping[RunSpec, tuple[float, str]]
) -> dict[str, Any]:
    counted = profile(key)
    return {
        "workload": workload_title(key),
        "runs": len(runs),
        "parameters": counted.parameters,
        "flops": math.fsum(spec.epochs * counted.flops for spec in runs),
        "seconds": math.fsum(seconds[spec.name] for spec in runs),
        "time": f"measured: {measured[key][1]}" if key in measured else "assumed",
        "bytes": sum(map(size, runs)),
    }


def _on_workers(workers: int, makespan: float, most: int, work: float, chain: float) -> dict[str, Any]:
    share = work / workers
    limit = "both: some chains begin late"
    if makespan <= _NEAR * max(share, chain):
        limit = "total work" if share >= chain else "longest chain of runs"
    utilisation = share / makespan if makespan else 1.0
    return {"workers": workers, "makespan": makespan, "work": work, "most": most, "utilisation": utilisation,
            "share": share, "limit": limit}  # fmt: skip


def _measure(store: Store) -> dict[RunSpec, tuple[float, str]]:
    """For each workload with finished runs in ``store``, by its key: seconds per epoch, and where they come from."""
    workloads: dict[RunSpec, list[StoredRun]] = defaultdict(list)
    stored = StoredRuns(store)
    for run in store.runs():
        with contextlib.suppress(LabError):  # damaged: it will be run again
            found = stored.read(run.spec())
            if found.state == "finished":
                workloads[workload_key(found.spec)].append(found)
    measured = {}
    for key, runs in workloads.items():
        devices = {session.get("device", "?") for run in runs for session in run.environment}
        seconds = statistics.fmean(line["seconds"] for run in runs for line in run.metrics)
        measured[key] = seconds, f"{len(runs)} runs on {', '.join(sorted(devices))}"
    return measured
