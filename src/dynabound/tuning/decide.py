"""The rule: from short trials to learning rates and the reasons for them. Pure functions of rates and losses.

A trial is a short run with constant settings, from the model's weights, on the same batches as all others. Its score
is the mean loss of its last third.

* ``lr``: the smallest rate of Adam whose loss decreases at least :data:`SHARE` as far as at the best rate.
* ``final_lr``: trials of AdaBound that becomes SGD within the trial. The rate of the lowest loss, times (length of a
  trial / length of the run)^:data:`HORIZON`.
* ``lr`` again: it is raised by :data:`FACTOR` if AdaBound ends lower with it, significantly and by :data:`GAIN`.
* ``gamma``: :data:`FAST` / steps.
* In a last trial the bounds close slowly around the mean of Adam's rates α/√v, with the raised ``lr``. If it ends
  lower than all other trials of AdaBound, again significantly and by :data:`GAIN`, these two rates are chosen, both
  multiplied by the same factor as ``final_lr``, and ``gamma`` is :data:`SLOW` / steps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Decision", "Trial", "decide"]

FACTOR = math.sqrt(10)
"""Between neighbouring rates."""
SHARE = 2 / 3
"""Of the decrease at Adam's best rate. A trial is shorter than the run, so its best rate is too large for the run; and
the curve is flat there, so the best rate depends on chance."""
GAIN = 1 / 80
"""Of the decrease: the smallest gain for which a larger ``lr``, or slow bounds, are chosen. What gains little in a
short trial can hurt in a long run: with 1.2 % of the decrease it hurt on the demo's LSTM of three layers, with 1.3 % it
helped on MNIST."""
HORIZON = 0.25
"""The best constant rate does not depend on the number of steps T where the loss is smooth, and falls as T^(−1/2) where
gradients are noisy. This is the middle."""
FAST, SLOW = 10.0, 0.25
"""γ·steps. FAST: the bounds are within a factor of 2 of ``final_lr`` after a tenth of the run, within 10 % at its end.
SLOW: within a factor of 5 at the end, for losses that Adam lowers faster than SGD throughout, as with batch
normalization in a run of a few hundred steps."""


@dataclass(frozen=True)
class Trial:
    """One short run."""

    kind: str
    """What it tries. "lr": a rate of Adam. "final_lr": a final rate of AdaBound that becomes SGD within the trial.
    "raised": the same at the best final rate, with a larger lr. "slow": with that lr, and slow bounds around the mean
    of Adam's rates α/√v."""
    rate: float
    """``lr`` for "lr" and "raised", ``final_lr`` for the others."""
    losses: tuple[float, ...]
    """The loss of every step; the last one is not finite if the trial was stopped there."""
    repeat: int = 0


class Decision(NamedTuple):
    """The answer of :func:`decide`."""

    lr: float
    final_lr: float
    gamma: float
    reasons: dict[str, str]
    """Why ``lr``, ``final_lr`` and ``gamma`` are what they are."""


Scores = Mapping[float, float]
"""From a rate to the score of its trial; infinity for one whose loss was not finite."""


