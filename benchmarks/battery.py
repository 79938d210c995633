"""How good is dynabound.suggest on models that it was not designed on? Eight small tasks, grids, regret and ranks.

    python benchmarks/battery.py [--seeds 3] [--only NAME ...] [--json FILE]

A task is a model of 300 to 7,000 parameters, a loss, and a number of steps. Its result is L, the mean training loss of
the last tenth of the steps. Adam and SGDM get the best learning rate of a grid (half-decades, in hindsight, by the mean
over seeds; from 0.01 and 0.1 on upwards and downwards, until L rises). The regret of a method is 100·log((L + f) /
(L_best + f)), where L_best is that of the better grid and f is 1 % of the untrained loss. Grids are kept in --json
FILE: run it again to compare another rule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import dynabound
from dynabound.tuning.decide import explore

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class Task:
    """A model, its loss and its data; the data depend on the seed of the order only."""

    steps: int
    build: Callable[[], nn.Module]
    loss: Loss
    data: Callable[[], Batch]
    batch_size: int = 32

    def batches(self, seed: int) -> Iterator[Batch]:
        """Random batches, without end."""
        x, y = self.data()
        order = torch.Generator().manual_seed(seed)
        while True:
            chosen = torch.randint(len(x), (self.batch_size,), generator=order)
            yield x[chosen], y[chosen]


@cache
def digits() -> Batch:
    """Handwritten digits, 8×8."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(y)


@cache
def noisy_digits() -> Batch:
    """Handwritten digits with noise."""
    x, y = digits()
    return x + 0.3 * _gaussian(*x.shape, seed=9), y


@cache
def characters() -> Batch:
    """Windows of 17 characters of Python's documentation, and the next characters."""
    text = "".join(topics.topics[key] for key in sorted(topics.topics)).lower()[:100_000]
    letters = string.ascii_lowercase + " .,\n"
    codes = torch.tensor([letters.find(letter) + 1 for letter in text])
    windows = codes.unfold(0, 17, 7)
    return windows[:, :-1], windows[:, 1:]


def _gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@cache
def ratings() -> Batch:
    """A noisy matrix of rank 4, entry by entry."""
    rows, columns = torch.meshgrid(torch.arange(150), torch.arange(100), indexing="ij")
    values = (_gaussian(150, 4, seed=1) @ _gaussian(4, 100, seed=2)) / 2 + 1 + 0.3 * _gaussian(150, 100, seed=3)
    return torch.stack([rows.flatten(), columns.flatten()], 1), values.flatten()


@cache
def sparse() -> Batch:
    """2,000 rows of 300 features, of which each row has about 15; a linear rule with noise decides the label."""
    x = (torch.rand(2000, 300, generator=torch.Generator().manual_seed(4)) < 0.05).float()
    return x, (x @ _gaussian(300, seed=5) + _gaussian(2000, seed=6) > 0).float()


@cache
def linear() -> Batch:
    """A linear map of 16 numbers."""
    x = _gaussian(1000, 16, seed=7) * torch.logspace(0, -1, 16)
    return x, x @ (_gaussian(16, 16, seed=8) / 4) + 0.12 * _gaussian(1000, 16, seed=10)


@cache
def picture() -> Batch:
    """A smooth picture: brightness at every point of a 64×64 grid."""
    x = torch.cartesian_prod(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64))
    clean = torch.sin(8 * x[:, :1] + 3 * x[:, 1:]) * torch.cos(6 * x[:, 1:] ** 2)
    return x, clean / 2 + 0.04 * _gaussian(4096, 1, seed=11)


class CharGRU(nn.Module):
    """A language model of characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(31, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 31)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(x))[0]).transpose(1, 2)


class ViT(nn.Module):
    """A transformer over 16 patches of 2×2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Linear(4, 24), nn.Parameter(torch.zeros(16, 24))
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4)
        return self.head(self.body(self.patch(patches) + self.place).mean(1))


class Factors(nn.Module):
    """A matrix as a product of two, with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(150, 5), nn.Embedding(100, 5)
        self.mean = nn.Parameter(torch.zeros(()))
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.rows(x[:, 0]) * self.columns(x[:, 1])).sum(1) + self.mean


class Sine(nn.Module):
    """A layer of sines: SIREN's."""

    def __init__(self, inputs: int, outputs: int, omega: float) -> None:
        super().__init__()
        self.linear, self.omega = nn.Linear(inputs, outputs), omega
        bound = 1 / inputs if inputs == 2 else math.sqrt(6 / inputs) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * self.linear(x))


def cnn() -> nn.Module:
    """Convolutions without normalisation."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 8, 12, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(64, 10))


def autoencoder() -> nn.Module:
    """64 pixels through 5 numbers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 5), nn.Linear(5, 40), nn.Tanh(),
                         nn.Linear(40, 64), nn.Sigmoid())  # fmt: skip


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy."""
    return cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error."""
    return mse_loss(model(batch[0]), batch[1])


TASKS: dict[str, Task] = {
    "GRU, characters": Task(800, CharGRU, classify, characters, 16),
    "small ViT, digits": Task(400, ViT, classify, noisy_digits),
    "CNN without normalisation": Task(1000, cnn, classify, noisy_digits),
    "autoencoder": Task(2000, autoencoder, lambda model, batch: mse_loss(model(batch[0]), batch[0].flatten(1)), digits),
    "matrix factorisation": Task(1500, Factors, regress, ratings, 256),
    "sparse logistic regression": Task(
        300,
        lambda: nn.Linear(300, 1),
        lambda model, batch: binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1]),
        sparse,
    ),
    "deep linear network": Task(
        300, lambda: nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4))), regress, linear
    ),
    "SIREN": Task(
        1500,
        lambda: nn.Sequential(Sine(2, 32, 15.0), Sine(32, 32, 15.0), Sine(32, 32, 15.0), nn.Linear(32, 1)),
        regress,
        picture,
        128,
    ),
}


