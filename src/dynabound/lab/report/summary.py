"""Stored runs -> numbers, verdicts and figures. Reads only the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynabound._extras import pip_command
from dynabound.lab.report import claims, figures, suggested_figures, theory
from dynabound.lab.report.evidence import Evidence, Panels
from dynabound.lab.report.forest import ForestFigure
from dynabound.lab.report.learning_rates import rate_evolution, sample_rates
from dynabound.lab.report.opening import Question, questions
from dynabound.lab.report.results import Curve, curves
from dynabound.lab.report.tables import MethodTable, metric_name, table
from dynabound.lab.report.verdicts import Check, overall
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.studies.recipes import BETAS_TUNED, FIXED, PEERS, Study
from dynabound.lab.tasks.catalog import TASKS
from dynabound.lab.tasks.optimizers import BOUNDED

__all__ = ["Failure", "Report", "StudyReport", "build", "data_name"]


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
    figures: tuple[figures.ReportFigure, ...] = ()
    ours: bool = False
    """Whether its claims are ours, and not the paper's."""


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    scale: str
    out: str
    studies: tuple[StudyReport, ...]
    questions: tuple[Question, ...] = ()
    environment: tuple[str, ...] = ()
    """Versions and machines of the runs, with the number of runs of each."""


def build(studies: Sequence[Study], scale: str, out: Path) -> Report:
    """The report of what is stored in ``out``, the folder of ``dynabound reproduce``."""
    store, reports = Store(out / "runs"), []
    evidence: dict[str, Evidence] = {}
    everything: list[Curve] = []
    for study in studies:
        if not study.rows:
            reports.append(_theory(study, out / "theory"))
            continue
        found = curves(study, scale, store)
        everything += found
        evidence[study.name] = _evidence(study, found, store)
        reports.append(_study(study, scale, found, evidence[study.name]))
    return Report(scale, str(out), tuple(reports), questions(evidence), tuple(_environment(everything, store)))


def _study(study: Study, scale: str, found: list[Curve], evidence: Evidence) -> StudyReport:
    checks = claims.check(study.name, evidence)
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        verdict=overall(checks, study.ours),
        checks=tuple(checks),
        tables=tuple(table(name, list(methods.values())) for name, methods in evidence.panels.items()),
        runs=run_states(found),
        failures=tuple(failures(found)),
        settings=tuple(_settings(study, scale, found)),
        figures=tuple(_figures(study, found, evidence, checks)),
        ours=study.ours,
    )


def _environment(found: Sequence[Curve], store: Store) -> list[str]:
    """The machines and versions of all runs; for a resumed run, those of its last session."""
    machines: Counter[str] = Counter()
    for spec in {seed.spec.name: seed.spec for curve in found for seed in curve.finished}.values():
        sessions = store.run(spec).environment()
        if sessions:
            last = sessions[-1]
            parts = [f"{key} {last[key]}" for key in ("dynabound", "torch", "python") if last.get(key)]
            parts += [str(last[key]) for key in ("platform", "cpu", "device") if last.get(key)]
            machines[", ".join(parts)] += 1
    return [f"{runs} runs: {machine}" for machine, runs in machines.most_common()]


def _evidence(study: Study, found: list[Curve], store: Store) -> Evidence:
    panels: Panels = {}
    for curve in found:
        panels.setdefault(curve.row.panel, {})[curve.row.label] = curve
    if study.name == "learning-rates":
        sampled = {curve.row.label: sample_rates(curve, store) for curve in found}
        return Evidence(panels, {label: rates for label, rates in sampled.items() if rates})
    return Evidence(panels, evolution=rate_evolution(found[0]) if study.name == "rate-evolution" else None)


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
        named: list[tuple[str, StoredRun]] = [(method, seed) for seed in curve.seeds]
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
        suggested = any(curve.row.suggested(scale) for curve in mine)
        ours = f"AdaBound and AMSBound {'have suggested ones' if suggested else 'keep their defaults'}"
        if any(curve.row.tuned(scale) for curve in mine):
            betas = "" if workload in BETAS_TUNED[scale] else ", without its search for β"
            lines.append(f"step sizes: the paper's search, on seed 0{betas}; {ours}")
        elif any(curve.row.lr is None for curve in mine):
            searched = workload in FIXED[scale]
            how = "found by the paper's search beforehand" if searched else "defaults, not searched for at this scale"
            lines.append(f"step sizes: {how}; {ours}")
        pace = mine[0].row.gamma_scale(scale)
        if pace != 1 and any(curve.row.optimizer in BOUNDED and not curve.row.suggested(scale) for curve in mine):
            lines.append(
                f"bounds of curves without suggested step sizes: γ is {pace:g} times the paper's, because an epoch of "
                f"all data has {pace:g} times fewer steps here: the bounds converge as fast per epoch"
            )
    return list(dict.fromkeys([*lines, *_peers(study)]))


