"""Stored runs -> numbers, verdicts and figures. It reads the store and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynabound.lab.report import figures
from dynabound.lab.report.claims import CLAIMS, NOT_REPRODUCED, REPRODUCED, UNDECIDED, Check, Evidence, Panels, overall
from dynabound.lab.report.learning_rates import rate_evolution, sample_rates
from dynabound.lab.report.results import Curve, curves
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.plan import Seed
from dynabound.lab.studies.recipes import FIXED, REFERENCE, Study

__all__ = ["Failure", "MethodRow", "MethodTable", "Report", "StudyReport", "build"]


@dataclass(frozen=True)
class MethodRow:
    """A method's numbers: means over seeds, None where there is none."""

    method: str
    settings: str
    final: float | None
    final_spread: float | None
    best: float | None
    best_spread: float | None
    train: float | None
    rank: int | None
    level: float | None
    """The final test metric of Adam's best run."""
    epochs: float | None
    """Until that level is reached, if every seed reaches it."""
    seconds: float | None
    reached: str
    states: list[str]


@dataclass(frozen=True)
class MethodTable:
    """The methods of a panel."""

    name: str
    metric: str
    rows: tuple[MethodRow, ...]


@dataclass(frozen=True)
class Failure:
    """A run without a result."""

    run: str
    method: str
    state: str
    error: str


@dataclass(frozen=True)
class StudyReport:
    """A study's verdicts, numbers and figures."""

    name: str
    title: str
    claim: str
    verdict: str
    checks: tuple[Check, ...]
    tables: tuple[MethodTable, ...]
    runs: dict[str, int]
    """The number of runs in each state."""
    failures: tuple[Failure, ...]
    settings: tuple[str, ...]
    figures: tuple[figures.ReportFigure, ...] = field(default=())


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    scale: str
    out: str
    studies: tuple[StudyReport, ...]


def build(studies: Sequence[Study], scale: str, out: Path) -> Report:
    """The report of what is stored in ``out``, the folder of ``dynabound reproduce``."""
    store = Store(out / "runs")
    reports = (_study(study, scale, store) if study.rows else _theory(study, out / "theory") for study in studies)
    return Report(scale, str(out), tuple(reports))


def _study(study: Study, scale: str, store: Store) -> StudyReport:
    found = curves(study, scale, store)
    panels: Panels = {}
    for curve in found:
        panels.setdefault(curve.row.panel, {})[curve.row.label] = curve
    evidence = _evidence(study, panels, found, store)
    checks = CLAIMS[study.name](evidence)
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        verdict=overall(checks),
        checks=tuple(checks),
        tables=tuple(_table(name, list(methods.values())) for name, methods in panels.items()),
        runs=run_states(found),
        failures=tuple(failures(found)),
        settings=tuple(_settings(study, scale, found)),
        figures=tuple(_figures(study, found, evidence)),
    )


def _evidence(study: Study, panels: Panels, found: list[Curve], store: Store) -> Evidence:
    if study.name == "learning-rates":
        sampled = {curve.row.label: sample_rates(curve, store) for curve in found}
        return Evidence(panels, {label: rates for label, rates in sampled.items() if rates})
    return Evidence(panels, evolution=rate_evolution(found[0]) if study.name == "rate-evolution" else None)


def _metric(curve: Curve) -> str:
    return "perplexity" if curve.spec.text else "accuracy (%)"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(name: str, methods: list[Curve]) -> MethodTable:
    """A row per method: final and best metric, rank, and the time to the level of the best Adam run."""
    ranks = _ranks([curve for curve in methods if curve.row.label != REFERENCE])
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
            rank=ranks.get(curve.row.label),
            level=level,
            epochs=mean([float(epoch) for epoch, _ in times]) if complete else None,
            seconds=mean([seconds for _, seconds in times]) if complete else None,
            reached=f"{len(times)} of {len(curve.seeds)}",
            states=[seed.state for seed in curve.seeds],
        ))  # fmt: skip
    return MethodTable(name, _metric(methods[0]), tuple(rows))


def _ranks(methods: list[Curve]) -> dict[str, int]:
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


def run_states(found: list[Curve]) -> dict[str, int]:
    """The number of runs in each state, those of the searches included."""
    states: Counter[str] = Counter()
    for curve in found:
        states.update(seed.state for seed in (*curve.seeds, *curve.lost))
        if curve.search:
            states["searched"] += len(curve.search.tried) - len(curve.lost)
            states["waiting"] += len(curve.search.wanted)
    return {state: runs for state, runs in states.items() if runs}


