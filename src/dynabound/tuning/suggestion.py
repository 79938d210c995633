"""The answer of :func:`dynabound.tuning.suggest`: the numbers, the trials behind them, and the reasons."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dynabound._drawing import new_figure
from dynabound.tuning import decide
from dynabound.tuning.decide import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self

__all__ = ["LearningRateSuggestion", "Suggestion"]

_NAMES = {"lr": "Adam", "final_lr": "AdaBound"}


@dataclass(frozen=True)
class Suggestion:
    """Learning rates for AdaBound; ``AdaBound(model.parameters(), **suggestion.options)`` uses them."""

    lr: float
    final_lr: float
    gamma: float
    steps: int
    """The length of the planned training."""
    cost: int
    """Training steps of all trials together."""
    start: tuple[float, ...]
    """Losses of the untrained model on the batches of the trials, one repeat after another."""
    trials: tuple[Trial, ...]
    spread: Mapping[str, float]
    """For each number: the ratio of the largest to the smallest answer when only every other batch is judged."""
    notes: tuple[str, ...] = ()
    """What could not be settled."""
    given: Mapping[str, Any] | None = None
    """The optimizer's other arguments that the trials were run with."""

    arguments: ClassVar[tuple[str, str]] = "lr", "final_lr"
    """What the optimizer calls the two rates."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for the optimizer: the three numbers and what was given."""
        rates = dict(zip(self.arguments, (self.lr, self.final_lr), strict=True))
        return {**rates, "gamma": self.gamma, **(self.given or {})}

    def scores(self, tests: str, repeat: int = 0) -> dict[float, float]:
        """From a rate to the mean loss of the last third of its trial; infinity where it was not finite."""
        return {trial.rate: decide.score(trial.losses) for trial in self.trials
                if (trial.tests, trial.repeat) == (tests, repeat)}  # fmt: skip

    def length(self, tests: str) -> int:
        """Steps of a trial of that kind."""
        return max(len(trial.losses) for trial in self.trials if trial.tests == tests)

    @property
    def explanation(self) -> str:
        """Each number in a sentence or two."""
        rates, finals, long = self.scores("lr"), self.scores("final_lr"), self.length("final_lr")
        lr, final_lr = self.arguments
        [(adams, slow)], closed = self.scores("slow").items(), self.gamma * self.steps
        repeats = 1 + max(trial.repeat for trial in self.trials)
        lines = [
            f"{lr} = {self.lr:.3g}: in {self.length('lr')} steps Adam's loss fell furthest at {_best(rates):.3g}, "
            f"{self._fall('lr')}. Taken: the smallest rate that falls at least {decide.SHARE:.0%} as far, because a "
            f"trial is shorter than training and prefers larger rates. {self._raised(closed < 1)}",
            f"{final_lr} = {self.final_lr:.3g}: AdaBound, its whole course compressed into {long} steps, ended lowest "
            f"at {_best(finals):.3g}, {self._fall('final_lr')}. {self._taken(adams, slow, closed < 1)}",
            f"gamma = {self.gamma:.3g}: {closed:.2g}/steps. At the end of the training the bounds are a factor of "
            f"{1 + 1 / closed:.2g} from {final_lr}.",
            f"Spread: judged on every other batch, {lr} differs by a factor of {self.spread['lr']:.2g}, {final_lr} by "
            f"{self.spread['final_lr']:.2g}. Cost: {self.cost} training steps.",
        ]
        if repeats > 1:
            lines.insert(0, f"Geometric means over {repeats} repeats; the trials below are those of the first.")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _raised(self, is_slow: bool) -> str:
        """Whether the rate was raised, and why."""
        [(rate, loss)] = self.scores("raised").items()
        if is_slow:
            return f"Raised to {rate:.3g}, at which slow bounds were tried, times {self._longer()}."
        pays = self._pays("raised", "final_lr")
        return (
            f"AdaBound {'ended' if pays else 'did not end'} clearly lower at {rate:.3g} ({loss:.4g}): "
            f"{'raised to that' if pays else 'not raised'}."
        )

    def _taken(self, adams_rate: float, slow: float, is_slow: bool) -> str:
        """Which final rate was taken, and why."""
        trial = (
            f"Bounds that close slowly around {adams_rate:.3g}, the mean of Adam's rates lr/√v, "
            f"{'ended' if self._pays('slow', 'final_lr', 'raised') else 'did not end'} clearly lower: at {slow:.4g}."
        )
        if is_slow:
            return f"{trial} Taken: that rate, times {self._longer()}, and slow bounds."
        finals = self.scores("final_lr")
        inner = decide.best_rate(finals) != _best(finals)
        rate = "the minimum of the parabola through it and its neighbours" if inner else "that rate"
        return f"Taken: {rate}, times {self._longer()}, because a longer training needs a smaller rate. {trial}"

    def _pays(self, tests: str, *others: str) -> bool:
        """Whether a trial of the first repeat ended clearly lower than all of other kinds."""
        return decide.is_better(self.start, [trial for trial in self.trials if not trial.repeat], tests, others)

    def _longer(self) -> str:
        return f"({self.length('final_lr')}/{self.steps})^{decide.HORIZON:g}"

    def _fall(self, tests: str) -> str:
        """From where to where the loss fell, and from which rate on it did not."""
        scores, start = self.scores(tests), decide.score(self.start[: self.length(tests)])
        worse = [rate for rate in scores if rate > _best(scores) and scores[rate] >= start]
        limit = f", and not at all from {min(worse):.3g} on" if worse else ""
        return f"from {start:.4g} to {min(scores.values()):.4g}{limit}"

    def __str__(self) -> str:
        return self.explanation

    def _repr_html_(self) -> str:
        numbers = "".join(f"<tr><th>{name}</th><td>{value:.3g}</td></tr>"
                          for name, value in zip((*self.arguments, "gamma"), (self.lr, self.final_lr, self.gamma),
                                                 strict=True))  # fmt: skip
        text = html.escape(self.explanation).replace("\n", "<br>")
        return f"<table>{numbers}</table><p>{text}</p>"

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON; a loss that is not finite becomes None."""
        values = asdict(self)
        values["start"] = list(self.start)
        values["notes"] = list(self.notes)
        values["trials"] = [
            {**asdict(trial), "losses": [loss if math.isfinite(loss) else None for loss in trial.losses]}
            for trial in self.trials
        ]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The suggestion of a :meth:`to_dict`."""
        if "races" in values:  # as version 0.2 called the trials
            values = {("trials" if name == "races" else name): value for name, value in values.items()}
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"fields {sorted(set(values) ^ known)}: a suggestion has exactly {', '.join(sorted(known))}"
            )
        trials = tuple(
            Trial(**{**trial, "losses": tuple(math.nan if loss is None else loss for loss in trial["losses"])})
            for trial in values["trials"]
        )
        given = {key: tuple(value) if isinstance(value, list) else value
                 for key, value in (values["given"] or {}).items()}  # fmt: skip
        return cls(**{**values, "trials": trials, "start": tuple(values["start"]), "notes": tuple(values["notes"]),
                      "given": given})  # fmt: skip

    def figure(self) -> Figure:
        """Loss against rate for both kinds of trials, with the choices marked. Needs matplotlib."""
        figure = new_figure(8, 3.2)
        for axes, tests in zip(figure.subplots(1, 2), _NAMES, strict=True):
            chosen, start = getattr(self, tests), decide.score(self.start[: self.length(tests)])
            for repeat in sorted({trial.repeat for trial in self.trials}):
                scores = self.scores(tests, repeat)
                highest = start + 2 * abs(start - min(scores.values()))  # one that diverged would flatten the others
                rates = sorted(rate for rate, loss in scores.items() if loss < highest)
                label = "" if repeat else f"{_NAMES[tests]}, tried"
                axes.plot(rates, [scores[rate] for rate in rates], "o-", color="#0072B2", label=label)
            axes.axhline(start, color="#999999", linestyle=":", label="untrained")
            axes.axvline(chosen, color="#D55E00", label=f"taken: {chosen:.3g}")
            axes.set(xscale="log", xlabel=tests, ylabel=f"loss after {self.length(tests)} steps")
            axes.tick_params(axis="x", which="minor", labelsize=7, labelrotation=45)
            axes.legend()
        return figure


class LearningRateSuggestion(Suggestion):
    """A suggestion whose options have the names of Optax and Keras: ``learning_rate``, ``final_learning_rate``."""

    arguments: ClassVar[tuple[str, str]] = "learning_rate", "final_learning_rate"


def _best(scores: Mapping[float, float]) -> float:
    return min(scores, key=scores.__getitem__)