def _peers(study: Study) -> Iterator[str]:
    """The lines about optimizers of other packages."""
    rows = {row.label: row for row in study.rows if row.label in PEERS}
    absent = [label for label, row in rows.items() if not row.installed]
    if rows:
        yield f"tuning-free methods: {', '.join(rows)}; their authors' defaults, with the weight decay of all methods"
    if absent:
        yield f"not installed, and left out: {', '.join(absent)}; {pip_command('peers')}"


def data_name(task: str) -> str:
    """The data of a task, without the part that it uses.

    >>> data_name("cifar10-2000"), data_name("digits-half")
    ('CIFAR-10', "scikit-learn's digits")
    """
    return TASKS[task].title.partition(",")[0]


def _differs(curve: Curve) -> str:
    """Scale and data set for the title of a figure, unless they are the paper's."""
    spec = curve.spec
    return "" if spec.scale == "paper" else f" — here {spec.scale} scale, {data_name(spec.task)}"


def _figures(
    study: Study, found: list[Curve], evidence: Evidence, checks: Sequence[Check]
) -> Iterator[figures.ReportFigure]:
    title = f"{study.title}{_differs(found[0])}"
    if study.name == "learning-rates":
        if evidence.sampled:
            yield figures.HeatmapsFigure(study.name, title, evidence.sampled)
    elif study.name == "suggest":
        yield from suggested_figures.build(study.name, f"{found[0].spec.scale.capitalize()} scale", evidence.panels)
    elif study.name == "rate-evolution":
        if evidence.evolution:
            yield figures.EvolutionFigure(study.name, title, evidence.evolution)
    else:
        ended = {name: methods for name, methods in evidence.panels.items()
                 if any(curve.finished for curve in methods.values())}  # fmt: skip
        drawn = ended or evidence.panels
        panels = tuple(
            figures.Panel(name, tuple(_band(curve, study.splits) for curve in methods.values()))
            for name, methods in drawn.items()
        )
        labels = [set(methods) for methods in drawn.values()]
        shared = set.union(*labels) in labels  # a panel may lack some methods of another
        yield figures.CurvesFigure(study.name, title, panels, study.splits, metric_name(found[0]), shared)
        if study.name == "final-step-size":
            title = f"SGDM and AdaBound side by side{_differs(found[0])}"
            yield figures.StepSizesFigure("final-step-size-compared", title, panels)
    tested = tuple(check for check in checks if check.low is not None)
    if tested:
        yield ForestFigure(f"{study.name}-claims", "The claims: difference and interval of each", tested)


def _band(curve: Curve, splits: Sequence[str]) -> figures.Band:
    series = {split: [seed.series(split) for seed in curve.finished] for split in splits}
    return figures.Band(curve.row.label, curve.diverged, series.get("train"), series.get("test"))


def _theory(study: Study, folder: Path) -> StudyReport:
    found, missing = theory.read_studies(folder)
    checks = theory.read_checks(found)
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        verdict=theory.headline(found, missing, checks),
        checks=tuple(checks),
        tables=(),
        runs={"simulations": len(found)},
        failures=tuple(Failure(name, name, "new", "") for name in missing),
        settings=tuple(theory.read_settings(found)),
        figures=tuple(theory.read_figures(found, folder)),
    )
