"""Which trials are run, in any framework: a budget, the batches, and a runner that trains."""

from __future__ import annotations

import math
import statistics
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dynabound._checks import check_choice, check_number, check_positive
from dynabound.tuning import decide
from dynabound.tuning.decide import Decision, Trial
from dynabound.tuning.suggestion import Suggestion

if TYPE_CHECKING:
    from dynabound.tuning.known_rates import AdamsRates

ProgressCallback = Callable[[int, int], object]
Kind = TypeVar("Kind", bound=Suggestion)

_BUDGET, _SHARE = 600, 1.4  # training steps, at most; and at most this share of the steps of the run
_UNITS = 12  # the trials that a budget is for
_FEWEST_STEPS = 7  # of a trial
_FEWEST_BATCHES = 5
_SGD = 1e9  # a γ at which the bounds are one from the first step


class SuggestError(RuntimeError):
    """No learning rate can be suggested for this model, loss and data."""


class TrialRates(NamedTuple):
    """The settings of a trial."""

    lr: float
    final_lr: float = 1.0
    gamma: float = 0.0
    """0: the bounds are 0 and infinity, and AdaBound is Adam."""


class Plan(NamedTuple):
    """How a suggestion is made; :func:`check_plan` checks it."""

    steps: int
    budget: int
    repeats: int
    finish: str
    lr: float
    """Adam's first rate."""
    validation: tuple[Any, ...]

    @property
    def length(self) -> int:
        """Steps of a trial."""
        return self.budget // _UNITS


class TrialRunner(ABC):
    """Trains one model for a few steps at a time, always from the same weights, and counts them."""

    errors: tuple[type[Exception], ...] = (ValueError, ArithmeticError)
    """What a loss may raise at rates that are too large, as torch.distributions does."""

    def __init__(self, progress: ProgressCallback | None, plan: Plan) -> None:
        self.cost, self.plan, self.progress = 0, plan, progress
        self.adams: dict[tuple[int, float], AdamsRates] = {}
        """What Adam's second moments say after its trials, by repeat and rate."""
        self.notes: dict[str, None] = {}
        """What the user should know, such as what was raised in trials."""

    @abstractmethod
    def start(self, rates: TrialRates | None) -> None:
        """Restore the weights and make a new optimizer; with None, steps do not change the weights."""

    @abstractmethod
    def step(self, batch: Any) -> float:
        """Train on a batch; return the loss before the update."""

    @abstractmethod
    def evaluate(self, batch: Any) -> float:
        """The loss of a validation batch, without training."""

    @abstractmethod
    def adams_rates(self) -> AdamsRates:
        """What the second moments say after the last trial, which was one of Adam."""

    def untrained(self, batches: Iterable[Any]) -> list[float]:
        """The losses that the untrained model is judged by; SuggestError if one is not finite, or if all are 0."""
        self.start(None)
        validation = self.plan.validation
        losses = [self.evaluate(x) for x in validation] if validation else [self.step(x) for x in batches]
        for number, value in enumerate(losses, 1):
            if not math.isfinite(value):
                raise SuggestError(f"loss={value} before training, on batch {number}: must be finite")
        if not any(losses):
            raise SuggestError("loss=0 on every batch before training: there is nothing to learn")
        return losses

    def run(self, kind: str, rate: float, batches: Sequence[Any], rates: TrialRates, repeat: int) -> Trial:
        """A trial: the loss of each step, up to the first that is not finite."""
        self.start(rates)
        losses: list[float] = []
        scores = [math.nan] * len(self.plan.validation)
        try:
            for batch in batches:
                losses.append(self.step(batch))
                self.cost += 1
                if self.progress is not None:
                    self.progress(self.cost, self.plan.budget * self.plan.repeats)
                if not math.isfinite(losses[-1]):
                    break
            else:
                if kind == "lr":  # first, because moments that are not finite raise
                    self.adams[repeat, rate] = self.adams_rates()
                scores = [self.evaluate(batch) for batch in self.plan.validation]
        except self.errors as error:
            if not losses:  # no update has been made, so the rate is not to blame
                raise
            self.notes[f"{kind}: the trial at {rate:.3g} failed: {type(error).__name__}: {error}"] = None
            losses[len(batches) - 1 :] = [math.nan]
        return Trial(kind, rate, tuple(losses), repeat, tuple(scores))


