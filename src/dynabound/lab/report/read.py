"""A study's stored runs, read once: the methods of each panel with all their seeds, and their learning rates."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, parse_json
from dynabound.lab.studies.plan import StoredRun, StoredRuns, resolve_rows
from dynabound.lab.studies.recipes import Row, Study
from dynabound.lab.studies.search import Search, runs_to
from dynabound.lab.studies.workloads import FIXED
from dynabound.lab.tasks import optimizers
from dynabound.lens import effective_lr
from dynabound.lens.draw import choose_kernels
from dynabound.tuning import Suggestion

log = logging.getLogger(__name__)
_EXTREMES = (1e-2, 1e3)
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Curve:
    """A method of a study: all its seeds, and the search that chose its learning rate."""

    row: Row
    spec: RunSpec
    seeds: tuple[StoredRun, ...]
    search: Search | None = None
    trials: tuple[StoredRun, ...] = ()
    """The runs of the search without a result that are not new: failed, damaged, stopped or running."""
    suggestion: Suggestion | None = None
    """The suggestion that the learning rate comes from, if it was suggested."""

    @property
    def label(self) -> str:
        """The method's name."""
        return self.row.label

    @property
    def ended(self) -> bool:
        """Whether every seed finished or diverged."""
        return bool(self.seeds) and all(seed.state in ENDED for seed in self.seeds)

    @property
    def finished(self) -> list[StoredRun]:
        """The seeds that finished."""
        return [seed for seed in self.seeds if seed.state == "finished"]

    @property
    def diverged(self) -> bool:
        """Whether any seed diverged."""
        return any(seed.state == "diverged" for seed in self.seeds)

    @property
    def failed_trials(self) -> list[StoredRun]:
        """The runs that the search continued without."""
        known = {seed.spec.name for seed in self.seeds}
        tried = {spec.name for spec, _ in self.search.tried} - known if self.search else set()
        return [run for run in self.trials if run.spec.name in tried]

    @property
    def steps(self) -> int:
        """Training steps of a run that finished; 0 if none did."""
        return int(self.finished[0].metrics[-1]["step"]) if self.finished else 0

    @property
    def search_runs(self) -> int:
        """Runs of the search for the learning rate, here or beforehand; 0 if it was not searched for."""
        if self.search:
            return len(self.search.tried) + len(self.search.wanted)
        row, fixed = self.row, FIXED[self.spec.scale].get(self.row.workload, {})
        return runs_to(self.spec) if row.lr is None and not row.suggest and row.optimizer in fixed else 0

    @property
    def tuning_steps(self) -> int:
        """Training steps spent on finding the learning rate: those of its search, or of its suggestion."""
        if self.suggestion:
            return self.suggestion.cost
        return self.search_runs * self.steps * self.row.searched(self.spec.scale).epochs // self.spec.epochs

    @property
    def metric(self) -> str:
        """What is measured, with its unit."""
        return "perplexity" if self.spec.text else "accuracy (%)"

    def final(self, split: str = "test") -> list[float]:
        """The metric of the last epoch, of every seed that finished."""
        return [seed.series(split)[-1] for seed in self.finished]

    def best(self) -> list[float]:
        """The best test metric of any epoch, of every seed that finished."""
        choose = min if self.spec.text else max
        return [choose(seed.series("test")) for seed in self.finished]


Panels = dict[str, dict[str, Curve]]
"""Curves by panel and label."""


@dataclass(frozen=True)
class SampledRates:
    """Figure 1's data: nine 3×3 kernels from the first layer to the last, a bias, and the share of extreme rates."""

    step: int
    kernels: dict[str, list[list[float]]]
    bias: dict[str, list[float]]
    min: float
    max: float
    below: float
    """The share of all rates below 0.01."""
    above: float
    """The share of all rates above 1000."""


@dataclass(frozen=True)
class RateEvolution:
    """The last figure's data: min, median and max of two layers, and the bounds, epoch by epoch."""

    layers: dict[str, dict[str, list[float]]]
    lower: list[float]
    upper: list[float]
    final_lr: float


@dataclass(frozen=True)
class StudyRuns:
    """Everything that is known about a study: what statistics, claims, tables and figures are computed from."""

    panels: Panels
    sampled: dict[str, SampledRates] = field(default_factory=dict)
    """Learning rates at the end of training, by method."""
    evolution: RateEvolution | None = None

    @property
    def curves(self) -> list[Curve]:
        """The curves of all panels."""
        return [curve for curves in self.panels.values() for curve in curves.values()]


def read_study(study: Study, scale: str, runs: StoredRuns) -> StudyRuns:
    """The study's curves, and the learning rates that its figures show."""
    panels: Panels = {}
    for row, found, specs in resolve_rows(study, scale, runs, runs.losses()):
        best = specs[0] if specs else (found and found.best) or row.spec(scale)
        suggested = runs.suggestion(row.bounded(scale)) if row.suggested(scale) else None
        seeds = tuple(runs.read(spec) for spec in specs)
        panels.setdefault(row.panel, {})[row.label] = Curve(row, best, seeds, found, _trials(found, runs), suggested)
    found_rates = StudyRuns(panels)
    if study.name == "learning-rates":
        sampled = {curve.label: _sample_rates(curve, runs) for curve in found_rates.curves}
        return StudyRuns(panels, {label: rates for label, rates in sampled.items() if rates})
    if study.name == "rate-evolution":
        return StudyRuns(panels, evolution=_rate_evolution(found_rates.curves[0]))
    return found_rates


