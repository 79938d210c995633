"""The rule: from short trials to learning rates and the reasons for them. Pure functions of rates and losses.

A trial is a short run with constant settings, from the model's weights, on the same batches as all others. It is judged
by the mean loss of its last third, or of validation batches.

* ``lr``: the smallest rate of Adam that is as good as the best in trials, but for :data:`MARGIN`.
* Bounds: the upper one falls as 1/t, from far above Adam's rates α/√v to what their mean should be in a longer run:
  (length of a trial / length of the run)^:data:`HORIZON` of it.
* If most of Adam's rates are far above their mean, SGD does not keep up with Adam, and the falling bound ends clearly
  higher than Adam, bounds stay wide, and ``lr`` is what a longer run needs.
* If SGD's loss decreases about as fast as Adam's, AdaBound is also tried with bounds that close around the best rate of
  SGD. They are chosen if it ends lower than Adam, significantly and by :data:`MARGIN`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FACTOR = math.sqrt(10)
"""Between neighbouring rates."""
LOWEST, HIGHEST = 1e-6, 10.0
"""The range of Adam's rates."""
HORIZON = 1 / 3
"""The best constant rate does not depend on the number of steps T where the loss is smooth, and falls as T^(−1/2) where
gradients are noisy. Between trials and runs of small tasks it was between 0 and 0.7, in the mean about 1/3."""
MARGIN = 0.01
"""Of the decrease at Adam's best rate: smaller differences do not count. For them ``lr`` does not become larger, and
bounds do not close around a rate of SGD."""
NEAR = 0.05
"""Of that decrease: how much worse a rate must be, so that smaller ones are not tried. Losses can have two valleys."""
KEEPS_UP = 0.85
"""Of that decrease: what SGD must reach in its first trial, otherwise no more of its rates are tried."""
SPEEDS = {"falling": 0.1, "closing": 10.0, "late": 1.0, "wide": 0.01, "steady": 0.001}
"""γ·steps of AdaBound's trials and of the run. falling: at the end of the run the bounds are still a factor of 11 from
``final_lr``, so that the lower one lifts no rate. closing: a factor of 2 after a tenth of the run, and 10 % at its end.
late: a factor of 2 at its end, for finish="sgd". wide: a factor of 100 at its end, for finish="adam". steady: of 1,000,
because the rates are uneven."""

_WIDE = "final_lr, so that they clip extreme rates only: Adam."
_ENDS = {
    "falling": "final_lr: Adam with a learning rate that the upper one lowers.",
    "wide": f"{_WIDE} A long run needs a schedule.",
    "steady": _WIDE,
}


@dataclass(frozen=True)
class Trial:
    """One short run."""

    kind: str
    """What it tries. "lr": a rate of Adam. "final_lr": a rate of SGD with averaged momentum. "closing", "late": bounds
    of AdaBound that close around the best rate of SGD. "falling": an upper bound that falls below the mean of Adam's
    rates α/√v. "wide": wide bounds around that mean. The one that was chosen is the last trial."""
    rate: float
    """``lr`` for "lr", ``final_lr`` for the others."""
    losses: tuple[float, ...]
    """The loss of every step; the last one is not finite if the trial was stopped there."""
    repeat: int = 0
    validation: tuple[float, ...] = ()
    """Losses of the validation batches at the end of the trial, if there are any."""

    def judged(self) -> Sequence[float]:
        """The losses that the trial is judged by."""
        return self.validation or last_third(self.losses)


class Decision(NamedTuple):
    """The answer of :func:`decide`."""

    lr: float
    final_lr: float
    gamma: float
    reasons: dict[str, str]
    """Why ``lr``, ``final_lr`` and ``gamma`` are what they are, and how AdaBound compares with Adam."""


Scores = Mapping[float, float]
"""From a rate to the score of its trial; infinity for one whose loss was not finite."""


