"""The table of a panel: the results of each method, its settings, and its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dynabound.lab.report.evidence import error_of_one
from dynabound.lab.report.results import Curve
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.studies.recipes import REFERENCES

__all__ = ["MethodRow", "MethodTable", "metric_name", "ranks", "step_size", "table"]


@dataclass(frozen=True)
class MethodRow:
    """A method's numbers: means over seeds, None where there is none."""

    method: str
    settings: str
    final: float | None
    final_spread: float | None
    """The standard deviation over seeds."""
    best: float | None
    best_spread: float | None
    train: float | None
    rank: int | None
    level: float | None
    """The final test metric of Adam's best run."""
    epochs: float | None
    """Epochs until that level is reached; None unless every seed reaches it."""
    seconds: float | None
    reached: str
    states: list[str]
    final_error: float | None = None
    """The standard deviation of one run's result: over seeds, and over test sets (binomial)."""
    best_error: float | None = None


@dataclass(frozen=True)
class MethodTable:
    """The methods of a panel."""

    name: str
    metric: str
    rows: tuple[MethodRow, ...]


def metric_name(curve: Curve) -> str:
    """What is measured, with its unit."""
    return "perplexity" if curve.spec.text else "accuracy (%)"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(name: str, methods: list[Curve]) -> MethodTable:
    """A row per method: final and best metric, rank, and the time to the level of the best Adam run."""
    places = ranks([curve for curve in methods if curve.row.label not in REFERENCES])
    adam = next((curve.final() for curve in methods if curve.row.label == "Adam"), [])
    level = (min if methods[0].spec.text else max)(adam, default=None)
    rows = []
    for curve in methods:
        reached = [seed.reached(level) for seed in curve.finished] if level is not None else []
        times = [pair for pair in reached if pair]
        complete = bool(times) and len(times) == len(curve.seeds)
        rows.append(MethodRow(
            method=curve.row.label,
            settings=step_size(curve),
            final=_finite(mean(curve.final())),
            final_spread=_finite(std(curve.final())),
            best=_finite(mean(curve.best())),
            best_spread=_finite(std(curve.best())),
            train=_finite(mean(curve.final("train"))),
            rank=places.get(curve.row.label),
            level=level,
            epochs=mean([float(epoch) for epoch, _ in times]) if complete else None,
            seconds=mean([seconds for _, seconds in times]) if complete else None,
            reached=f"{len(times)} of {len(curve.seeds)}",
            states=[seed.state for seed in curve.seeds],
            final_error=_finite(error_of_one(curve.spec.task, curve.final())),
            best_error=_finite(error_of_one(curve.spec.task, curve.best())),
        ))  # fmt: skip
    return MethodTable(name, metric_name(methods[0]), tuple(rows))


def ranks(methods: list[Curve]) -> dict[str, int]:
    """Ranks by the final mean, shared by equals; a method that diverged is last, one without a result has no rank."""
    losses = {
        curve.row.label: math.inf if curve.diverged else round(mean(curve.final()) * (1 if curve.spec.text else -1), 6)
        for curve in methods
        if curve.finished or curve.diverged
    }
    return {label: 1 + sum(other < loss for other in losses.values()) for label, loss in losses.items()}


def step_size(curve: Curve) -> str:
    """The step size and related settings of a method, and how many were tried."""
    options = {key: value for key, value in curve.spec.options.items() if key in ("betas", "final_lr", "gamma")}
    pairs: list[tuple[str, Any]] = [("lr", f"{curve.spec.lr:g}"), *options.items()]
    text = ", ".join(f"{key} {value}" for key, value in pairs)
    if not (curve.search and curve.search.tried):
        return text
    failed = f", {len(curve.lost)} failed" if curve.lost else ""
    return f"{text} (best of {len(curve.search.tried) - len(curve.lost)}{failed})"
