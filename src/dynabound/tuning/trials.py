"""Which trials are run, in any framework: a budget, the batches, and a runner that trains."""

from __future__ import annotations

import math
import statistics
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from dynabound._checks import check_number, check_positive
from dynabound.tuning import decide
from dynabound.tuning.decide import Decision, Trial
from dynabound.tuning.suggestion import Suggestion

__all__ = ["ProgressCallback", "SuggestError", "TrialRates", "TrialRunner", "check_arguments", "suggest_with"]

ProgressCallback = Callable[[int, int], object]
Kind = TypeVar("Kind", bound=Suggestion)

_BUDGET, _SHARE = 600, 1.4  # training steps, at most; and at most this share of the steps of the run
_ADAM_TRIALS, _ADABOUND_TRIALS = 6, 7  # at most; the latter share what the former leave, and are 1.4 to 2 times as long
_UNITS = 16  # a trial of Adam takes one of them
_FEWEST_STEPS = 6  # of a trial
_FEWEST_BATCHES = 5
_FIRST_LR = 0.01


class SuggestError(RuntimeError):
    """No learning rate can be suggested for this model, loss and data."""


class TrialRates(NamedTuple):
    """The settings of a trial."""

    lr: float
    final_lr: float = 1.0
    gamma: float = 0.0
    """0: the bounds are 0 and infinity, and AdaBound is Adam."""


class TrialRunner(ABC):
    """Trains one model for a few steps at a time, always from the same weights, and counts them."""

    def __init__(self, progress: ProgressCallback | None, most: int) -> None:
        self.cost, self.most, self.progress = 0, most, progress

    @abstractmethod
    def start(self, rates: TrialRates | None) -> None:
        """Restore the weights and make a new optimizer; with None, steps do not change the weights."""

    @abstractmethod
    def step(self, batch: Any) -> float:
        """Train on a batch; return the loss before the update."""

    @abstractmethod
    def first_guess(self) -> float:
        """``final_lr`` from the second moments of the last trial, which was one of Adam."""

    def untrained(self, batches: Iterable[Any]) -> list[float]:
        """The losses of the untrained model; SuggestError if one of them is not finite."""
        self.start(None)
        losses = [self.step(batch) for batch in batches]
        for number, value in enumerate(losses, 1):
            if not math.isfinite(value):
                raise SuggestError(f"loss={value} before training, on batch {number}: must be finite")
        return losses

    def run(self, batches: Iterable[Any], rates: TrialRates) -> list[float]:
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


def check_arguments(
    steps: int,
    budget: int | None,
    repeats: int,
    options: Mapping[str, Any],
    known: Iterable[str],
    clip: float | None = None,
) -> int:
    """The budget, after checking that all numbers are valid and all options known."""
    fewest = _UNITS * _FEWEST_STEPS
    _check_count("steps", steps, fewest, "; in a shorter run the bounds have no time to close")
    budget = min(_BUDGET, int(_SHARE * steps)) if budget is None else budget
    _check_count("budget", budget, fewest, f", {_FEWEST_STEPS} steps for the shortest trial")
    _check_count("repeats", repeats, 1)
    if clip is not None:
        check_positive("clip", clip)
    for name in options.keys() - set(known):
        raise TypeError(f"{name}={options[name]!r}: suggest takes the options {', '.join(known)}")
    return budget


def _check_count(name: str, value: int, fewest: int, why: str = "") -> None:
    check_number(name, value, lambda x: x >= fewest and x.is_integer(), f"an integer >= {fewest}{why}")