def failures(found: list[Curve]) -> Iterator[Failure]:
    """Runs without a result: those of the curves, and those that a search continued without."""
    for curve in found:
        method = f"{curve.row.panel}: {curve.row.label}"
        named: list[tuple[str, Seed]] = [(method, seed) for seed in curve.seeds]
        named += [(f"{method}, search at lr {seed.spec.lr:g}", seed) for seed in curve.lost]
        for name, seed in named:
            if seed.state not in ENDED:
                yield Failure(seed.spec.name, f"{name}, seed {seed.spec.seed}", seed.state, seed.error)


_SETTINGS = ("task", "model", "width", "hidden", "layers", "dropout", "bptt", "clip", "batch_size", "epochs",
             "decay_after", "weight_decay", "examples")  # fmt: skip


def _settings(study: Study, scale: str, found: list[Curve]) -> list[str]:
    lines = []
    for workload in dict.fromkeys(curve.row.workload for curve in found):
        mine = [curve for curve in found if curve.row.workload == workload]
        fields = mine[0].spec.to_dict()
        values = {key.replace("_", " "): fields[key] for key in _SETTINGS if fields[key] is not None}
        shown = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
        seeds = study.seed_count(mine[0].row, scale)
        lines.append(f"{workload}: {', '.join(shown)}; {seeds} seed{'s'[: seeds > 1]}")
        if any(curve.row.tuned(scale) for curve in mine):
            lines.append("step sizes: the paper's search, on seed 0; AdaBound and AMSBound keep their defaults")
        elif any(curve.row.lr is None for curve in mine):
            searched = workload in FIXED[scale]
            how = "found by the paper's search beforehand" if searched else "defaults, not searched for at this scale"
            lines.append(f"step sizes: {how}; AdaBound and AMSBound keep their defaults")
        pace = mine[0].row.pace(scale)
        if pace != 1:
            lines.append(
                f"bounds: γ is {pace:g} times the paper's, because an epoch of all data has {pace:g} times fewer steps "
                "here: the bounds converge as fast per epoch"
            )
    return list(dict.fromkeys(lines))


_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "ptb": "Penn Treebank", "pydoc": "the Python reference"}


def _differs(curve: Curve) -> str:
    """What a figure shows, if that is not what the paper's shows."""
    spec = curve.spec
    return "" if spec.scale == "paper" else f" — here {spec.scale} scale, {_NAMES.get(spec.task, spec.task)}"


def _figures(study: Study, found: list[Curve], evidence: Evidence) -> Iterator[figures.ReportFigure]:
    title = f"{study.title}{_differs(found[0])}"
    if study.name == "learning-rates":
        if evidence.sampled:
            yield figures.HeatmapsFigure(study.name, title, evidence.sampled)
    elif study.name == "rate-evolution":
        if evidence.evolution:
            yield figures.EvolutionFigure(study.name, title, evidence.evolution)
    else:
        panels = tuple(
            figures.Panel(name, tuple(_band(curve, study.splits) for curve in methods.values()))
            for name, methods in evidence.panels.items()
        )
        shared = len({tuple(methods) for methods in evidence.panels.values()}) == 1
        yield figures.CurvesFigure(study.name, title, panels, study.splits, _metric(found[0]), shared)
        if study.name == "final-step-size":
            title = f"SGDM and AdaBound side by side{_differs(found[0])}"
            yield figures.StepSizesFigure("final-step-size-compared", title, panels)


def _band(curve: Curve, splits: Sequence[str]) -> figures.Band:
    series = {split: [seed.series(split) for seed in curve.finished] for split in splits}
    return figures.Band(curve.row.label, curve.diverged, series.get("train"), series.get("test"))


def _theory(study: Study, folder: Path) -> StudyReport:
    found = {name: theorems.read(folder, name) for name in theorems.NAMES}
    checks, settings, pictures = [], [], []
    for name, part in found.items():
        if part is None:
            continue
        for verdict in part["verdicts"]:
            where = f" ({verdict['settings']})" if verdict["settings"] else ""
            word = "holds" if verdict["holds"] else "fails"
            checks.append(Check(f"{name}: {verdict['claim']}{where}", verdict["measured"], word))
        settings.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in part["settings"].items()))
        pictures.append(figures.StoredFigure(name, part["title"], folder / f"{name}.svg"))
    fails = any(check.verdict == "fails" for check in checks)
    missing = [name for name, part in found.items() if part is None]
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        verdict=NOT_REPRODUCED if fails else UNDECIDED if missing else REPRODUCED,
        checks=tuple(checks),
        tables=(),
        runs={"played": len(found) - len(missing)},
        failures=tuple(Failure(name, name, "new", "") for name in missing),
        settings=tuple(settings),
        figures=tuple(pictures),
    )
