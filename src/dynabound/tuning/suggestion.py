"""The answer of :func:`dynabound.tuning.suggest`: the numbers, the trials behind them, and the reasons."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dynabound._drawing import new_figure
from dynabound._files import write_whole
from dynabound.tuning.decide import Trial, score, start_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.optim import Optimizer
    from typing_extensions import Self

_LOSSES = ("losses", "validation")
_SHOWN = {
    "lr": {"lr": "Adam"},
    "final_lr": {
        "final_lr": "SGD",
        "closing": "AdaBound, closing",
        "late": "AdaBound, late",
        "falling": "AdaBound",
        "wide": "AdaBound",
        "steady": "AdaBound, wide",
    },
}
"""The trials that the figure shows: kinds and labels, for each of the rates."""


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
    """Losses of the untrained model on the batches that trials are judged by, one repeat after another."""
    trials: tuple[Trial, ...]
    spread: Mapping[str, float]
    """For each number: the ratio of the largest to the smallest answer when only every other batch is judged."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why ``lr``, ``final_lr`` and ``gamma`` are what they are; "compared": AdaBound beside Adam in a trial."""
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
        return {trial.rate: score(trial) for trial in self.trials if (trial.kind, trial.repeat) == (kind, repeat)}

    def length(self, kind: str) -> int:
        """Steps of a trial of that kind."""
        return max(len(trial.losses) for trial in self.trials if trial.kind == kind)

    @property
    def explanation(self) -> str:
        """The reason for each number, how certain the answer is, and what it cost."""
        lr, final_lr = self.arguments
        names = {"lr": lr, "final_lr": final_lr, "gamma": "gamma", "compared": "AdaBound or Adam"}
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

    def apply(self, optimizer: Optimizer) -> None:
        """Set the three numbers in an AdaBound; param groups with different learning rates keep their ratios.

        Example:
            >>> import torch
            >>> from dynabound import AdaBound
            >>> groups = [{"params": [torch.zeros(1)], "lr": 1e-4}, {"params": [torch.zeros(1)], "lr": 1e-3}]
            >>> optimizer = AdaBound(groups)
            >>> Suggestion(0.02, 1.0, 0.001, 1000, 0, (), (), {}).apply(optimizer)
            >>> [(group["lr"], group["final_lr"]) for group in optimizer.param_groups]
            [(0.002, 0.1), (0.02, 1.0)]
        """
        for group in optimizer.param_groups:
            if "final_lr" not in group or group["bounds"] != "harmonic":
                raise ValueError(f"optimizer={type(optimizer).__name__}: must be an AdaBound with harmonic bounds")
            if "initial_lr" in group:
                raise ValueError("optimizer: has a scheduler, which keeps its own rates; apply the suggestion before")
        if optimizer.state:
            raise ValueError("optimizer: has made steps; apply the suggestion before training")
        for group, new in zip(
            optimizer.param_groups, scaled_groups(optimizer.param_groups, self.lr, self.final_lr), strict=True
        ):
            # A tensor stays the same one, as a scheduler leaves it, because a compiled step has captured it.
            lr = group["lr"].fill_(new["lr"]) if hasattr(group["lr"], "fill_") else new["lr"]
            group.update(lr=lr, base_lr=float(lr), final_lr=new["final_lr"], gamma=self.gamma)

    def save(self, path: str | Path) -> None:
        """Write the suggestion as JSON."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_whole(Path(path), f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The suggestion that :meth:`save` wrote; ValueError if the file holds something else."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"path={str(path)!r}: must be a file written by Suggestion.save ({error})") from error

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON; a loss that is not finite becomes None."""
        values = asdict(self)
        values["start"] = list(self.start)
        values["notes"] = list(self.notes)
        values["trials"] = [
            {
                **asdict(trial),
                **{name: [loss if math.isfinite(loss) else None for loss in getattr(trial, name)] for name in _LOSSES},
            }
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
            Trial(**{**trial, **{name: tuple(math.nan if loss is None else loss for loss in trial.get(name, ()))
                                 for name in _LOSSES}})
            for trial in values["trials"]
        )  # fmt: skip
        given = {key: tuple(value) if isinstance(value, list) else value
                 for key, value in (values["given"] or {}).items()}  # fmt: skip
        return cls(**{**values, "trials": trials, "start": tuple(values["start"]), "notes": tuple(values["notes"]),
                      "given": given})  # fmt: skip

    def figure(self) -> Figure:
        """Loss against rate of all trials, with the choices marked. Needs matplotlib."""
        figure = new_figure(8, 3.2)
        adam = min((trial for trial in self.trials if trial.kind == "lr"), key=score)
        start = start_of(self.start, adam)
        untrained = sum(start) / len(start)
        highest = untrained + abs(untrained - score(adam))  # one that diverged would flatten the others
        for axes, name in zip(figure.subplots(1, 2, sharey=True), _SHOWN, strict=True):
            for (kind, label), style in zip(_SHOWN[name].items(), ("o-", "s", "^", "D", "v", "P"), strict=False):
                for repeat in sorted({trial.repeat for trial in self.trials if trial.kind == kind}):
                    scores = self.scores(kind, repeat)
                    rates = sorted(scores)
                    axes.plot(rates, [min(scores[rate], highest) for rate in rates], style,
                              label="" if repeat else label)  # fmt: skip
            if name == "final_lr":
                axes.axhline(score(adam), color="#0072B2", linestyle="--", label="best Adam")
            axes.axhline(untrained, color="#999999", linestyle=":", label="untrained")
            axes.axvline(getattr(self, name), color="#D55E00", label=f"chosen: {getattr(self, name):.3g}")
            axes.set(xscale="log", xlabel=name, ylabel=f"loss after {len(adam.losses)} steps")
            ticks = sorted(self.scores(name)) or sorted(self.scores("falling"))
            axes.set_xticks(ticks, [f"{rate:.2g}" for rate in ticks])  # powers of ten may all lie outside
            axes.tick_params(axis="x", which="minor", labelbottom=False)
            axes.legend(fontsize=7)
        return figure


class LearningRateSuggestion(Suggestion):
    """A suggestion whose options have the names of Optax and Keras: ``learning_rate``, ``final_learning_rate``."""

    arguments: ClassVar[tuple[str, str]] = "learning_rate", "final_learning_rate"


def scaled_groups(groups: Sequence[Mapping[str, Any]], lr: float, final_lr: float) -> list[dict[str, Any]]:
    """The groups with these rates for the group of the largest ``lr``, and in the same ratio for the others."""
    rates = [float(group.get("lr", 0.0)) for group in groups]  # some may be tensors
    largest = max(rates)
    ratios = [rate / largest if largest else 1.0 for rate in rates]
    return [{**group, "lr": lr * ratio, "final_lr": final_lr * ratio}
            for group, ratio in zip(groups, ratios, strict=True)]  # fmt: skip


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a suggestion that was stored when trials were called races, and reasons were not stored."""
    trials = [{"kind" if name == "tests" else name: value for name, value in race.items()} for race in values["races"]]
    kept = {name: value for name, value in values.items() if name != "races"}
    return {**kept, "trials": trials, "reasons": {}}
