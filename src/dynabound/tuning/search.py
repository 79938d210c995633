"""The races that the rule asks for, in any framework: a budget, the batches, and a racer that trains."""

from __future__ import annotations

import math
import statistics
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from dynabound._checks import check_number, check_positive
from dynabound.tuning import rule
from dynabound.tuning.rule import Race
from dynabound.tuning.suggestion import Suggestion

__all__ = ["ProgressCallback", "RaceRates", "Racer", "SuggestError", "check", "search"]

ProgressCallback = Callable[[int, int], object]
Kind = TypeVar("Kind", bound=Suggestion)

_BUDGET, _SHARE = 600, 1.4  # training steps, at most; and at most this share of the steps of the training to come
_ADAM_RACES, _ADABOUND_RACES = 6, 7  # at most; the latter share what the former leave, and are 1.4 to 2 times as long
_UNITS = 16  # a race of Adam takes one of them
_FEWEST_STEPS = 6  # of a race
_FEWEST_BATCHES = 5
_FIRST_LR = 0.01


class SuggestError(RuntimeError):
    """No learning rate can be suggested for this model, loss and data."""


class RaceRates(NamedTuple):
    """The settings of a race."""

    lr: float
    final_lr: float = 1.0
    gamma: float = 0.0
    """0: the bounds are 0 and infinity, and AdaBound is Adam."""


class Racer(ABC):
    """Trains one model for a few steps at a time, always from the same weights, and counts them."""

    def __init__(self, progress: ProgressCallback | None, most: int) -> None:
        self.cost, self.most, self.progress = 0, most, progress

    @abstractmethod
    def start(self, rates: RaceRates | None) -> None:
        """Restore the weights and make a new optimizer; with None, steps do not change the weights."""

    @abstractmethod
    def step(self, batch: Any) -> float:
        """Train on a batch; return the loss before the update."""

    @abstractmethod
    def first_guess(self) -> float:
        """``final_lr`` from the second moments of the last race, which was one of Adam."""

    def untrained(self, batches: Iterable[Any]) -> list[float]:
        """The losses of the untrained model; SuggestError if one of them is not finite."""
        self.start(None)
        losses = [self.step(batch) for batch in batches]
        for number, value in enumerate(losses, 1):
            if not math.isfinite(value):
                raise SuggestError(f"loss={value} before training, on batch {number}: must be finite")
        return losses

    def race(self, batches: Iterable[Any], rates: RaceRates) -> list[float]:
        """The loss of each step, up to the first that is not finite."""
        self.start(rates)
        losses: list[float] = []
        for batch in batches:
            losses.append(self.step(batch))
            self.cost += 1
            if self.progress is not None:
                self.progress(self.cost, self.most)
            if not math.isfinite(losses[-1]):
                break
        return losses


def check(
    steps: int,
    budget: int | None,
    repeats: int,
    options: Mapping[str, Any],
    known: Iterable[str],
    clip: float | None = None,
) -> int:
    """The budget, after checking that all numbers are valid and all options known."""
    fewest = _UNITS * _FEWEST_STEPS
    _check_count("steps", steps, fewest, "; shorter trainings leave the bounds no time to close")
    budget = min(_BUDGET, int(_SHARE * steps)) if budget is None else budget
    _check_count("budget", budget, fewest, f", {_FEWEST_STEPS} steps for the shortest race")
    _check_count("repeats", repeats, 1)
    if clip is not None:
        check_positive("clip", clip)
    for name in options.keys() - set(known):
        raise TypeError(f"{name}={options[name]!r}: suggest takes the options {', '.join(known)}")
    return budget


def _check_count(name: str, value: int, fewest: int, why: str = "") -> None:
    check_number(name, value, lambda x: x >= fewest and x.is_integer(), f"an integer >= {fewest}{why}")