def model_of(task: Task, seed: int) -> nn.Module:
    """The untrained model."""
    torch.manual_seed(seed)
    return task.build()


def final_loss(task: Task, seed: int, optimizer: Callable[[Any], torch.optim.Optimizer]) -> float:
    """The mean loss of the last tenth of the steps; infinity if the loss is not finite."""
    model, batches = model_of(task, seed), task.batches(seed)
    stepper, losses = optimizer(model.parameters()), []
    for batch in itertools.islice(batches, task.steps):
        stepper.zero_grad()
        loss = task.loss(model, batch)
        if not math.isfinite(loss.item()):
            return math.inf
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return statistics.mean(losses[-max(1, task.steps // 10) :])


def untrained_loss(task: Task, seed: int) -> float:
    """The mean loss of the untrained model over 20 batches."""
    model = model_of(task, seed)
    with torch.no_grad():
        return statistics.mean(task.loss(model, batch).item() for batch in itertools.islice(task.batches(seed), 20))


def suggested(task: Task, seed: int) -> tuple[float, dict[str, float]]:
    """The result of AdaBound with suggested numbers, and the numbers."""
    batches = list(itertools.islice(task.batches(seed + 1000), 200))
    found = dynabound.suggest(model_of(task, seed), task.loss, batches, task.steps)
    loss = final_loss(task, seed, lambda params: dynabound.AdaBound(params, **found.options))
    return loss, dict(lr=found.lr, final_lr=found.final_lr, gamma=found.gamma, cost=found.cost)


def grid(task: Task, seeds: range) -> dict[str, Any]:
    """What does not depend on the rule: the grids, Adam at 0.001, AdaBound's defaults and the untrained loss."""

    def mean(optimizer: Callable[[Any], torch.optim.Optimizer]) -> float:
        return statistics.mean(final_loss(task, seed, optimizer) for seed in seeds)

    def best(optimizer: Callable[[Any, float], torch.optim.Optimizer], first: float) -> dict[float, float]:
        return explore(lambda rate: mean(lambda params: optimizer(params, rate)), first, start=math.inf, most=12)

    adam = best(torch.optim.Adam, 0.01)
    sgdm = best(lambda params, rate: torch.optim.SGD(params, rate, 0.9), 0.1)
    return {
        "start": statistics.mean(untrained_loss(task, seed) for seed in seeds),
        "Adam 1e-3": mean(lambda params: torch.optim.Adam(params, 1e-3)),
        "best Adam": min(adam.values()),
        "best SGDM": min(sgdm.values()),
        "AdaBound default": mean(dynabound.AdaBound),
        "rates": [min(adam, key=adam.__getitem__), min(sgdm, key=sgdm.__getitem__)],
    }


METHODS = ("Adam 1e-3", "best Adam", "best SGDM", "AdaBound default", "suggested")


def regret(row: dict[str, Any], method: str) -> float:
    """In percent, against the better grid."""
    floor, best = 0.01 * row["start"], min(row["best Adam"], row["best SGDM"])
    return 100 * math.log((row[method] + floor) / (best + floor))


def ranks(row: dict[str, Any]) -> dict[str, int]:
    """Rank of each method, 1 is the best."""
    return {method: 1 + sum(row[other] < row[method] for other in METHODS) for method in METHODS}


def main() -> None:
    """Print a row per task, then medians and mean ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    rows = {}
    headings = ["task", "steps", "best Adam", "best SGDM", "Adam 1e-3", "AdaBound default", "suggested (lr / final_lr)",
                "regret", "cost"]  # fmt: skip
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for name in options.only:
        task = TASKS[name]
        if name not in known:
            known[name] = grid(task, seeds)
            if options.json:
                options.json.write_text(json.dumps(known, indent=1))
        found = [suggested(task, seed) for seed in seeds]
        row = rows[name] = {**known[name], "suggested": statistics.mean(loss for loss, _ in found)}
        rates, first = row["rates"], found[0][1]
        row["cost"] = max(numbers["cost"] for _, numbers in found)
        print(
            f"| {name} | {task.steps} | {rates[0]:.2g}: {row['best Adam']:.4g} "
            f"| {rates[1]:.2g}: {row['best SGDM']:.4g} | {row['Adam 1e-3']:.4g} "
            f"| {row['AdaBound default']:.4g} | {row['suggested']:.4g} "
            f"({first['lr']:.2g} / {first['final_lr']:.2g}) | {regret(row, 'suggested'):+.1f} | {row['cost']} |",
            flush=True,
        )
    regrets = [regret(row, "suggested") for row in rows.values()]
    mean_ranks = {method: statistics.mean(ranks(row)[method] for row in rows.values()) for method in METHODS}
    print(f"\nsuggested: median regret {statistics.median(regrets):+.1f} %, worst {max(regrets):+.1f} %; mean ranks:")
    print(", ".join(f"{method} {rank:.2f}" for method, rank in mean_ranks.items()))


if __name__ == "__main__":
    main()
