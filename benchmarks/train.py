"""How much train() adds to a bare hand-written loop, and what share of a step the input pipeline takes.

    python benchmarks/train.py [--data-dir DIR] [--threads N]

Ratios, each from the best of several interleaved rounds, because the machine may have other things to do. With
``--data-dir`` the perceptron is trained on MNIST and the pipeline is measured on CIFAR-10; without, on stand-ins of
the same shapes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dynabound import AdaBound
from dynabound.lab import train
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import datasets, models
from dynabound.lab.tasks.datasets import Data, Images, load
from dynabound.lab.training.batches import make_batches
from dynabound.lab.training.loop import Training

CPU = torch.device("cpu")


def stand_in(task: str) -> Data:
    """Noise in the shape of a data set."""
    number, size = (60_000, (1, 28, 28)) if task == "mnist" else (10_000, (3, 32, 32))
    x, y = torch.randint(256, (number, *size), dtype=torch.uint8), torch.randint(10, (number,))
    return Images((x, y), (x[:10_000], y[:10_000]), augment=task == "cifar10")


def best(rounds: int, *candidates: Callable[[], float]) -> list[float]:
    """The shortest time of each candidate, in seconds; each round runs all of them once."""
    results = [[candidate() for candidate in candidates] for _ in range(rounds)]
    return [min(column) for column in zip(*results, strict=True)]


def bare(spec: RunSpec, data: Images) -> float:
    """Seconds of a loop that only trains and tests: no metrics but the loss, no checkpoints, no way to stop it."""
    model = models.build(spec.model, spec.to_dict(), data)
    optimizer = AdaBound(model.parameters(), lr=1e-3)

    def prepare(x: Tensor) -> Tensor:
        return (x.float() - 33.3) / 78.6

    (x, y), (test_x, test_y) = data.train, data.test
    x, test_x = prepare(x), prepare(test_x)
    start = time.perf_counter()
    for _ in range(spec.epochs):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(y)).split(spec.batch_size):
            loss = F.cross_entropy(model(x.index_select(0, chosen)), y.index_select(0, chosen))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            chunks = zip(test_x.split(500), test_y.split(500), strict=True)
            correct = sum((model(a).argmax(1) == b).sum().item() for a, b in chunks)
        assert correct > 0
    return time.perf_counter() - start


def ours(spec: RunSpec) -> float:
    """Seconds that the epochs of train() take, evaluation, metrics and files included."""
    started: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train_once = Training.train_epoch

        def timed(self):
            started.append(time.perf_counter())
            return train_once(self)

        Training.train_epoch = timed
        try:
            train(spec, Store(folder), progress=lambda _: None)
        finally:
            Training.train_epoch = train_once
        return time.perf_counter() - started[0]


def loop_overhead(data: Data, rounds: int) -> None:
    """Print train() over the bare loop, for the smallest model of the paper: the worst case."""
    spec = RunSpec("mnist", epochs=4)
    datasets.load = lambda *_: data
    hand, full = best(rounds, lambda: bare(spec, data), lambda: ours(spec))
    print(
        f"perceptron, MNIST, batch 128, four epochs: bare loop {hand:.2f} s, train() {full:.2f} s: {full / hand:.3f} ×"
    )


def pipeline_share(data: Images, width: float, steps: int, rounds: int) -> None:
    """Print the input pipeline's share of a ResNet-34 step, and the images per second of training."""
    spec = RunSpec("cifar10", width=width)
    run = Training(spec, data, CPU)
    batches = make_batches(data, spec, CPU)

    def read() -> float:
        iterator = batches.epoch(1)
        next(iterator)  # draws the epoch's order
        start = time.perf_counter()
        for _ in range(steps):
            next(iterator)
        return (time.perf_counter() - start) / steps

    def learn() -> float:
        run.index = 0
        epoch = run.train_epoch()
        next(epoch)
        start = time.perf_counter()
        for _ in range(steps):
            next(epoch)
        return (time.perf_counter() - start) / steps

    pipeline, step = best(rounds, read, learn)
    print(
        f"ResNet-34, width {width:g}, batch 128: step {step * 1e3:.0f} ms, {128 / step:.0f} images/s; "
        f"input pipeline {pipeline * 1e3:.2f} ms: {pipeline / step:.2%}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    sets = {}
    for task in ("mnist", "cifar10"):
        found = arguments.data_dir and datasets.locate(task, arguments.data_dir)
        sets[task] = load(task, arguments.data_dir) if found else stand_in(task)
    loop_overhead(sets["mnist"], arguments.rounds)
    pipeline_share(sets["cifar10"], 1 / 8, steps=5, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
