"""What a set of runs would cost: operations and bytes counted, and a step measured on this machine.

Neither the data sets nor a GPU are needed: the networks are on torch's meta device.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dynabound.lab.engines.base import threads
from dynabound.lab.spec import RunSpec, workload_key, workload_title
from dynabound.lab.tasks import models, optimizers
from dynabound.lab.tasks.catalog import SOURCES
from dynabound.lab.tasks.datasets import Data, Images, Text, load
from dynabound.lab.tasks.models import LanguageModel
from dynabound.lab.training.batches import make_batches
from dynabound.lab.training.loop import Training

__all__ = ["GPU_FLOPS", "STEP_SECONDS", "Cost", "Profile", "estimate", "gpu_seconds", "profile", "size"]

GPU_FLOPS = 10e12
"""Operations per second that a data-centre GPU is assumed to sustain on these networks."""
STEP_SECONDS = 1e-3
"""The shortest time of a step on a GPU: Python has to launch its kernels, however small they are."""
_PTB_WORDS, _PTB_VOCABULARY = (929_589, 73_760, 82_430), 10_000
_TIMED_FLOPS = 1e10  # of a step, about a second
_TIMED_IMAGES = 16  # per step with more operations, scaled up to a batch: one of a wide network takes a CPU minutes
_TIMED_STEPS = 3
_METRICS_BYTES = 300  # of an epoch
_RATES_BYTES = 130  # of a layer and an epoch


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
    layers: int
    """Tensors of parameters."""
    model_bytes: int
    """Parameters and buffers."""


@dataclass(frozen=True)
class Cost:
    """The cost of all runs of one workload."""

    workload: str
    runs: int
    steps: int
    """In all runs together."""
    flops: float
    """In all runs together, with the evaluations."""
    gpu_hours: float
    """See :func:`gpu_seconds`."""
    seconds: float
    """On this machine, one run at a time."""


def estimate(specs: Iterable[RunSpec], progress: Callable[[str], None] = lambda _: None) -> list[Cost]:
    """The cost of ``specs``, each run counted once; some steps of each workload are timed."""
    workloads: dict[RunSpec, list[RunSpec]] = {}
    for spec in dict.fromkeys(specs):
        workloads.setdefault(workload_key(spec), []).append(spec)
    costs = []
    for key, runs in workloads.items():
        title = workload_title(key)
        progress(title)
        counted, epochs = profile(key), sum(spec.epochs for spec in runs)
        hours = sum(gpu_seconds(spec) for spec in runs) / 3600
        seconds = epochs * (counted.steps + counted.evaluated) * _step_seconds(key)
        costs.append(Cost(title, len(runs), epochs * counted.steps, epochs * counted.flops, hours, seconds))
    return costs


def gpu_seconds(spec: RunSpec, flops_per_second: float = GPU_FLOPS) -> float:
    """The time that a run is assumed to take on a GPU."""
    counted = profile(workload_key(spec))
    least = (counted.steps + counted.evaluated) * STEP_SECONDS
    return spec.epochs * max(counted.flops / flops_per_second, least)


def size(spec: RunSpec) -> int:
    """Bytes of a finished run's folder: one checkpoint, which contains the metrics, and the metrics."""
    counted = profile(workload_key(spec))
    metrics = spec.epochs * (_METRICS_BYTES + _RATES_BYTES * counted.layers * spec.rates)
    state = 4 * counted.parameters * _state_copies(spec.optimizer)
    return counted.model_bytes + state + 2 * metrics


@cache
def profile(spec: RunSpec) -> Profile:
    """Count the operations and bytes of a workload."""
    with torch.random.fork_rng([]):
        data = _stand_in(spec)
        batches = make_batches(_one_pixel(data), spec, torch.device("cpu"))
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
        layers=len(list(model.parameters())),
        model_bytes=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
    )


def _one_pixel(data: Data) -> Data:
    """The same number of images, of one pixel each: normalising them costs nothing."""
    if isinstance(data, Text):
        return data
    (x, y), (u, v) = data.train, data.test
    return replace(data, train=(x[..., :1, :1], y), test=(u[..., :1, :1], v))


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
    batch, counted = int(spec.batch_size or 1), profile(spec)
    short = spec.text or counted.flops / counted.steps < _TIMED_FLOPS
    small = batch if short else min(batch, _TIMED_IMAGES)
    with torch.random.fork_rng([]), _as_many_threads_as(spec):
        training = Training(replace(spec, batch_size=small), _stand_in(spec), torch.device("cpu"))
        batches = training.train_epoch()
        next(batches)  # the first is slower
        times = [time.perf_counter()]
        for _ in range(_TIMED_STEPS):
            next(batches)
            times.append(time.perf_counter())
    return statistics.median(end - start for start, end in itertools.pairwise(times)) * batch / small


@contextmanager
def _as_many_threads_as(spec: RunSpec) -> Iterator[None]:
    """Use the number of threads that a run on its own has."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads(spec, jobs=1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _stand_in(spec: RunSpec) -> Data:
    """Placeholder data of the right size."""
    if spec.task not in SOURCES:
        return load(spec.task)
    if spec.text:
        train, valid, test = (torch.randint(_PTB_VOCABULARY, (number,)) for number in _PTB_WORDS)
        return Text(train, valid, test, _PTB_VOCABULARY)
    source = SOURCES[spec.task]
    _, held_out, height, width = source.shape
    images = torch.zeros(1, source.channels, height, width, dtype=torch.uint8).expand(source.train_images, -1, -1, -1)
    labels = torch.zeros(source.train_images, dtype=torch.long)
    return Images((images, labels), (images[:held_out], labels[:held_out]))
