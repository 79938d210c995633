"""What a set of runs would cost: operations counted, and a step measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from dynabound.lab.data import SOURCES, Data, Images, Text, load
from dynabound.lab.loop import Training
from dynabound.lab.spec import DEFAULT, RunSpec

__all__ = ["GPU_FLOPS", "Cost", "estimate"]

GPU_FLOPS = 10e12
"""Operations per second that a data-centre GPU is assumed to sustain on these networks."""
_PTB_WORDS, _PTB_VOCABULARY = 929_589, 10_000
_IMAGES = 16  # are measured, and taken for a part of a batch: a whole one of a wide network takes a CPU minutes


@dataclass(frozen=True)
class Cost:
    """The cost of all runs of one kind."""

    workload: str
    runs: int
    steps: int
    """In all runs together."""
    flops: float
    """In all runs together; an evaluation counts as a third of a training step."""
    seconds: float
    """On this machine, one run at a time."""

    @property
    def gpu_hours(self) -> float:
        """At :data:`GPU_FLOPS`."""
        return self.flops / GPU_FLOPS / 3600


def estimate(specs: Iterable[RunSpec], tell: Callable[[str], None] = lambda _: None) -> list[Cost]:
    """The cost of ``specs``, from one measured step of each workload. The data sets themselves are not needed."""
    kinds: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        kind = replace(spec, optimizer="adam", lr=DEFAULT, opt={}, seed=0, epochs=1, decay_after=None, rates=False)
        kinds.setdefault(kind, []).append(spec)
    costs = []
    for kind, runs in kinds.items():
        name = f"{kind.task} {kind.model}" + (f"-{kind.layers}" if kind.layers else "")
        tell(name)
        per_epoch, flops, seconds = _measure(kind)
        steps = per_epoch * sum(spec.epochs for spec in runs)
        costs.append(Cost(name, len(runs), steps, steps * flops, steps * seconds))
    return costs


def _measure(spec: RunSpec) -> tuple[int, float, float]:
    """Steps of an epoch, operations and seconds of a step, each with its share of the evaluation."""
    data = _stand_in(spec)
    batch = int(spec.batch_size or 1)
    small = batch if spec.text else min(batch, _IMAGES)
    with torch.random.fork_rng([]):
        training = Training(replace(spec, batch_size=small), data, torch.device("cpu"))
        batches = training.train_epoch()
        next(batches)  # the first is slower
        started = time.perf_counter()
        next(batches)
        seconds = (time.perf_counter() - started) * batch / small
    train, test = (data.train, data.test) if isinstance(data, Text) else (data.train[0], data.test[0])
    evaluated = 1 + len(test) / min(len(train), spec.examples or len(train)) / 3
    steps = math.ceil(training.batches.steps * small / batch)
    return steps, evaluated * batch * _flops(training, data), evaluated * seconds


def _stand_in(spec: RunSpec) -> Data:
    """Data of the right size and no meaning."""
    if spec.task not in SOURCES:
        return load(spec.task)
    if spec.text:
        words = torch.randint(_PTB_VOCABULARY, (_PTB_WORDS,))
        return Text(words, words[:73_760], words[:82_430], _PTB_VOCABULARY)
    train, test, height, width = SOURCES[spec.task].shape
    channels = 3 if spec.task == "cifar10" else 1
    number = train * (5 if spec.task == "cifar10" else 1)
    images = torch.zeros(1, channels, height, width, dtype=torch.uint8).expand(number, -1, -1, -1)
    labels = torch.zeros(number, dtype=torch.long)
    return Images((images, labels), (images[:test], labels[:test]))


def _flops(training: Training, data: Data) -> float:
    """Operations of a step per image, or per row of words: forward, and twice as many backward."""
    from torch.utils.flop_counter import FlopCounterMode

    spec = training.spec
    if isinstance(data, Text):  # torch does not count inside of an LSTM
        hidden, layers, words = spec.hidden or 0, spec.layers or 0, spec.bptt or 0
        return 3.0 * 2 * words * (8 * layers * hidden**2 + hidden * data.vocabulary)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        training.model.eval()(torch.zeros(1, *data.train[0].shape[1:]))
    return 3.0 * float(counter.get_total_flops())