def last_third(losses: Sequence[float]) -> Sequence[float]:
    """The losses that a trial is judged by: at least two."""
    return losses[-max(2, len(losses) // 3) :]


def score(losses: Sequence[float], part: slice = slice(None)) -> float:
    """The mean of the last third of a trial, or of a part of it; infinity if the trial was stopped.

    >>> score([9.0, 9.0, 9.0, 9.0, 1.0, 3.0]), score([9.0, 9.0, math.nan])
    (2.0, inf)
    """
    return statistics.fmean(last_third(losses)[part]) if math.isfinite(losses[-1]) else math.inf


def loss_decreased(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the loss fell by more than twice the standard error of the mean difference; False for a single batch.

    >>> loss_decreased([2.3, 2.4, 2.2], [2.0, 2.1, 1.9]), loss_decreased([2.3, 2.4, 2.2], [2.2, 2.6, 2.1])
    (True, False)
    """
    differences = [x - y for x, y in zip(before, after, strict=True)]
    if len(differences) < 2:
        return False
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) > 2 * error


def explore(
    trial: Callable[[float], float], first: float, enough: Callable[[Scores], bool], most: int
) -> dict[float, float]:
    """Trial upwards from ``first`` until the loss rises again, then downwards until ``enough`` holds: ``most`` trials.

    >>> valley = lambda rate: abs(math.log10(rate) - 2)
    >>> scores = explore(valley, 1.0, enough=lambda scores: True, most=9)
    >>> [round(rate) for rate in scores]
    [1, 3, 10, 32, 100, 316]
    """
    scores = {first: trial(first)}
    while len(scores) < most and _top_is_best(scores):
        scores[max(scores) * FACTOR] = trial(max(scores) * FACTOR)
    while len(scores) < most and not (math.isfinite(min(scores.values())) and enough(scores)):
        scores[min(scores) / FACTOR] = trial(min(scores) / FACTOR)
    return scores


def _top_is_best(scores: Scores) -> bool:
    return math.isfinite(scores[max(scores)]) and scores[max(scores)] == min(scores.values())


def _limit(scores: Scores, start: float) -> float:
    """The score after :data:`SHARE` of the fall of the best trial."""
    return start - SHARE * (start - min(scores.values()))


def brackets_lr(scores: Scores, start: float) -> bool:
    """Whether the loss decreases too little at the smallest rate, so that :func:`smallest_sufficient` is above it."""
    return scores[min(scores)] > _limit(scores, start)


def brackets_final_lr(scores: Scores) -> bool:
    """Whether the smallest rate is not the best one."""
    return scores[min(scores)] > min(scores.values())


def smallest_sufficient(scores: Scores, start: float) -> float:
    """The smallest rate whose loss decreases from ``start`` at least :data:`SHARE` as far as at the best rate.

    Between two rates the score is taken as linear in the logarithm of the rate.

    >>> smallest_sufficient({0.1: 5.0, 1.0: 2.0, 10.0: 1.0, 100.0: 4.0}, start=7.0)      # two thirds of the fall: to 3
    0.464...
    """
    rates, limit = sorted(scores), _limit(scores, start)
    index = rates.index(min(rates, key=scores.__getitem__))
    while index and scores[rates[index - 1]] <= limit:
        index -= 1
    if not index or not math.isfinite(scores[rates[index - 1]]):
        return rates[index]
    low, high = rates[index - 1], rates[index]
    share = min(1.0, (scores[low] - limit) / (scores[low] - scores[high]))
    return float(low * (high / low) ** share)


def best_rate(scores: Scores) -> float:
    """The rate of the least loss: the vertex of the parabola through the best trial and its neighbours.

    >>> best_rate({1.0: 3.0, 10.0: 1.0, 100.0: 3.0})
    10.0
    """
    rates = sorted(scores)
    index = rates.index(min(rates, key=scores.__getitem__))
    best = rates[index]
    if index in (0, len(rates) - 1):
        return best
    left, middle, right = (scores[rate] for rate in rates[index - 1 : index + 2])
    if not math.isfinite(left + right) or left - 2 * middle + right <= 0:
        return best
    shift = 0.5 * (left - right) / (left - 2 * middle + right)
    return float(best * (rates[index + 1] / best) ** shift)


def is_better(
    untrained: Sequence[float], trials: Sequence[Trial], kind: str, others: Sequence[str], part: slice = slice(None)
) -> bool:
    """Whether the trial of a kind ends lower than the best of other kinds: significantly, and by :data:`GAIN`."""
    [one] = (trial.losses for trial in trials if trial.kind == kind)
    best = min((trial.losses for trial in trials if trial.kind in others), key=score)
    if not math.isfinite(one[-1]):
        return False
    gain, decrease = score(best, part) - score(one, part), score(untrained[: len(one)], part) - score(one, part)
    return gain >= GAIN * decrease and loss_decreased(last_third(best)[part], last_third(one)[part])


def decide(untrained: Sequence[float], trials: Sequence[Trial], steps: int, part: slice = slice(None)) -> Decision:
    """The answer from the trials of one repeat, judged by ``part`` of their last thirds."""
    adam, adabound, raised, slow = (
        _Compared.of(untrained, trials, kind, part) for kind in ("lr", "final_lr", "raised", "slow")
    )
    longer = (adabound.length / steps) ** HORIZON
    is_slow = is_better(untrained, trials, "slow", ("final_lr", "raised"), part)
    is_raised = is_better(untrained, trials, "raised", ("final_lr",), part)
    lr, final_lr, speed = smallest_sufficient(adam.scores, adam.start), best_rate(adabound.scores) * longer, FAST
    if is_slow:
        lr, final_lr, speed = lr * FACTOR * longer, slow.best * longer, SLOW
    elif is_raised:
        lr *= FACTOR
    times = f"times ({adabound.length}/{steps})^{HORIZON:g}"
    why_lr = _why_adams_rate(adam) + (
        f" Raised to {raised.best:.3g}, the rate of the trial with slow bounds, {times}."
        if is_slow
        else _why_raised(raised, is_raised)
    )
    why_final_lr = _why_slow(adabound, slow, times) if is_slow else _why_fast(adabound, slow, times)
    why_gamma = (
        f"{speed:g}/steps. At the end of the run the bounds are a factor of {1 + 1 / speed:.2g} from their limit."
    )
    return Decision(lr, final_lr, speed / steps, {"lr": why_lr, "final_lr": why_final_lr, "gamma": why_gamma})


class _Compared(NamedTuple):
    """The trials of one kind."""

    scores: Scores
    start: float
    """The score of the untrained model on the same batches."""
    length: int

    @classmethod
    def of(cls, untrained: Sequence[float], trials: Sequence[Trial], kind: str, part: slice) -> _Compared:
        losses = {trial.rate: trial.losses for trial in trials if trial.kind == kind}
        length = max(map(len, losses.values()))
        scores = {rate: score(values, part) for rate, values in losses.items()}
        return cls(scores, score(untrained[:length], part), length)

    @property
    def best(self) -> float:
        """The rate of the lowest score."""
        return min(self.scores, key=self.scores.__getitem__)

    @property
    def lowest(self) -> float:
        """The lowest score."""
        return self.scores[self.best]

    @property
    def decrease(self) -> str:
        """From where to where the loss decreased, and from which rate on it did not."""
        worse = [rate for rate in self.scores if rate > self.best and self.scores[rate] >= self.start]
        limit = f" (from {min(worse):.3g} on it did not decrease)" if worse else ""
        return f"from {self.start:.4g} to {self.lowest:.4g}{limit}"


def _why_adams_rate(adam: _Compared) -> str:
    return (
        f"in {adam.length} steps Adam's loss decreased most at {adam.best:.3g}, {adam.decrease}. Chosen: the smallest "
        f"rate with at least {SHARE:.0%} of that decrease, because a trial is shorter than the run and favours larger "
        "rates."
    )


def _why_raised(raised: _Compared, is_raised: bool) -> str:
    ended, therefore = ("ended", "raised to that") if is_raised else ("did not end", "not raised")
    return f" With {raised.best:.3g} AdaBound {ended} clearly lower, at {raised.lowest:.4g}: {therefore}."


def _why_final_rate(adabound: _Compared) -> str:
    return (
        f"AdaBound with gamma = {FAST:g}/{adabound.length}, so that it becomes SGD within {adabound.length} steps, "
        f"reached the lowest loss at {adabound.best:.3g}, {adabound.decrease}."
    )


def _why_fast(adabound: _Compared, slow: _Compared, times: str) -> str:
    is_vertex = best_rate(adabound.scores) != adabound.best
    rate = "the minimum of the parabola through it and its neighbours" if is_vertex else "that rate"
    return (
        f"{_why_final_rate(adabound)} Chosen: {rate}, {times}, because a longer run needs a smaller rate. Bounds that "
        f"close slowly around {slow.best:.3g}, the mean of Adam's rates lr/√v, did not end clearly lower, at "
        f"{slow.lowest:.4g}."
    )


def _why_slow(adabound: _Compared, slow: _Compared, times: str) -> str:
    return (
        f"{_why_final_rate(adabound)} Bounds that close slowly around {slow.best:.3g}, the mean of Adam's rates lr/√v, "
        f"ended clearly lower, at {slow.lowest:.4g}. Chosen: {slow.best:.3g}, {times}."
    )