def _trials(found: Search | None, runs: StoredRuns) -> tuple[StoredRun, ...]:
    if found is None:
        return ()
    read = [runs.read(spec) for spec in (*(spec for spec, loss in found.tried if math.isinf(loss)), *found.wanted)]
    return tuple(run for run in read if run.state not in (*ENDED, "new"))


def _sample_rates(curve: Curve, runs: StoredRuns) -> SampledRates | None:
    """Figure 1's data from the checkpoint of the first seed; None if that run has not finished.

    The parameters are read from the checkpoint too, so neither the model nor its data is needed.
    """
    if not curve.finished or runs.store is None:
        return None
    try:
        state = runs.store.run(curve.spec).load_checkpoint()
        return None if state is None else _sample(curve.spec, state)
    except (LabError, LookupError, RuntimeError, TypeError, ValueError) as error:  # another run's, or forged
        log.warning("run %s: its learning rates are not shown (%s)", curve.spec.name, error)
        return None


def _sample(spec: RunSpec, state: dict[str, Any]) -> SampledRates:
    params = {name: torch.nn.Parameter(value) for name, value in state["model"].items() if not name.endswith(_BUFFERS)}
    optimizer = optimizers.build(
        spec.optimizer, params.values(), float(spec.lr or 0), spec.weight_decay or 0, spec.options
    )
    optimizer.load_state_dict(state["optimizer"])
    rates = {name: effective_lr(optimizer, param).double() for name, param in params.items()}
    *kernels, bias = choose_kernels({name: value.shape for name, value in rates.items()})
    flat = torch.cat([value.flatten() for value in rates.values()])
    return SampledRates(
        step=state["step"],
        kernels={name: rates[name][0, 0].tolist() for name in kernels},
        bias={bias: rates[bias][:10].tolist()},
        min=flat.min().item(),
        max=flat.max().item(),
        below=(flat < _EXTREMES[0]).double().mean().item(),
        above=(flat > _EXTREMES[1]).double().mean().item(),
    )


def _rate_evolution(curve: Curve) -> RateEvolution | None:
    """The last figure's data from the metrics of the first seed that finished; None if none has."""
    if not curve.finished:
        return None
    metrics = curve.finished[0].metrics
    shared = set.intersection(*(set(line.get("rates", ())) for line in metrics))
    names = [name for name in metrics[0].get("rates", ()) if name in shared and name.endswith("conv1.weight")]
    if not names:
        return None
    layers = {}
    for name in (names[len(names) // 4], names[3 * len(names) // 4]):
        lines = [line["rates"][name] for line in metrics]
        layers[name] = {key: [line[i] for line in lines] for key, i in (("min", 0), ("median", 2), ("max", 4))}
    return RateEvolution(
        layers,
        lower=[line["lower"] for line in metrics],
        upper=[line["upper"] for line in metrics],
        final_lr=curve.spec.options.get("final_lr", 0.1) * metrics[-1]["lr"] / metrics[0]["lr"],
    )


_AUTHORS = "authors-cifar10.json"
"""In the folder of a ledger: ``origin``, and ``curves`` from "network/optimizer" to settings and accuracies."""
_LABELS = {"sgd": "SGDM", "adagrad": "AdaGrad", "adam": "Adam", "amsgrad": "AMSGrad", "adabound": "AdaBound",
           "amsbound": "AMSBound"}  # fmt: skip


@dataclass(frozen=True)
class Authors:
    """The curves that the paper's authors published for CIFAR-10."""

    panels: dict[str, list[tuple[str, list[float], list[float]]]]
    """Of each network, the methods with their training and test accuracies."""
    note: str


def read_authors(folder: Path) -> Authors | None:
    """The authors' curves in the folder of a ledger; None if it has none."""
    path = folder / _AUTHORS
    if not path.exists():
        return None
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    finals = []
    try:
        found = parse_json(path.read_bytes(), dict)
        for optimizer, label in _LABELS.items():
            for name, curve in found["curves"].items():
                network, _, own = name.partition("/")
                if own == optimizer:
                    train, test = ([float(value) for value in curve[split]] for split in ("train", "test"))
                    panels.setdefault(network, []).append((label, train, test))
                    settings = re.sub("-?([a-z_]+)", r", \1 ", curve["settings"])[2:].replace("-", " and ")
                    finals.append(f"{network}, {label} {test[-1]:.2f} ({settings})")
        origin = str(found["origin"])
    except (OSError, DamagedError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{path}: is damaged ({error}); restore the file from its repository") from None
    return Authors(panels, (
        f"The panels marked \"the authors'\" show the authors' own curves. {origin} These are single runs of the full "
        "networks on all images for 200 epochs, and AdaBound and AMSBound have their default learning rates; ours have "
        "the settings below. Therefore compare only the order of the methods. The authors' final test accuracies and "
        f"learning rates: {'; '.join(sorted(finals))}."
    ))  # fmt: skip
