"""The tables of the pages as data: the methods of a panel, AdaBound against others, runs without a result, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dynabound._extras import pip_command
from dynabound.lab.report.claims import ranks
from dynabound.lab.report.groups import BEST, LAST, Group, error_of_one
from dynabound.lab.report.read import Curve
from dynabound.lab.report.statistics import finite, judge, mean, std
from dynabound.lab.store import ENDED
from dynabound.lab.studies.recipes import DEFAULTS, PEERS, REFERENCE, REFERENCES, Study
from dynabound.lab.studies.workloads import BETAS_TUNED, FIXED, SHORTENED
from dynabound.lab.tasks.catalog import TASKS
from dynabound.lab.tasks.optimizers import BOUNDED
from dynabound.theory.verdict import Verdict


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

    @property
    def other_states(self) -> dict[str, int]:
        """The number of runs in each state but ``finished``."""
        return dict(Counter(sorted(state for state in self.states if state != "finished")))


@dataclass(frozen=True)
class MethodTable:
    """The methods of a panel."""

    name: str
    metric: str
    rows: tuple[MethodRow, ...]


def method_table(name: str, methods: Sequence[Curve]) -> MethodTable:
    """A row per method: final and best metric, rank, and the time to the level of the best Adam run."""
    places = ranks([curve for curve in methods if curve.label not in REFERENCES])
    adam = next((curve.final() for curve in methods if curve.label == "Adam"), [])
    level = (min if methods[0].spec.text else max)(adam, default=None)
    rows = tuple(_method_row(curve, places.get(curve.label), level) for curve in methods)
    return MethodTable(name, methods[0].metric, rows)


def _method_row(curve: Curve, rank: int | None, level: float | None) -> MethodRow:
    reached = [seed.reached(level) for seed in curve.finished] if level is not None else []
    times = [pair for pair in reached if pair]
    complete = bool(times) and len(times) == len(curve.seeds)
    return MethodRow(
        method=curve.label,
        settings=tuned_settings(curve),
        final=finite(mean(curve.final())),
        final_spread=finite(std(curve.final())),
        best=finite(mean(curve.best())),
        best_spread=finite(std(curve.best())),
        train=finite(mean(curve.final("train"))),
        rank=rank,
        level=level,
        epochs=mean([float(epoch) for epoch, _ in times]) if complete else None,
        seconds=mean([seconds for _, seconds in times]) if complete else None,
        reached=f"{len(times)} of {len(curve.seeds)}",
        states=[seed.state for seed in curve.seeds],
        final_error=finite(error_of_one(curve.spec.task, curve.final())),
        best_error=finite(error_of_one(curve.spec.task, curve.best())),
    )


def tuned_settings(curve: Curve) -> str:
    """The learning rate and related settings of a method, and how many were tried."""
    options = {key: value for key, value in curve.spec.options.items() if key in ("betas", "final_lr", "gamma")}
    if curve.spec.optimizer == "adamw":  # it has its own, and not the workload's
        options["weight_decay"] = curve.spec.weight_decay
    text = ", ".join([f"lr {curve.spec.lr:g}", *(f"{key} {value}" for key, value in options.items())])
    if not (curve.search and curve.search.tried):
        return text
    failed = f", {len(curve.failed_trials)} failed" if curve.failed_trials else ""
    return f"{text} (best of {len(curve.search.tried) - len(curve.failed_trials)}{failed})"


@dataclass(frozen=True)
class Pair:
    """AdaBound against another method on a network."""

    network: str
    ours: str
    other: str
    verdict: Verdict
    """On the claim that AdaBound ends better."""
    finals: tuple[str, str]
    """The final test results of AdaBound and of the other method."""
    costs: tuple[int, int]
    """Training steps spent on finding the learning rate: of AdaBound, of the other method."""
    text: bool
    """Whether it is a language model, whose differences are in percent of perplexity."""


def pairs(networks: Mapping[str, Mapping[str, Curve]]) -> tuple[Pair, ...]:
    """AdaBound, and AdaBound at its defaults, against Adam and SGD on each network, corrected over all of them."""
    planned = [
        (name, Group(curves), ours, other)
        for name, curves in networks.items()
        for ours in ("AdaBound", DEFAULTS["AdaBound"])
        for other in ("Adam", REFERENCE, "SGDM", "SGD")
        if all(label in curves and curves[label].ended for label in (ours, other))
    ]
    verdicts = judge([group.better(f"{ours} ends better than {other}", "ours", ours, other, (LAST, BEST))
                      for _, group, ours, other in planned])  # fmt: skip
    found = []
    for (name, group, ours, other), verdict in zip(planned, verdicts, strict=True):
        both = group.curves[ours], group.curves[other]
        finals = [f"{mean(curve.final()):.2f}" if curve.finished else "diverged" for curve in both]
        costs = both[0].tuning_steps, both[1].tuning_steps
        found.append(Pair(name, ours, other, verdict, (finals[0], finals[1]), costs, both[0].spec.text))
    return tuple(found)


@dataclass(frozen=True)
class Failure:
    """A run without a result."""

    run: str
    method: str
    state: str
    error: str


def failures(curves: Sequence[Curve]) -> Iterator[Failure]:
    """Runs without a result: those of the curves, and those of searches that are not merely waiting."""
    for curve in curves:
        method = f"{curve.row.panel}: {curve.label}"
        named = [(method, seed) for seed in curve.seeds]
        known = {seed.spec.name for seed in curve.seeds}
        named += [(f"{method}, search at lr {run.spec.lr:g}", run) for run in curve.trials
                  if run.spec.name not in known]  # fmt: skip
        for name, run in named:
            if run.state not in ENDED:
                yield Failure(run.spec.name, f"{name}, seed {run.spec.seed}", run.state, run.error)


def run_states(curves: Sequence[Curve]) -> dict[str, int]:
    """The number of runs in each state, those of the searches included."""
    states: Counter[str] = Counter()
    for curve in curves:
        states.update(seed.state for seed in (*curve.seeds, *curve.failed_trials))
        if curve.search:
            waiting = {run.spec.name: run.state for run in curve.trials}
            states["searched"] += len(curve.search.tried) - len(curve.failed_trials)
            states.update(waiting.get(spec.name, "waiting") for spec in curve.search.wanted)
    return {state: runs for state, runs in states.items() if runs}


_SETTINGS = ("task", "model", "width", "hidden", "layers", "dropout", "bptt", "clip", "batch_size", "epochs",
             "decay_after", "weight_decay", "examples")  # fmt: skip


def settings(study: Study, scale: str, curves: Sequence[Curve]) -> list[str]:
    """What was trained, and where the learning rates come from, in a line each."""
    lines = []
    for workload in dict.fromkeys(curve.row.workload for curve in curves):
        mine = [curve for curve in curves if curve.row.workload == workload]
        lines += [_workload(study, scale, workload, mine), *_learning_rates(scale, workload, mine)]
    return list(dict.fromkeys([*lines, *_other_packages(study)]))


def _workload(study: Study, scale: str, workload: str, curves: Sequence[Curve]) -> str:
    fields = curves[0].spec.to_dict()
    values = {key.replace("_", " "): fields[key] for key in _SETTINGS if fields[key] is not None}
    shown = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
    seeds = study.seed_count(curves[0].row, scale)
    return f"{workload}: {', '.join(shown)}; {seeds} seed{'s'[: seeds > 1]}"


def _learning_rates(scale: str, workload: str, curves: Sequence[Curve]) -> Iterator[str]:
    suggested = any(curve.row.suggested(scale) for curve in curves)
    ours = f"AdaBound and AMSBound {'have suggested ones' if suggested else 'keep their defaults'}"
    if any(curve.row.tuned(scale) for curve in curves):
        betas = "" if workload in BETAS_TUNED[scale] else ", without its search for β"
        short = f", with runs of {SHORTENED[workload]['epochs']} epochs" if workload in SHORTENED else ""
        yield f"learning rates: the paper's search, on seed {curves[0].spec.seed}{betas}{short}; {ours}"
    elif any(curve.row.lr is None for curve in curves):
        searched = workload in FIXED[scale]
        how = "found by the paper's search beforehand" if searched else "defaults, not searched for at this scale"
        yield f"learning rates: {how}; {ours}"
    factor = curves[0].row.gamma_scale(scale)
    if factor != 1 and any(curve.row.optimizer in BOUNDED and not curve.row.suggested(scale) for curve in curves):
        yield (
            f"bounds of curves without suggested learning rates: γ is {factor:g} times the paper's, because an epoch "
            f"of all data has {factor:g} times fewer steps here: the bounds converge as fast per epoch"
        )


def _other_packages(study: Study) -> Iterator[str]:
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