def check_plan(
    steps: int,
    budget: int | None,
    repeats: int,
    finish: str,
    lr: float,
    validation: Iterable[Any] | None,
    options: Mapping[str, Any],
    known: Iterable[str],
    clip: float | None = None,
) -> Plan:
    """The plan, after checking that all numbers are valid and all options known."""
    fewest = _UNITS * _FEWEST_STEPS
    _check_count("steps", steps, fewest, "; a shorter run is best used to try rates itself")
    budget = min(_BUDGET, int(_SHARE * steps)) if budget is None else budget
    _check_count("budget", budget, fewest, f", {_FEWEST_STEPS} steps for the shortest trial")
    _check_count("repeats", repeats, 1)
    check_choice("finish", finish, ("auto", "adam", "sgd"))
    allowed = f"in [{decide.LOWEST:g}, {decide.HIGHEST:g}]"
    check_number("lr", lr, lambda x: decide.LOWEST <= x <= decide.HIGHEST, allowed)
    if clip is not None:
        check_positive("clip", clip)
    for name in options.keys() - set(known):
        raise TypeError(f"{name}={options[name]!r}: suggest takes the options {', '.join(known)}")
    kept = () if validation is None else tuple(validation)
    if validation is not None and len(kept) < _FEWEST_BATCHES:
        raise ValueError(f"validation: has {len(kept)} batches; must have at least {_FEWEST_BATCHES}")
    return Plan(int(steps), int(budget), int(repeats), finish, lr, kept)


def _check_count(name: str, value: int, fewest: int, why: str = "") -> None:
    check_number(name, value, lambda x: x >= fewest and x.is_integer(), f"an integer >= {fewest}{why}")


