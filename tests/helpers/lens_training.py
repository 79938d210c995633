"""A small model and a training loop for the lens."""

import contextlib

import torch
from torch import nn


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def train(model, optimizer, steps, lens=None, scheduler=None):
    """Train for ``steps`` steps on random data, with dropout from the global generator; return the losses."""
    losses = []
    with lens or contextlib.nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6)).square().sum()
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
    return losses