def suggest_with(
    runner: TrialRunner,
    batches: Iterable[Any],
    steps: int,
    budget: int,
    repeats: int,
    options: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    """Run the trials of the rule, ``repeats`` times on different batches, and decide."""
    size = budget // _ADABOUND_TRIALS
    kept = _keep(batches, size * repeats)
    parts = [_repeat(runner, kept[size * number :][:size], budget, number) for number in range(repeats)]
    return _conclude(parts, steps, runner.cost, options, kind)


def _keep(batches: Iterable[Any], number: int) -> list[Any]:
    """The first batches, repeated from the beginning if there are too few."""
    read = list(islice(iter(batches), number))
    if len(read) < _FEWEST_BATCHES:
        raise ValueError(
            f"batches: has {len(read)}; must have at least {_FEWEST_BATCHES}, so that chance does not decide trials. "
            "To train on a single batch, pass itertools.repeat(batch, 100)"
        )
    return (read * -(-number // len(read)))[:number]


def _repeat(runner: TrialRunner, batches: Sequence[Any], budget: int, number: int) -> tuple[list[float], list[Trial]]:
    """All trials on one set of batches, and the losses of the untrained model on them."""
    trials: list[Trial] = []
    guesses: dict[float, float] = {}
    before, length = runner.cost, budget // _UNITS
    untrained = runner.untrained(batches)

    def trial(kind: str, rate: float, length: int, rates: TrialRates) -> float:
        losses = runner.run(batches[:length], rates)
        trials.append(Trial(kind, rate, tuple(losses), number))
        if kind == "lr" and math.isfinite(losses[-1]):
            guesses[rate] = runner.first_guess()
        return decide.score(losses)

    start = decide.score(untrained[:length])
    scores = decide.explore(
        lambda lr: trial("lr", lr, length, TrialRates(lr)),
        _FIRST_LR,
        lambda tried: decide.brackets_lr(tried, start),
        _ADAM_TRIALS,
    )
    best = min(scores, key=scores.__getitem__)
    _check_decrease(untrained, trials, scores)
    lr, rest = decide.smallest_sufficient(scores, start), (budget - runner.cost + before) // _ADABOUND_TRIALS
    finals = decide.explore(
        lambda final_lr: trial("final_lr", final_lr, rest, TrialRates(lr, final_lr, decide.FAST / rest)),
        guesses[best],
        decide.brackets_final_lr,
        _ADABOUND_TRIALS - 2,
    )
    final_lr, raised = min(finals, key=finals.__getitem__), lr * decide.FACTOR
    if not math.isfinite(finals[final_lr]):
        tried = ", ".join(f"{rate:.3g}" for rate in sorted(finals))
        raise SuggestError(f"AdaBound's loss is not finite at any final rate that was tried: {tried}; clip gradients")
    trial("raised", raised, rest, TrialRates(raised, final_lr, decide.FAST / rest))
    nearest = min(guesses, key=lambda rate: abs(math.log(rate / raised)))
    adams_rate = guesses[nearest] * raised / nearest
    trial("slow", adams_rate, rest, TrialRates(raised, adams_rate, decide.SLOW / rest))
    return untrained, trials


def _check_decrease(untrained: Sequence[float], trials: Sequence[Trial], scores: Mapping[float, float]) -> None:
    best = min(trials, key=lambda trial: scores[trial.rate])
    before = untrained[: len(best.losses)]
    if math.isfinite(best.losses[-1]) and decide.loss_decreased(*map(decide.last_third, (before, best.losses))):
        return
    tried = ", ".join(f"{rate:.3g}" for rate in sorted(scores))
    raise SuggestError(
        f"the loss never decreases: {decide.score(before):.4g} before training, at best {min(scores.values()):.4g} "
        f"after {len(best.losses)} steps of Adam at lr {tried}. Check loss and data, or allow longer trials: budget="
    )


def _conclude(
    parts: Sequence[tuple[list[float], list[Trial]]],
    steps: int,
    cost: int,
    options: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    answers = _majority([decide.decide(*part, steps) for part in parts])
    numbers, halves = [answer[:3] for answer in answers], (slice(0, None, 2), slice(1, None, 2))
    halved = [decide.decide(*part, steps, half)[:3] for part in parts for half in halves]
    lr, final_lr, gamma = (float(f"{statistics.geometric_mean(values):.3g}") for values in zip(*numbers, strict=True))
    spread = [max(values) / min(values) for values in zip(*halved, strict=True)]
    notes = tuple(dict.fromkeys(note for _, trials in parts for note in _notes(trials)))
    for note in notes:
        warnings.warn(note, stacklevel=4)  # the line that calls suggest()
    return kind(
        lr=lr,
        final_lr=final_lr,
        gamma=gamma,
        steps=steps,
        cost=cost,
        start=tuple(loss for untrained, _ in parts for loss in untrained),
        trials=tuple(trial for _, trials in parts for trial in trials),
        spread=dict(zip(("lr", "final_lr", "gamma"), spread, strict=True)),
        reasons=answers[0].reasons,
        notes=notes,
        given=dict(options),
    )


def _majority(answers: Sequence[Decision]) -> list[Decision]:
    """The answers with the speed of the bounds that most repeats chose: a mean of two speeds was never tried."""
    gamma = statistics.mode(answer.gamma for answer in answers)
    return [answer for answer in answers if answer.gamma == gamma]


def _notes(trials: Sequence[Trial]) -> Iterator[str]:
    """Warn where the best rate was at an end of those that were tried."""
    for kind in ("lr", "final_lr"):
        scores = {trial.rate: decide.score(trial.losses) for trial in trials if trial.kind == kind}
        best = min(scores, key=scores.__getitem__)
        if best in (min(scores), max(scores)):
            side = "smallest" if best == min(scores) else "largest"
            yield f"{kind}: the best rate, {best:.3g}, was the {side} that was tried; a better one may lie beyond"
