"""The same call on models that are not in the lab, and on two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabound import AdaBound
from dynabound.tuning import suggest
from helpers import distributed_suggest, worker

Case = tuple[nn.Module, Callable[[Any, Any], Tensor], list[Any]]


class Transformer(nn.Module):
    """One encoder layer; the output layer is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.linear = nn.Linear(32, 16, bias=False)
        self.linear.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.linear(self.encoder(self.embedding(words)))
        return out


def transformer() -> Case:
    """Predict the word before each word."""
    words = torch.randint(16, (60, 16, 12))
    return Transformer(), lambda model, x: F.cross_entropy(model(x).flatten(0, 1), x.roll(1, 1).flatten()), list(words)


def convolutions() -> Case:
    """Predict the brightest quarter of an image."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 4),
    )  # fmt: skip
    x = torch.randn(60, 32, 1, 8, 8)
    y = F.avg_pool2d(x.flatten(0, 1), 4).flatten(1).argmax(1).view(60, 32)
    return model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), list(zip(x, y, strict=True))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 32, batch_first=True)
        self.linear = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.lstm(x)[0][:, -1])
        return out


def lstm() -> Case:
    """Add up a sequence: the loss needs no labels."""
    x = torch.randn(60, 32, 10, 4)
    return Recurrent(), lambda model, batch: (model(batch) - batch.mean((1, 2))[:, None] * 3).square().mean(), list(x)


def trained(case: Callable[[], Case], seed: int, steps: int, suggested: bool) -> float:
    """The mean loss of the last tenth of a run, suggested or at the defaults."""
    torch.manual_seed(seed)
    model, loss, batches = case()
    options: dict[str, Any] = suggest(model, loss, batches, steps).options if suggested else {}
    optimizer = AdaBound(model.parameters(), **options)
    losses = []
    for step in range(steps):
        value = loss(model, batches[step % len(batches)])
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        losses.append(value.item())
    return sum(losses[-steps // 10 :]) / (steps // 10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(lr|final_lr). the best rate")
@pytest.mark.parametrize("case", [transformer, convolutions, lstm])
def test_suggested_rates_beat_the_defaults(case: Callable[[], Case]) -> None:
    """AdaBound's defaults are made for 200 epochs of CIFAR-10; here are 240 steps."""
    ours, defaults = (trained(case, 0, 240, suggested) for suggested in (True, False))
    assert ours < defaults  # false for NaN


@pytest.mark.processes
def test_two_processes_get_the_same_answer(tmp_path: Path) -> None:
    assert worker.in_ranks(2, distributed_suggest.write_answer, str(tmp_path)) == [0, 0]
    answers = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    assert answers[0] == answers[1]
