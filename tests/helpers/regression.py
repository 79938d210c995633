"""A small regression with batch normalisation and dropout, in batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def regression(seed: int = 0, number: int = 40) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    weight = torch.randn(10, 1)
    return model, [(x, (x @ weight).tanh()) for x in torch.randn(number, 32, 10)]


def examples(batches: list[tuple[Tensor, Tensor]]) -> Any:
    return [example for x, y in batches for example in zip(x, y, strict=True)]


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])
