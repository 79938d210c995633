"""The answer of :func:`dynabound.tuning.suggest`: the numbers, the trials behind them, and the reasons."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dynabound._drawing import new_figure
from dynabound.tuning.decide import Trial, score

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
    """The length of the planned run."""
    cost: int
    """Training steps of all trials together."""
    start: tuple[float, ...]
    """Losses of the untrained model on the batches of the trials, one repeat after another."""
    trials: tuple[Trial, ...]
    spread: Mapping[str, float]
    """For each number: the ratio of the largest to the smallest answer when only every other batch is judged."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why ``lr``, ``final_lr`` and ``gamma`` are what they are."""
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

    def scores(self, kind: str, repeat: int = 0) -> dict[float, float]:
        """From a rate to the mean loss of the last third of its trial; infinity where it was not finite."""
        return {
            trial.rate: score(trial.losses) for trial in self.trials if (trial.kind, trial.repeat) == (kind, repeat)
        }

    def length(self, kind: str) -> int:
        """Steps of a trial of that kind."""
        return max(len(trial.losses) for trial in self.trials if trial.kind == kind)

    @property
    def explanation(self) -> str:
        """The reason for each number, how certain the answer is, and what it cost."""
        lr, final_lr = self.arguments
        names = {"lr": lr, "final_lr": final_lr, "gamma": "gamma"}
        repeats = 1 + max((trial.repeat for trial in self.trials), default=0)
        lines = [f"{names[number]}: {reason}" for number, reason in self.reasons.items()]
        if repeats > 1:
            lines.insert(0, f"Geometric means over {repeats} repeats; the reasons are those of one of them.")
        lines.append(
            f"Spread: judged on every other batch, {lr} differs by a factor of {self.spread['lr']:.2g}, {final_lr} by "
            f"{self.spread['final_lr']:.2g}. Cost: {self.cost} training steps."
        )
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _numbers(self) -> dict[str, str]:
        """The three numbers by the names of the optimizer's arguments."""
        values = zip((*self.arguments, "gamma"), (self.lr, self.final_lr, self.gamma), strict=True)
        return {name: f"{value:.3g}" for name, value in values}

    def __str__(self) -> str:
        numbers = "".join(f"{name} = {value}\n" for name, value in self._numbers().items())
        return f"{numbers}\n{self.explanation}"

    def _repr_html_(self) -> str:
        numbers = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._numbers().items())
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
        if "races" in values:
            values = _renamed(values)
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
        for axes, kind in zip(figure.subplots(1, 2), _NAMES, strict=True):
            chosen, start = getattr(self, kind), score(self.start[: self.length(kind)])
            for repeat in sorted({trial.repeat for trial in self.trials}):
                scores = self.scores(kind, repeat)
                highest = start + 2 * abs(start - min(scores.values()))  # one that diverged would flatten the others
                rates = sorted(rate for rate, loss in scores.items() if loss < highest)
                label = "" if repeat else f"{_NAMES[kind]}, tried"
                axes.plot(rates, [scores[rate] for rate in rates], "o-", color="#0072B2", label=label)
            axes.axhline(start, color="#999999", linestyle=":", label="untrained")
            axes.axvline(chosen, color="#D55E00", label=f"chosen: {chosen:.3g}")
            axes.set(xscale="log", xlabel=kind, ylabel=f"loss after {self.length(kind)} steps")
            axes.tick_params(axis="x", which="minor", labelsize=7, labelrotation=45)
            axes.legend()
        return figure


class LearningRateSuggestion(Suggestion):
    """A suggestion whose options have the names of Optax and Keras: ``learning_rate``, ``final_learning_rate``."""

    arguments: ClassVar[tuple[str, str]] = "learning_rate", "final_learning_rate"


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a suggestion that was stored when trials were called races, and reasons were not stored."""
    trials = [{"kind" if name == "tests" else name: value for name, value in race.items()} for race in values["races"]]
    kept = {name: value for name, value in values.items() if name != "races"}
    return {**kept, "trials": trials, "reasons": {}}
