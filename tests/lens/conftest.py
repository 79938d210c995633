"""A lens that has seen everything that a record can hold."""

import math

import pytest
import torch

from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from helpers.lens_training import make_model, train


@pytest.fixture
def lens():
    """Five snapshots of AdaBound, with clipped and free rates, a frozen parameter, and a NaN in the last one."""
    model = make_model()
    model[0].bias.requires_grad_(False)
    optimizer = AdaBound(model.parameters(), gamma=0.1)
    lens = LearningRateLens(optimizer, model, every=2)
    with lens:
        train(model, optimizer, 8)
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        model[3].weight.grad[0, 0] = math.nan
        optimizer.step()
    return lens
