"""``suggest``: races on the user's own model and batches, and the rule applied to them."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynabound.tuning import rule
from dynabound.tuning.race import Racer, SuggestError, param_groups
from dynabound.tuning.recipes import final_lr_from_adam
from dynabound.tuning.rule import Race
from dynabound.tuning.snapshot import Snapshot
from dynabound.tuning.suggestion import Suggestion

__all__ = ["Options", "suggest"]

Model = TypeVar("Model", bound=nn.Module)

_BUDGET = 600  # training steps, at most
_ADAM_RACES, _ADABOUND_RACES = 6, 6  # at most; the latter share what the former leave, and are about twice as long
_UNITS = 16  # a race of Adam takes one of them
_FEWEST_STEPS = 6  # of a race
_FEWEST_BATCHES = 5
_FIRST_LR = 0.01
_ADAM = ("constant", 0.0, math.inf)  # with these bounds AdaBound is Adam


class Options(TypedDict, total=False):
    """The optimizer's arguments that the races and the training share."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsbound: bool
    decoupled_weight_decay: bool


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

    First Adam is raced at a few rates, then AdaBound at a few final rates, all from the model's present weights and
    on the same batches; docs/suggest.md has the rule. The model, its gradients, its mode and all random states are
    left exactly as they were, whatever happens. With ``torch.distributed`` every rank must call it, and gets the
    same answer.

    Args:
        model: what is to be trained. It is copied once: the trained parameters and the buffers.
        loss: ``loss(model, batch)`` returns the scalar to minimise. Move the batch to a device and use autocast here.
        batches: any iterable, such as a DataLoader; up to a sixth of ``budget`` batches are kept in memory.
        steps: the length of the training to come, in optimizer steps.
        params: parameters or param groups to be trained, without rates. None: all that require gradients.
        clip: largest norm of the gradient. None: no clipping.
        reset: called before each race, to clear what ``loss`` itself carries on, such as a recurrent state.
        budget: training steps to spend in each repeat. None: as many as the training has, but at most 600.
        repeats: how often to do everything, with other batches; the answer is the geometric mean.
        seed: of dropout, and of the batches if they are drawn from torch's global generator.
        progress: called with (steps made, most steps) after each step.
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
    budget = _check(steps, budget, repeats, options)
    groups = param_groups(model, params)
    snapshot = Snapshot(model, [param for group in groups for param in group["params"]], batches)
    try:
        torch.manual_seed(seed)
        size = budget // _ADABOUND_RACES
        kept = _keep(batches, size * repeats)
        if not model.training:
            model.train()
        racer = Racer(model, loss, groups, snapshot, options, clip, reset, seed, progress, budget * repeats)
        parts = [_repeat(racer, kept[size * number :][:size], budget, number) for number in range(repeats)]
        return _conclude(parts, steps, racer.cost, options)
    finally:
        snapshot.restore()


def _check(steps: int, budget: int | None, repeats: int, options: Mapping[str, Any]) -> int:
    """The budget, if all numbers are in order."""
    fewest = _UNITS * _FEWEST_STEPS
    if steps < fewest:
        raise ValueError(f"steps={steps!r}: must be >= {fewest}; shorter trainings leave the bounds no time to close")
    budget = min(_BUDGET, steps) if budget is None else budget
    if budget < fewest:
        raise ValueError(f"budget={budget!r}: must be >= {fewest}, {_FEWEST_STEPS} steps for the shortest race")
    if repeats < 1:
        raise ValueError(f"repeats={repeats!r}: must be >= 1")
    for name in options.keys() - Options.__annotations__.keys():
        raise TypeError(f"{name}={options[name]!r}: suggest takes the options {', '.join(Options.__annotations__)}")
    return budget


