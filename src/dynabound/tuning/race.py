"""Races in torch: short trainings of one model from the same weights on the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from dynabound.optim import AdaBound
from dynabound.tuning.recipes import final_lr_from_adam
from dynabound.tuning.search import ProgressCallback, Racer, RaceRates, SuggestError
from dynabound.tuning.snapshot import Snapshot

__all__ = ["TorchRacer", "param_groups"]

_ADAM = ("constant", 0.0, math.inf)  # with these bounds AdaBound is Adam
_RATES = ("lr", "final_lr", "gamma", "bounds")


class TorchRacer(Racer):
    """Trains a torch module, which a ``snapshot`` restores."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        groups: Sequence[Mapping[str, Any]],
        snapshot: Snapshot,
        options: Mapping[str, Any],
        clip: float | None,
        reset: Callable[[], object] | None,
        seed: int,
        progress: ProgressCallback | None,
        most: int,
    ) -> None:
        super().__init__(progress, most)
        self.model, self.loss, self.groups, self.snapshot = model, loss, groups, snapshot
        self.options, self.clip, self.reset, self.seed = options, clip, reset, seed
        self.optimizer: AdaBound | None = None

    def start(self, rates: RaceRates | None) -> None:
        """Restore the weights and make a new optimizer; without rates, none."""
        self.snapshot.rewind()
        if self.reset is not None:
            self.reset()
        rank = dist.get_rank() if _distributed() else 0
        self.snapshot.seed(self.seed + rank)  # the same dropout in each race, but not on each rank
        self.optimizer = None
        if rates is not None:
            settings = rates._asdict() if rates.gamma else {"lr": rates.lr, "bounds": _ADAM}
            self.optimizer = AdaBound([dict(group) for group in self.groups], **settings, **self.options)

    def race(self, batches: Iterable[Any], rates: RaceRates) -> list[float]:
        """The loss of each step, up to the first that is not finite."""
        losses = super().race(batches, rates)
        if not math.isfinite(losses[0]):
            raise SuggestError(
                f"loss={losses[0]} on the first batch, where it was finite before: loss() keeps state from an "
                "earlier race; pass reset=, a function that clears it"
            )
        return losses

    def step(self, batch: Any) -> float:
        """Train on a batch; return the loss before the update."""
        self.snapshot.drop_gradients()
        with torch.enable_grad():
            value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss(model, batch) returned {shape}: must be a tensor with one element")
        if self.optimizer is not None:
            self._update(self.optimizer, value)
        return _mean(value)

    def _update(self, optimizer: AdaBound, value: Tensor) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if not value.requires_grad:
            raise SuggestError("loss(model, batch) does not depend on the parameters: it requires no gradient")
        torch.autograd.backward(value)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(params, self.clip)
        optimizer.step()  # before gradients are compared: it refuses sparse ones, with a remedy
        if self.cost == 0 and not any([param.grad is not None and bool((param.grad != 0).any()) for param in params]):
            raise SuggestError("loss(model, batch) does not depend on params: all of their gradients are missing or 0")

    def first_guess(self) -> float:
        """``final_lr`` from the second moments of the last race, which was one of Adam."""
        assert self.optimizer is not None
        return final_lr_from_adam(self.optimizer)


def param_groups(model: nn.Module, params: Iterable[Any] | None) -> list[dict[str, Any]]:
    """The param groups, without rates, for the optimizer of each race; ValueError if a group sets a rate."""
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
    # torch accepts single tensors, iterators and named parameters; its optimizer resolves them.
    plain = AdaBound([dict(group) for group in chosen]).param_groups
    return [{**group, "params": list(made["params"])} for group, made in zip(chosen, plain, strict=True)]


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _mean(loss: Tensor) -> float:
    """The loss, averaged over all ranks, so that they make the same decisions."""
    value = loss.detach().double() if loss.device.type != "mps" else loss.detach().float()
    if _distributed():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value.item())
