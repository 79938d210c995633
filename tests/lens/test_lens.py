"""The lens as an object: what it accepts, calls, pickles and resumes."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn, optim

from dynabound import AdaBound
from dynabound.lens import LearningRateLens, history
from helpers.lens_training import make_model, train


class Wrapped(torch.optim.Optimizer):
    """A wrapper as Accelerate's: the state is inside, and step() calls the inner one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_wrapped_optimizers_and_models_are_unwrapped():
    model = make_model()
    fabric = nn.Module()
    fabric._forward_module = model
    optimizer = Wrapped(AdaBound(model.parameters()))
    with LearningRateLens(optimizer, fabric, every=1) as lens:
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
    assert (lens.optimizer_name, lens.steps) == ("AdaBound", [1])
    assert list(lens.shapes) == [name for name, _ in model.named_parameters()]


def test_on_look_gets_every_snapshot():
    seen = []
    model = make_model()
    model[0].bias.requires_grad_(False)
    optimizer = AdaBound(model.parameters())
    lens = LearningRateLens(optimizer, model, every=3, on_look=lambda step, record: seen.append((step, record)))
    train(model, optimizer, 5, lens)
    assert [step for step, _ in seen] == lens.steps == [1, 4, 5]
    assert seen[-1][1] == {name: row for name, row in lens.latest().items() if row is not None}
    assert list(seen[0][1]) == ["0.weight", "3.weight", "3.bias"]


def test_a_detached_lens_can_be_pickled_and_an_attached_one_says_why_not():
    model = make_model()
    optimizer = AdaBound(model.parameters())
    lens = LearningRateLens(optimizer, model, every=1, on_look=lambda step, record: None)
    train(model, optimizer, 3, lens)
    for again in (pickle.loads(pickle.dumps(lens)), copy.deepcopy(lens)):
        assert again.records() == lens.records()
        again.detach()
        with pytest.raises(RuntimeError, match="the lens was unpickled: make a new lens"):
            again.attach()
    lens.attach()
    with pytest.raises(TypeError, match=r"attached cannot be pickled or copied: call detach\(\) first"):
        pickle.dumps(lens)


@pytest.mark.parametrize("cls", [optim.SGD, AdaBound])
def test_a_resumed_record_is_that_of_an_uninterrupted_run(cls, monkeypatch):
    monkeypatch.setattr(history, "LIMIT", 6)  # so that snapshots were dropped before the interruption

    def run(interrupt_after):
        model = make_model()
        optimizer = cls(model.parameters(), lr=0.01)
        lens = LearningRateLens(optimizer, model, every=2, sample=5, quantiles=(0.1,)).attach()
        train(model, optimizer, interrupt_after)
        if interrupt_after == 18:
            lens.detach()  # which takes a snapshot
        saved, random = (model.state_dict(), optimizer.state_dict(), lens.state_dict()), torch.get_rng_state()
        model = make_model(seed=1)
        optimizer = cls(model.parameters(), lr=7.0)
        resumed = LearningRateLens(optimizer, model, every=7, sample=5)
        for part, state in zip((model, optimizer, resumed), saved, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(random)
        train(model, optimizer, 27 - interrupt_after, resumed)
        return resumed

    assert run(17).records() == run(0).records() == run(18).records()
    assert run(17).steps == [1, 9, 17, 25, 27]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(every=0), ValueError, r"every=0: must be an integer >= 1"),
        (dict(every=math.inf), ValueError, r"every=inf"),
        (dict(every="2"), TypeError, r"every='2'"),
        (dict(every=1.5), ValueError, r"every=1.5: must be an integer >= 1"),
        (dict(every=True), TypeError, r"every=True"),
        (dict(sample=0), ValueError, r"sample=0: must be an integer >= 1"),
        (dict(extremes=(1e3, 1e-2)), ValueError, r"extremes=\(1000.0, 0.01\): .* 0 <= low < high"),
        (dict(extremes=(-1, 1)), ValueError, r"extremes=\(-1, 1\)"),
        (dict(extremes=(1, 2, 3)), ValueError, r"extremes=\(1, 2, 3\)"),
        (dict(extremes=(math.nan, 1)), ValueError, r"extremes=\(nan, 1\)"),
        (dict(extremes=0.1), TypeError, r"extremes=0.1: must be two numbers"),
        (dict(quantiles=(0.1, 1.0)), ValueError, r"quantiles=\(0.1, 1.0\): must be numbers between 0 and 1"),
        (dict(quantiles="ab"), TypeError, r"quantiles='ab'"),
        (dict(seed="a"), TypeError, r"seed='a': must be an integer"),
        (dict(seed=0.5), ValueError, r"seed=0.5: must be an integer"),
        (dict(seed=2**64), ValueError, r"seed=18446744073709551616: must be an integer"),
        (dict(on_look=3), TypeError, r"on_look=3: must be a callable \(step, record\)"),
    ],
)
def test_bad_arguments(options, error, message):
    model = make_model()
    with pytest.raises(error, match=message):
        LearningRateLens(optim.Adam(model.parameters()), model, **options)


def test_an_unknown_optimizer_is_refused_at_once():
    model = make_model()
    with pytest.raises(TypeError, match=r"LBFGS.*register"):
        LearningRateLens(torch.optim.LBFGS(model.parameters()), model)
