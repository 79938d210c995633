"""Races: short trainings of one model from the same weights on the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from dynabound.optim import AdaBound
from dynabound.tuning.snapshot import Snapshot

__all__ = ["Racer", "SuggestError", "param_groups"]

_RATES = ("lr", "final_lr", "gamma", "bounds")


class SuggestError(RuntimeError):
    """No learning rate can be suggested for this model, loss and data."""


@dataclass
class Racer:
    """Trains the model for a few steps at a time, and counts them."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    groups: Sequence[Mapping[str, Any]]
    snapshot: Snapshot
    options: Mapping[str, Any]
    clip: float | None
    reset: Callable[[], object] | None
    seed: int
    progress: Callable[[int, int], object] | None
    budget: int
    cost: int = 0

    def untrained(self, batches: Iterable[Any]) -> list[float]:
        """The losses of the untrained model; SuggestError if there is one that is not finite."""
        self._begin()
        losses = [_mean(self._loss(batch)) for batch in batches]
        for number, value in enumerate(losses, 1):
            if not math.isfinite(value):
                raise SuggestError(f"loss={value} before training, on batch {number}: must be finite")
        return losses

    def race(self, batches: Iterable[Any], **rates: Any) -> tuple[list[float], AdaBound]:
        """The loss of each step, up to the first that is not finite, and the optimizer afterwards."""
        self._begin()
        optimizer = AdaBound([dict(group) for group in self.groups], **rates, **self.options)
        losses: list[float] = []
        for batch in batches:
            losses.append(self._step(batch, optimizer))
            if not math.isfinite(losses[-1]):
                break
        if not math.isfinite(losses[0]):
            raise SuggestError(
                f"loss={losses[0]} on the first batch, where it was finite before: loss() carries on a state that an "
                "earlier race spoilt; pass reset=, a function that clears it"
            )
        return losses, optimizer

    def _begin(self) -> None:
        self.snapshot.rewind()
        if self.reset is not None:
            self.reset()
        rank = dist.get_rank() if _distributed() else 0
        torch.manual_seed(self.seed + rank)  # the same dropout in each race, but not on each rank

    def _loss(self, batch: Any) -> Tensor:
        with torch.enable_grad():
            value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss(model, batch) returned {shape}: must be a tensor with one element")
        return value

    def _step(self, batch: Any, optimizer: AdaBound) -> float:
        self.snapshot.drop_gradients()
        params = [param for group in optimizer.param_groups for param in group["params"]]
        value = self._loss(batch)
        if not value.requires_grad:
            raise SuggestError("loss(model, batch) does not depend on the parameters: it requires no gradient")
        torch.autograd.backward(value)
        if self.cost == 0 and not any([param.grad is not None and bool((param.grad != 0).any()) for param in params]):
            raise SuggestError("loss(model, batch) does not depend on params: all of their gradients are missing or 0")
        if self.clip is not None:
            nn.utils.clip_grad_norm_(params, self.clip)
        optimizer.step()
        self.cost += 1
        if self.progress is not None:
            self.progress(self.cost, self.budget)
        return _mean(value)


def param_groups(model: nn.Module, params: Iterable[Any] | None) -> list[dict[str, Any]]:
    """The param groups, without rates, that each race makes an optimizer of; ValueError where they set a rate."""
    if params is None:
        params = [param for param in model.parameters() if param.requires_grad]
    chosen: list[Any] = list(params)
    if not chosen:
        raise ValueError("params: must hold at least one parameter that requires a gradient")
    if not isinstance(chosen[0], dict):
        chosen = [{"params": chosen}]
    for group in chosen:
        for name in _RATES:
            if name in group:
                raise ValueError(f"params: a group sets {name}={group[name]!r}; leave it out, all groups share one")
    # torch accepts single tensors, iterators and named parameters; its optimizer tells what they mean.
    plain = AdaBound([dict(group) for group in chosen]).param_groups
    return [{**group, "params": list(made["params"])} for group, made in zip(chosen, plain, strict=True)]


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _mean(loss: Tensor) -> float:
    """The loss, or its mean over all ranks, so that they decide alike."""
    value = loss.detach().double() if loss.device.type != "mps" else loss.detach().float()
    if _distributed():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value.item())