def search(
    racer: Racer,
    batches: Iterable[Any],
    steps: int,
    budget: int,
    repeats: int,
    options: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    """Run the races of the rule, ``repeats`` times on different batches, and decide."""
    size = budget // _ADABOUND_RACES
    kept = _keep(batches, size * repeats)
    parts = [_repeat(racer, kept[size * number :][:size], budget, number) for number in range(repeats)]
    return _conclude(parts, steps, racer.cost, options, kind)


def _keep(batches: Iterable[Any], number: int) -> list[Any]:
    """The first batches, repeated from the beginning if there are too few."""
    read = list(islice(iter(batches), number))
    if len(read) < _FEWEST_BATCHES:
        raise ValueError(
            f"batches: has {len(read)}; must have at least {_FEWEST_BATCHES}, so that chance does not decide races. "
            "To train on a single batch, pass itertools.repeat(batch, 100)"
        )
    return (read * -(-number // len(read)))[:number]


def _repeat(racer: Racer, batches: Sequence[Any], budget: int, number: int) -> tuple[list[float], list[Race]]:
    """All races on one set of batches, and the losses of the untrained model on them."""
    races: list[Race] = []
    guesses: dict[float, float] = {}
    before, length = racer.cost, budget // _UNITS
    untrained = racer.untrained(batches)

    def race(tests: str, rate: float, length: int, rates: RaceRates) -> float:
        losses = racer.race(batches[:length], rates)
        races.append(Race(tests, rate, tuple(losses), number))
        if tests == "lr" and math.isfinite(losses[-1]):
            guesses[rate] = racer.first_guess()
        return rule.score(losses)

    start = rule.score(untrained[:length])
    scores = rule.explore(
        lambda lr: race("lr", lr, length, RaceRates(lr)),
        _FIRST_LR,
        lambda tried: rule.is_flanked(tried, start),
        _ADAM_RACES,
    )
    best = min(scores, key=scores.__getitem__)
    _check_fall(untrained, races, scores)
    lr, rest = rule.smallest_sufficient(scores, start), (budget - racer.cost + before) // _ADABOUND_RACES
    finals = rule.explore(
        lambda final_lr: race("final_lr", final_lr, rest, RaceRates(lr, final_lr, rule.FAST / rest)),
        guesses[best],
        rule.has_inner_least,
        _ADABOUND_RACES - 2,
    )
    final_lr, raised = min(finals, key=finals.__getitem__), lr * rule.FACTOR
    if not math.isfinite(finals[final_lr]):
        tried = ", ".join(f"{rate:.3g}" for rate in sorted(finals))
        raise SuggestError(f"AdaBound's loss is not finite at any final rate that was tried: {tried}; clip gradients")
    race("raised", raised, rest, RaceRates(raised, final_lr, rule.FAST / rest))
    nearest = min(guesses, key=lambda rate: abs(math.log(rate / raised)))
    adams_rate = guesses[nearest] * raised / nearest
    race("slow", adams_rate, rest, RaceRates(raised, adams_rate, rule.SLOW / rest))
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
    parts: Sequence[tuple[list[float], list[Race]]],
    steps: int,
    cost: int,
    options: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    whole, halves = slice(None), (slice(0, None, 2), slice(1, None, 2))
    answers = _majority([rule.decide(*part, steps, whole) for part in parts])
    halved = [rule.decide(*part, steps, half) for part in parts for half in halves]
    lr, final_lr, gamma = (float(f"{statistics.geometric_mean(values):.3g}") for values in zip(*answers, strict=True))
    spread = [max(values) / min(values) for values in zip(*halved, strict=True)]
    notes = tuple(dict.fromkeys(note for _, races in parts for note in _notes(races)))
    for note in notes:
        warnings.warn(note, stacklevel=4)  # the line that calls suggest()
    return kind(
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


def _majority(answers: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The answers with the speed of the bounds that most repeats chose: a mean of two speeds was never raced."""
    gamma = statistics.mode(gamma for *_, gamma in answers)
    return [answer for answer in answers if answer[-1] == gamma]


def _notes(races: Sequence[Race]) -> Iterator[str]:
    """Warn where the best rate was at an end of those that were tried."""
    for tests in ("lr", "final_lr"):
        scores = {race.rate: rule.score(race.losses) for race in races if race.tests == tests}
        best = min(scores, key=scores.__getitem__)
        if best in (min(scores), max(scores)):
            side = "smallest" if best == min(scores) else "largest"
            yield f"{tests}: the best rate, {best:.3g}, was the {side} that was tried; a better one may lie beyond"
