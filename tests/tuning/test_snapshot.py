"""suggest leaves the model and the random states exactly as they were, whatever happens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynabound.tuning import suggest
from dynabound.tuning.snapshot import Snapshot
from helpers.regression import examples, mse, regression


def state(model: nn.Module) -> list[Any]:
    tensors = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    grads = [None if param.grad is None else param.grad.clone() for param in model.parameters()]
    flags = [param.requires_grad for param in model.parameters()] + [module.training for module in model.modules()]
    return [tensors, grads, flags, torch.get_rng_state(), random.getstate()]


def assert_same(model: nn.Module, before: list[Any]) -> None:
    tensors, grads, flags, generator, python = state(model)
    assert all(map(torch.equal, tensors, before[0]))
    for grad, old in zip(grads, before[1], strict=True):
        assert (grad is None and old is None) or torch.equal(grad, old)
    assert flags == before[2]
    assert torch.equal(generator, before[3])
    assert python == before[4]


def prepared() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A model in the middle of training: gradients, one frozen parameter, one layer in evaluation mode."""
    model, batches = regression()
    mse(model, batches[0]).backward()
    model[0].bias.requires_grad_(False)
    model[0].bias.grad = None
    model[1].eval()
    return model, batches


def test_the_model_is_left_exactly_as_it_was() -> None:
    model, batches = prepared()
    grads = [param.grad for param in model.parameters()]
    before = state(model)
    suggest(model, mse, batches, steps=100)
    assert_same(model, before)
    assert all(param.grad is grad for param, grad in zip(model.parameters(), grads, strict=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("call", [1, 30, 60])
def test_also_if_it_is_interrupted(error: type[BaseException], call: int) -> None:
    model, batches = prepared()
    before = state(model)
    calls = itertools.count(1)

    def interrupted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        random.random()
        if next(calls) == call:
            model.eval()
            for param in model.parameters():
                param.requires_grad_(False)
            raise error
        return mse(model, batch)

    with pytest.raises(error):
        suggest(model, interrupted, batches, steps=100)
    assert_same(model, before)


def test_what_the_loss_carries_is_cleared_after_the_last_trial() -> None:
    """Otherwise the run would start from the state of a trial."""
    model, batches = regression()
    carried: list[float] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        carried.append(1.0)
        return mse(model, batch)

    suggest(model, loss, batches, steps=100, reset=carried.clear)
    assert carried == []


def test_the_model_is_put_back_also_if_reset_fails() -> None:
    model, batches = prepared()
    before, calls = state(model), itertools.count()

    def reset() -> None:
        model.eval()
        if next(calls) > 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        suggest(model, mse, batches, steps=100, reset=reset)
    assert_same(model, before)


def test_devices_that_the_model_does_not_use_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.manual_seed`` would seed every accelerator, and their states would not be restored."""
    model, batches = regression()
    seeded: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    suggest(model, mse, batches, steps=100)
    assert seeded == []


def test_a_model_in_evaluation_mode_is_trained_and_put_back() -> None:
    model, batches = regression()
    model.eval()
    modes = set()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        modes.add(model.training)
        return mse(model, batch)

    suggest(model, loss, batches, steps=100)
    assert modes == {True}
    assert not any(module.training for module in model.modules())


def test_a_loader_s_own_generator_is_restored() -> None:
    model, batches = regression()
    generator = torch.Generator().manual_seed(3)
    loader: Any = torch.utils.data.DataLoader(examples(batches), 32, shuffle=True, generator=generator)
    before = loader.generator.get_state()
    suggest(model, mse, loader, steps=100)
    assert torch.equal(loader.generator.get_state(), before)
    suggest(model, mse, batches, steps=100, validation=loader)
    assert torch.equal(loader.generator.get_state(), before)


def test_validation_batches_of_any_iterable_draw_no_random_numbers_of_the_run() -> None:
    """Every iterator of a DataLoader draws from the global generator; that of an IterableDataset has no length."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(examples(batches))

    model, batches = prepared()
    before = state(model)
    for validation in (torch.utils.data.DataLoader(examples(batches), 256, shuffle=True),
                       torch.utils.data.DataLoader(Stream(), 256)):  # fmt: skip
        suggest(model, mse, batches, steps=100, validation=validation)
        assert_same(model, before)
    inputs = torch.stack([x for x, _ in batches])
    suggest(model, lambda model, x: model(x).square().mean(), inputs, steps=100, validation=inputs[:5])


def test_a_buffer_that_is_replaced_is_restored() -> None:
    class Counting(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.linear = nn.Linear(10, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1
            out: Tensor = self.linear(x)
            return out

    model = Counting()
    buffer = model.seen
    suggest(model, mse, regression()[1], steps=100)
    assert model.seen is buffer
    assert buffer.item() == 0


def test_only_one_copy_of_what_is_trained() -> None:
    """Frozen parameters are not copied: their storage would be the larger part of a fine-tuned model."""
    model, _ = regression()
    snapshot = Snapshot(model, [model[4].weight], None)
    copied = sum(copy.numel() for _, copy in snapshot._copies)
    assert copied == model[4].weight.numel() + sum(buffer.numel() for buffer in model.buffers())
