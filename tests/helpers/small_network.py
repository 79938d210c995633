"""A small network, its training, and a checkpoint written and read again."""

import io
import warnings

import torch
from torch import nn


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def train(model, optimizer, steps, seed, scheduler=None):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the authors' package calls signatures that torch has deprecated
            optimizer.step()
            if scheduler:
                scheduler.step()


def through_disk(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
