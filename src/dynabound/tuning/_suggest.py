"""``suggest`` for torch: short races with the user's model, which is restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, TypedDict, TypeVar

from torch import Tensor, nn
from typing_extensions import Unpack

from dynabound.tuning.race import TorchRacer, param_groups
from dynabound.tuning.search import check, search
from dynabound.tuning.snapshot import Snapshot
from dynabound.tuning.suggestion import Suggestion

__all__ = ["Options", "Settings", "suggest"]

Model = TypeVar("Model", bound=nn.Module)


class Options(TypedDict, total=False):
    """The optimizer's arguments that the races and the training share."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsbound: bool
    decoupled_weight_decay: bool


class Settings(Options, total=False):
    """All keyword arguments of :func:`suggest`, for functions that pass them on."""

    params: Iterable[Any] | None
    clip: float | None
    reset: Callable[[], object] | None
    budget: int | None
    repeats: int
    seed: int
    progress: Callable[[int, int], object] | None


def suggest(
    model: Model,
    loss: Callable[[Model, Any], Tensor],
    batches: Iterable[Any],
    steps: int,
    *,
    params: Iterable[Any] | None = None,
    clip: float | None = None,
    reset: Callable[[], object] | None = None,
    budget: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
    **options: Unpack[Options],
) -> Suggestion:
    """Find ``lr``, ``final_lr`` and ``gamma`` of AdaBound for this model by short races, before training.

    First Adam is raced at a few rates, then AdaBound at a few final rates, all from the model's current weights and
    on the same batches; docs/suggest.md has the rule. The model, its gradients, its mode and all random states are
    restored exactly, also after an exception. With ``torch.distributed`` every rank must call it, and gets the same
    answer.

    Args:
        model: the model to train. Its trained parameters and buffers are copied once.
        loss: ``loss(model, batch)`` returns the scalar to minimise. Move the batch to a device and use autocast here.
        batches: any iterable, such as a DataLoader; ``budget`` / 7 · ``repeats`` batches are kept in memory.
        steps: the length of the planned training, in optimizer steps.
        params: parameters or param groups to be trained, without rates. None: all that require gradients.
        clip: largest norm of the gradient. None: no clipping.
        reset: called before each race and after the last, to clear state that ``loss`` itself keeps, such as a
            recurrent state.
        budget: training steps to spend in each repeat. None: 1.4 times as many as the training has, but at most 600.
        repeats: the number of repetitions, with other batches; the answer is the geometric mean.
        seed: seed of dropout, and of the batches if they are drawn from torch's global generator.
        progress: called with (steps made, largest number of steps) after each step.
        options: ``betas``, ``eps``, ``weight_decay``, ``amsbound``, ``decoupled_weight_decay`` of the optimizer.

    Raises:
        SuggestError: the loss is not finite at the start, does not depend on the parameters, or never falls.

    Example:
        >>> import torch
        >>> from dynabound import AdaBound
        >>> from dynabound.tuning import suggest
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 1)
        >>> batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(20, 32, 8)]
        >>> def loss(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> suggestion = suggest(model, loss, batches, steps=400)
        >>> optimizer = AdaBound(model.parameters(), **suggestion.options)
        >>> print(suggestion)
        lr = ...
        final_lr = ...
        gamma = ...
    """
    budget = check(steps, budget, repeats, options, Options.__annotations__, clip)
    groups = param_groups(model, params)
    snapshot = Snapshot(model, [param for group in groups for param in group["params"]], batches)
    with ExitStack() as stack:
        stack.callback(snapshot.restore)  # also if reset() fails
        if reset is not None:
            stack.callback(reset)
        snapshot.seed(seed)
        if not model.training:
            model.train()
        racer = TorchRacer(model, loss, groups, snapshot, options, clip, reset, seed, progress, budget * repeats)
        return search(racer, batches, steps, budget, repeats, options, Suggestion)