def suggest_with(runner: TrialRunner, batches: Iterable[Any], options: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Run the trials of the rule, ``repeats`` times on different batches, and decide."""
    plan = runner.plan
    kept = _keep(batches, plan.length * plan.repeats)
    parts = [
        _Repeat(runner, kept[plan.length * number :][: plan.length], number).run() for number in range(plan.repeats)
    ]
    return _conclude(parts, runner, options, kind)


def _keep(batches: Iterable[Any], number: int) -> list[Any]:
    """The first batches, repeated from the beginning if there are too few."""
    read = list(islice(iter(batches), number))
    if len(read) < _FEWEST_BATCHES:
        raise ValueError(
            f"batches: has {len(read)}; must have at least {_FEWEST_BATCHES}, so that chance does not decide trials. "
            "To train on a single batch, pass itertools.repeat(batch, 100)"
        )
    return (read * -(-number // len(read)))[:number]


class _Repeat:
    """All trials on one set of batches."""

    def __init__(self, runner: TrialRunner, batches: Sequence[Any], number: int) -> None:
        self.runner, self.batches, self.number = runner, batches, number
        self.trials: list[Trial] = []
        self.before = runner.cost

    def run(self) -> tuple[list[float], list[Trial]]:
        """The losses of the untrained model, and the trials."""
        plan, start = self.runner.plan, self.runner.untrained(self.batches)
        loss = statistics.fmean(start if plan.validation else decide.last_third(start))
        decide.explore(
            lambda lr: self.trial("lr", lr, TrialRates(lr)),
            plan.lr, loss, _UNITS - (3 if plan.finish == "sgd" else 1), decide.LOWEST, decide.HIGHEST, decide.NEAR,
        )  # fmt: skip
        adam = decide.best_of(self.trials, "lr")
        _check_decrease(start, self.trials, adam, self.runner.notes)
        rates = self.runner.adams[self.number, adam.rate]
        if plan.finish == "adam":
            self.adabound("wide", rates.mean, adam.rate)
        elif not self.adabound_as_sgd(start, adam, rates.sgd * decide.FACTOR):
            self.adabound_as_adam(start, adam, rates)
        return start, self.trials

    def adabound_as_adam(self, start: Sequence[float], adam: Trial, rates: AdamsRates) -> None:
        """Try the bound that falls; then wide bounds, if one bound for all rates takes too much from Adam."""
        end = rates.mean * decide.shorter(self.runner.plan.length, self.runner.plan.steps)
        self.adabound("falling", end / (1 + 1 / decide.SPEEDS["falling"]), adam.rate)
        behind = decide.is_lower(start, adam, self.trials[-1])
        if rates.uneven and behind and self.left and not decide.sgd_keeps_up(start, self.trials):
            self.adabound("steady", rates.mean, adam.rate)

    def adabound_as_sgd(self, start: Sequence[float], adam: Trial, first: float) -> bool:
        """Try SGD, from this rate on, and AdaBound with bounds that close around its best rate; whether to take it."""
        forced = self.runner.plan.finish == "sgd"
        if not forced and self.left < 4:
            return False
        self.sgd(first)
        if not forced and not decide.keeps_up(start, self.trials[-1], adam):
            return False
        before = statistics.fmean(decide.start_of(start, adam))
        best = decide.best_rate(decide.explore(self.sgd, first, before, max(1, self.left - 2)), before)
        loss = self.adabound("late" if forced else "closing", best, adam.rate)
        if forced and not math.isfinite(loss):
            raise SuggestError(f"AdaBound's loss is not finite with final_lr={best:.3g}; clip gradients: clip=")
        return forced or decide.is_lower(start, self.trials[-1], adam)

    @property
    def left(self) -> int:
        """How many trials the budget still allows."""
        return (self.runner.plan.budget + self.before - self.runner.cost) // self.runner.plan.length

    def trial(self, kind: str, rate: float, rates: TrialRates) -> float:
        """Run a trial, and return its score."""
        trial = self.runner.run(kind, rate, self.batches, rates, self.number)
        self.trials.append(trial)
        return decide.score(trial)

    def sgd(self, rate: float) -> float:
        """The score of SGD with averaged momentum, which is run once."""
        known = [trial for trial in self.trials if (trial.kind, trial.rate) == ("final_lr", rate)]
        return decide.score(known[0]) if known else self.trial("final_lr", rate, TrialRates(rate, rate, _SGD))

    def adabound(self, kind: str, final_lr: float, lr: float) -> float:
        """The score of AdaBound, its course compressed into a trial."""
        return self.trial(kind, final_lr, TrialRates(lr, final_lr, decide.SPEEDS[kind] / len(self.batches)))


def _check_decrease(start: Sequence[float], trials: Sequence[Trial], best: Trial, notes: dict[str, None]) -> None:
    """SuggestError if the loss does not decrease; a note if it may be by chance."""
    if len(trials) > 1 and len({trial.losses for trial in trials}) == 1:
        raise SuggestError("the losses are the same at all rates: the steps do not change what loss(model, batch) uses")
    before = decide.start_of(start, best)
    pairs = [(before, best.judged()), (start[: len(best.losses)], best.losses)]  # a short trial has a tiny last third
    found = [decide.difference(*pair) for pair in pairs[: 1 if best.validation else 2]]
    if math.isfinite(decide.score(best)) and any(gain > 0 for gain, _ in found):
        if all(gain <= 2 * error for gain, error in found):
            gain, error = found[0]
            notes[f"the loss decreases by {gain:.2g} ± {error:.2g} only in trials: allow longer ones: budget="] = None
        return
    tried = ", ".join(f"{rate:.3g}" for rate in sorted(trial.rate for trial in trials))
    raise SuggestError(
        f"the loss never decreases: {statistics.fmean(before):.6g} before training, at best {decide.score(best):.6g} "
        f"after {len(best.losses)} steps of Adam at lr {tried}. Check loss and data, or allow longer trials: budget="
        f"{'; '.join(['', *notes])}"
    )


def _conclude(
    parts: Sequence[tuple[list[float], list[Trial]]],
    runner: TrialRunner,
    options: Mapping[str, Any],
    kind: type[Kind],
) -> Kind:
    steps = runner.plan.steps
    answers = _majority([decide.decide(*part, steps) for part in parts])
    numbers, halves = [answer[:3] for answer in answers], (slice(0, None, 2), slice(1, None, 2))
    halved = [decide.decide(*part, steps, half)[:3] for part in parts for half in halves]
    lr, final_lr, gamma = (float(f"{statistics.geometric_mean(values):.3g}") for values in zip(*numbers, strict=True))
    spread = [max(values) / min(values) for values in zip(*halved, strict=True)]
    notes = tuple(dict.fromkeys([*runner.notes, *(note for part in parts for note in _notes(*part))]))
    for note in notes:
        warnings.warn(note, stacklevel=4)  # the line that calls suggest()
    return kind(
        lr=lr,
        final_lr=final_lr,
        gamma=gamma,
        steps=steps,
        cost=runner.cost,
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


def _notes(start: Sequence[float], trials: Sequence[Trial]) -> Iterator[str]:
    """Warn where the best rate was at an end of those that were tried, or where many are as good."""
    adam = decide.best_of(trials, "lr")
    rates = {trial.rate: decide.score(trial) for trial in trials if trial.kind == "lr"}
    smallest = decide.smallest_rate(rates, statistics.fmean(decide.start_of(start, adam)))
    if smallest < 0.99 * adam.rate / decide.FACTOR**2:
        yield (
            f"lr: in {len(adam.losses)} steps all rates from {smallest:.2g} to {adam.rate:.2g} are as good, but for "
            f"{decide.MARGIN:.0%} of the decrease; longer trials may tell them apart: budget="
        )
    for kind in ("lr", "final_lr"):
        scores = {trial.rate: decide.score(trial) for trial in trials if trial.kind == kind}
        if not scores or (kind == "final_lr" and trials[-1].kind in ("falling", "steady")):
            continue
        best = min(scores, key=scores.__getitem__)
        if best in (min(scores), max(scores)):
            side = "smallest" if best == min(scores) else "largest"
            yield f"{kind}: the best rate, {best:.3g}, was the {side} that was tried; a better one may lie beyond"