def last_third(losses: Sequence[float]) -> Sequence[float]:
    """The losses of the last third of the steps: at least two."""
    return losses[-max(2, len(losses) // 3) :]


def score(trial: Trial, part: slice = slice(None)) -> float:
    """The mean of the losses that a trial is judged by, or of a part of them; infinity if the trial was stopped.

    >>> score(Trial("lr", 0.01, (9.0, 9.0, 9.0, 9.0, 1.0, 3.0))), score(Trial("lr", 10.0, (9.0, 9.0, math.nan)))
    (2.0, inf)
    """
    return statistics.fmean(trial.judged()[part]) if math.isfinite(sum(trial.judged())) else math.inf


def start_of(start: Sequence[float], trial: Trial) -> Sequence[float]:
    """The losses of the untrained model on the batches that the trial is judged by."""
    return start if trial.validation else last_third(start[: len(trial.losses)])


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How much lower the losses of ``other`` are in the mean, and the standard error; infinite for a single batch.

    >>> difference([2.5, 2.5, 2.5, 2.5], [2.0, 2.5, 2.0, 2.5])
    (0.25, 0.1443...)
    """
    differences = [x - y for x, y in zip(one, other, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return statistics.fmean(differences), error


def explore(
    trial: Callable[[float], float],
    first: float,
    start: float,
    most: int,
    lowest: float = 0.0,
    highest: float = math.inf,
    near: float = 0.0,
) -> dict[float, float]:
    """Trial upwards from ``first`` until the loss rises, then downwards until it rises: at most ``most`` trials.

    If the loss is above ``start``, that of the untrained model, the rate is too large: only downwards. There a loss
    above the least one by at most ``near`` of the decrease does not count as risen.

    >>> valley = lambda rate: abs(math.log10(rate) - 2)
    >>> [round(rate) for rate in explore(valley, 1.0, start=5.0, most=9)]
    [1, 3, 10, 32, 100, 316]
    """
    rate, scores = first, {first: trial(first)}
    while len(scores) < most and scores[rate] < start and _is_least(scores, rate) and rate * FACTOR < 1.01 * highest:
        rate *= FACTOR
        scores[rate] = trial(rate)
    rate = first
    while len(scores) < most and 1.01 * rate / FACTOR > lowest:
        least = min(scores.values())
        if least < start and scores[rate] > (least + near * (start - least) if near else least):
            break
        rate /= FACTOR
        scores[rate] = trial(rate)
    return scores


def _is_least(scores: Scores, rate: float) -> bool:
    """Whether the score of the rate is below all others."""
    return all(scores[rate] < score for other, score in scores.items() if other != rate)


def best_rate(scores: Scores, start: float) -> float:
    """The rate of the least loss: the vertex of the parabola through the best trial and its neighbours.

    Not if one of them ended above ``start``, the loss of the untrained model: how far it diverged says nothing.

    >>> best_rate({1.0: 2.0, 10.0: 1.0, 100.0: 3.0}, start=4.0), best_rate({1.0: 2.0, 10.0: 1.0, 100.0: 9.0}, start=4.0)
    (6.81..., 10.0)
    """
    rates = sorted(scores)
    index = rates.index(min(rates, key=scores.__getitem__))
    best = rates[index]
    if index in (0, len(rates) - 1):
        return best
    left, middle, right = (scores[rate] for rate in rates[index - 1 : index + 2])
    if max(left, right) > start or left - 2 * middle + right <= 0:
        return best
    shift = 0.5 * (left - right) / (left - 2 * middle + right)
    return float(best * (rates[index + 1] / best) ** shift)


def shorter(length: int, steps: int) -> float:
    """By how much the best constant rate is smaller in a run of ``steps`` than in a trial.

    >>> shorter(30, 240)
    0.5
    """
    return float((length / steps) ** HORIZON)


def smallest_rate(scores: Scores, start: float) -> float:
    """The smallest rate at which the loss decreases as far as at the best one, but for :data:`MARGIN`; interpolated.

    >>> round(smallest_rate({0.01: 2.02, 0.1: 2.0, 1.0: 2.1}, start=3.0), 3)
    0.032
    """
    rates = sorted(scores)
    best = min(scores.values())
    enough = best + MARGIN * (start - best)
    index = rates.index(min(rates, key=scores.__getitem__))
    while index and scores[rates[index - 1]] <= enough:
        index -= 1
    if index == 0:
        return rates[0]
    below, above = rates[index - 1 : index + 1]
    return float(above * (below / above) ** ((enough - scores[above]) / (scores[below] - scores[above])))


def best_of(trials: Sequence[Trial], kind: str) -> Trial:
    """The trial of a kind with the lowest score."""
    return min((trial for trial in trials if trial.kind == kind), key=score)


def is_lower(start: Sequence[float], one: Trial, other: Trial) -> bool:
    """Whether ``one`` ends lower than ``other``: by two standard errors and :data:`MARGIN` of the other's decrease."""
    if not math.isfinite(score(one)):
        return False
    gain, error = difference(other.judged(), one.judged())
    decrease, _ = difference(start_of(start, other), other.judged())
    return gain > max(2 * error, MARGIN * decrease)


def keeps_up(start: Sequence[float], sgd: Trial, adam: Trial) -> bool:
    """Whether the loss of SGD decreased about as far as Adam's."""
    before = statistics.fmean(start_of(start, adam))
    return before - score(sgd) >= KEEPS_UP * (before - score(adam))


def sgd_keeps_up(start: Sequence[float], trials: Sequence[Trial]) -> bool:
    """Whether any trial of SGD did."""
    adam = best_of(trials, "lr")
    return any(keeps_up(start, trial, adam) for trial in trials if trial.kind == "final_lr")


def decide(start: Sequence[float], trials: Sequence[Trial], steps: int, part: slice = slice(None)) -> Decision:
    """The answer from the trials of one repeat; its two rates are judged by ``part`` of the losses."""
    adam, shown = best_of(trials, "lr"), trials[-1]
    is_sgd, speed = shown.kind in ("closing", "late"), SPEEDS[shown.kind]
    is_scaled = is_sgd or shown.kind == "steady"
    length = len(adam.losses)
    factor = shorter(length, steps)
    tried = {kind: {trial.rate: score(trial, part) for trial in trials if trial.kind == kind}
             for kind in ("lr", "final_lr")}  # fmt: skip
    before = statistics.fmean(start_of(start, adam))
    lr = smallest_rate(tried["lr"], before) * (factor if is_scaled else 1)
    sgd = best_rate(tried["final_lr"], before) if is_sgd else math.nan
    final_lr = sgd * factor if is_sgd else shown.rate / adam.rate * lr
    longer = f"({length}/{steps})^{HORIZON:.2g}, because a longer run needs a smaller rate"
    reasons = {
        "lr": f"in {length} steps Adam's loss decreased most at {adam.rate:.3g}, from "
        f"{_digits(start_of(start, adam), adam)}. Chosen: the smallest rate that is as good, but for {MARGIN:.0%} of "
        f"the decrease{f', times {longer}' if is_scaled else ''}.",
        "final_lr": _why_sgd(trials, sgd, longer) if is_sgd else _why_adam(trials, longer),
    }
    reasons["gamma"] = f"{speed:g}/steps: at the end of the run the bounds are a factor of {1 + 1 / speed:.4g} from "
    reasons["gamma"] += _ENDS.get(shown.kind, "final_lr.")
    reasons["compared"] = _compare(start, shown, adam)
    return Decision(lr, final_lr, speed / steps, reasons)


def _digits(before: Sequence[float], trial: Trial) -> str:
    """From where to where the loss decreased, with enough digits to see it."""
    begin, end = statistics.fmean(before), score(trial)
    ratio = max(abs(begin), abs(end)) / (abs(begin - end) or 1.0)
    digits = 4 + max(0, math.floor(math.log10(ratio or 1.0))) if math.isfinite(ratio) else 4
    return f"{begin:.{digits}g} to {end:.{digits}g}"


def _why_sgd(trials: Sequence[Trial], rate: float, longer: str) -> str:
    best = best_of(trials, "final_lr")
    chosen = "that rate" if rate == best.rate else "the minimum of the parabola through it and its neighbours"
    return (
        f"in {len(best.losses)} steps of SGD with averaged momentum the loss was lowest at {best.rate:.3g}, "
        f"{score(best):.4g}. Chosen: {chosen}, times {longer}."
    )


def _why_adam(trials: Sequence[Trial], longer: str) -> str:
    if trials[-1].kind in ("wide", "steady"):
        ended = " An upper bound that falls ended clearly higher than Adam: most rates are above twice the mean."
        why = "the mean of Adam's rates lr/√v in its best trial, in proportion to lr."
        return why + (ended if trials[-1].kind == "steady" else "")
    why = f"the upper bound falls to the mean of Adam's rates lr/√v times {longer}."
    closing = [trial for trial in trials if trial.kind == "closing"]
    behind = [trial for trial in trials if trial.kind == "final_lr" and not closing]
    for trial in closing:
        why += f" Bounds that close around {trial.rate:.3g}, SGD's best rate, did not end clearly lower than Adam."
    for trial in behind:
        why += f" SGD with averaged momentum at {trial.rate:.3g} ended at {score(trial):.4g}, behind Adam."
    return why


def _compare(start: Sequence[float], shown: Trial, adam: Trial) -> str:
    """AdaBound as suggested beside Adam."""
    gain, error = difference(adam.judged(), shown.judged()) if math.isfinite(score(shown)) else (-math.inf, math.nan)
    told = f"{len(adam.losses)} steps end at {score(shown):.5g} with AdaBound and at {score(adam):.5g} with Adam at "
    told += f"{adam.rate:.3g}: a difference of {gain:.2g} ± {error:.2g}."
    if is_lower(start, shown, adam):
        return f"{told} AdaBound has an advantage over Adam here."
    return f"{told} AdaBound has no advantage over Adam here."
