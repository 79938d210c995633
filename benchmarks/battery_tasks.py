"""The eight tasks of battery.py on which the rule of dynabound.suggest was chosen, and what a task is."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pydoc_data import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

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
    return x + 0.3 * gaussian(*x.shape, seed=9), y


@cache
def characters() -> Batch:
    """Windows of 17 characters of Python's documentation, and the next characters."""
    text = "".join(topics.topics[key] for key in sorted(topics.topics)).lower()[:100_000]
    letters = string.ascii_lowercase + " .,\n"
    codes = torch.tensor([letters.find(letter) + 1 for letter in text])
    windows = codes.unfold(0, 17, 7)
    return windows[:, :-1], windows[:, 1:]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """Normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@cache
def ratings() -> Batch:
    """A noisy matrix of rank 4, entry by entry."""
    rows, columns = torch.meshgrid(torch.arange(150), torch.arange(100), indexing="ij")
    values = (gaussian(150, 4, seed=1) @ gaussian(4, 100, seed=2)) / 2 + 1 + 0.3 * gaussian(150, 100, seed=3)
    return torch.stack([rows.flatten(), columns.flatten()], 1), values.flatten()


@cache
def sparse() -> Batch:
    """2,000 rows of 300 features, of which each row has about 15; a linear rule with noise decides the label."""
    x = (torch.rand(2000, 300, generator=torch.Generator().manual_seed(4)) < 0.05).float()
    return x, (x @ gaussian(300, seed=5) + gaussian(2000, seed=6) > 0).float()


@cache
def linear() -> Batch:
    """A linear map of 16 numbers."""
    x = gaussian(1000, 16, seed=7) * torch.logspace(0, -1, 16)
    return x, x @ (gaussian(16, 16, seed=8) / 4) + 0.12 * gaussian(1000, 16, seed=10)


@cache
def picture() -> Batch:
    """A smooth picture: brightness at every point of a 64×64 grid."""
    x = torch.cartesian_prod(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64))
    clean = torch.sin(8 * x[:, :1] + 3 * x[:, 1:]) * torch.cos(6 * x[:, 1:] ** 2)
    return x, clean / 2 + 0.04 * gaussian(4096, 1, seed=11)


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