def _keep(batches: Iterable[Any], number: int) -> list[Any]:
    """The first batches, and again from the beginning where there are too few."""
    read = list(islice(iter(batches), number))
    if len(read) < _FEWEST_BATCHES:
        raise ValueError(
            f"batches: has {len(read)}; must have at least {_FEWEST_BATCHES}, so that the races are not won by chance. "
            "To train on one and the same batch, pass itertools.repeat(batch, 100)"
        )
    return (read * -(-number // len(read)))[:number]


def _repeat(racer: Racer, batches: Sequence[Any], budget: int, number: int) -> tuple[list[float], list[Race]]:
    """All races on one set of batches, and the losses of the untrained model on them."""
    races: list[Race] = []
    guesses: dict[float, float] = {}
    before, length = racer.cost, budget // _UNITS
    untrained = racer.untrained(batches)

    def race(tests: str, rate: float, length: int, **rates: Any) -> float:
        losses, optimizer = racer.race(batches[:length], **{tests: rate}, **rates)
        races.append(Race(tests, rate, tuple(losses), number))
        if tests == "lr" and math.isfinite(losses[-1]):
            guesses[rate] = final_lr_from_adam(optimizer)
        return rule.score(losses)

    start = rule.score(untrained[:length])
    scores = rule.explore(
        lambda lr: race("lr", lr, length, bounds=_ADAM),
        _FIRST_LR,
        lambda tried: rule.is_flanked(tried, start),
        _ADAM_RACES,
    )
    best = min(scores, key=scores.__getitem__)
    _check_fall(untrained, races, scores)
    lr, rest = rule.smallest_sufficient(scores, start), (budget - racer.cost + before) // _ADABOUND_RACES
    tried = rule.explore(
        lambda final_lr: race("final_lr", final_lr, rest, lr=lr, gamma=rule.FAST / rest),
        guesses[best], rule.has_inner_least, _ADABOUND_RACES - 1,
    )  # fmt: skip
    final_lr = min(tried, key=tried.__getitem__)
    losses, _ = racer.race(batches[:rest], lr=lr, final_lr=final_lr, gamma=rule.SLOW / rest)
    races.append(Race("gamma", rule.SLOW, tuple(losses), number))
    return untrained, races


def _check_fall(untrained: Sequence[float], races: Sequence[Race], scores: Mapping[float, float]) -> None:
    best = min(races, key=lambda race: scores[race.rate])
    before = untrained[: len(best.losses)]
    if math.isfinite(best.losses[-1]) and rule.falls(*map(rule.last_third, (before, best.losses))):
        return
    tried = ", ".join(f"{rate:.3g}" for rate in sorted(scores))
    raise SuggestError(
        f"the loss never falls: {rule.score(before):.4g} before training, at best {min(scores.values()):.4g} after "
        f"{len(best.losses)} steps of Adam at lr {tried}. Check the loss and the data, or allow longer races: budget="
    )


def _conclude(
    parts: Sequence[tuple[list[float], list[Race]]], steps: int, cost: int, options: Mapping[str, Any]
) -> Suggestion:
    whole, halves = slice(None), (slice(0, None, 2), slice(1, None, 2))
    answers = [rule.decide(*part, steps, whole) for part in parts]
    halved = [rule.decide(*part, steps, half) for part in parts for half in halves]
    lr, final_lr, gamma = (float(f"{statistics.geometric_mean(values):.3g}") for values in zip(*answers, strict=True))
    spread = [max(values) / min(values) for values in zip(*halved, strict=True)]
    notes = tuple(dict.fromkeys(note for _, races in parts for note in _notes(races)))
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return Suggestion(
        lr=lr,
        final_lr=final_lr,
        gamma=gamma,
        steps=steps,
        cost=cost,
        start=tuple(loss for untrained, _ in parts for loss in untrained),
        races=tuple(race for _, races in parts for race in races),
        spread=dict(zip(("lr", "final_lr", "gamma"), spread, strict=True)),
        notes=notes,
        given=dict(options),
    )


def _notes(races: Sequence[Race]) -> Iterator[str]:
    """Warn where the best rate was at an end of those that the budget allowed."""
    for tests in ("lr", "final_lr"):
        scores = {race.rate: rule.score(race.losses) for race in races if race.tests == tests}
        best = min(scores, key=scores.__getitem__)
        if best in (min(scores), max(scores)):
            side = "smallest" if best == min(scores) else "largest"
            yield f"{tests}: the best rate, {best:.3g}, was the {side} that was tried; a larger budget tries more"
