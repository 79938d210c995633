"""From stored runs to a report: one value, which the HTML page and the Markdown pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabound.lab.report import figures as drawings
from dynabound.lab.report.claims import COUNT, OURS, STARTS, best_searched, judge_study, ranks_by_method, same_start
from dynabound.lab.report.groups import LAST, Group
from dynabound.lab.report.read import Authors, Curve, Panels, StudyRuns, read_study
from dynabound.lab.report.statistics import judge, mean
from dynabound.lab.report.tables import (
    Failure,
    MethodTable,
    Pair,
    data_name,
    failures,
    method_table,
    pairs,
    run_states,
    settings,
)
from dynabound.lab.studies import theory
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, SAME_RATES, Study
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED, Verdict

VERDICTS = (SUPPORTED, REFUTED, UNDECIDED, NOT_TESTABLE)
COMPARED = ("mnist", "cifar10", "ptb")
"""The studies that compare AdaBound with Adam and SGD."""
NETWORKS = (*COMPARED, "cifar10-16")
"""The studies whose networks are in the tables of AdaBound against SGD and Adam."""
_DIFFERENCE = "difference in points of accuracy, or % of perplexity"


@dataclass(frozen=True)
class Fact:
    """A question about AdaBound, the counts and numbers that answer it, and a figure."""

    scale: str
    question: str
    lines: tuple[str, ...]
    figure: drawings.ReportFigure


@dataclass(frozen=True)
class StudyReport:
    """A study's verdicts, numbers and figures at a scale."""

    name: str
    title: str
    claim: str
    scale: str
    verdicts: tuple[Verdict, ...]
    tables: tuple[MethodTable, ...]
    runs: dict[str, int]
    """The number of runs in each state."""
    failures: tuple[Failure, ...]
    settings: tuple[str, ...]
    figures: tuple[drawings.ReportFigure, ...] = ()
    ours: bool = False
    """Whether its claims are ours, and not the paper's."""
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many comparisons have each verdict: of the paper's claims, or in a study of our own of ours."""
        return count_verdicts(each for each in self.verdicts if each.of_paper != self.ours and each.kind != COUNT)

    @property
    def headline(self) -> str:
        """The counts, such as "3 supported, 1 refuted"; claims about numbers of steps are separate."""
        comparisons = _words(self.counts) or "no claims"
        counted = _words(count_verdicts(each for each in self.verdicts if each.kind == COUNT))
        return comparisons + (f"; of the claims about numbers of steps {counted}" if counted else "")


@dataclass(frozen=True)
class Report:
    """Everything that the pages show."""

    scales: tuple[str, ...]
    studies: tuple[StudyReport, ...]
    facts: tuple[Fact, ...] = ()
    pairs: tuple[Pair, ...] = ()
    environment: tuple[str, ...] = ()
    """Versions and machines of the runs, with the number of runs of each."""

    @property
    def networks(self) -> dict[str, dict[str, Pair]]:
        """Of each network, AdaBound against "SGD" and "Adam"."""
        found: dict[str, dict[str, Pair]] = {}
        for pair in self.pairs:
            if pair.ours == "AdaBound" and pair.other != REFERENCE:
                found.setdefault(pair.network, {})[pair.other.replace("SGDM", "SGD")] = pair
        return found

    @property
    def summary(self) -> list[str]:
        """A line on the images, and one on the text: how AdaBound compares with SGD and Adam."""
        lines = []
        for kind, text in (("images", False), ("text", True)):
            for other in ("SGD", "Adam"):
                mine = [found[other].verdict for found in self.networks.values()
                        if other in found and found[other].text == text]  # fmt: skip
                if mine:
                    lines.append(_count(f"{len(mine)} networks on {kind}, AdaBound ends better than {other}", mine))
        return lines

    @property
    def forest(self) -> drawings.DotsFigure | None:
        """AdaBound against SGD and Adam, a row per network."""
        dots = tuple(
            drawings.Dot.of(found[other].verdict, name, f"AdaBound − {other}")
            for name, found in self.networks.items()
            for other in ("SGD", "Adam")
            if other in found and found[other].verdict.low is not None
        )
        title = "AdaBound minus SGD and Adam: final test results, with intervals over seeds"
        return drawings.DotsFigure("networks", title, dots, f"{_DIFFERENCE}; logarithmic beyond ±2") if dots else None


def count_verdicts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """The number of verdicts with each of the four words."""
    counts = Counter(each.verdict for each in verdicts)
    return {word: counts[word] for word in VERDICTS}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def build(
    studies: Sequence[Study],
    scales: Sequence[str],
    runs: StoredRuns,
    theory_folder: Path | None = None,
    authors: Authors | None = None,
    only_ended: bool = False,
) -> Report:
    """The report of stored runs; with ``only_ended``, without studies that have nothing to show."""
    reports: list[StudyReport] = []
    facts: list[Fact] = []
    networks: Panels = {}
    everything: list[Curve] = []
    for scale in scales:
        found = {study.name: read_study(study, scale, runs) for study in studies if study.rows}
        shown = [study for study in studies if not only_ended or _has_ended(study, found)]
        mine = [_study(study, scale, found[study.name], authors) if study.rows else _theory(study, scale, theory_folder)
                for study in shown]  # fmt: skip
        verdicts = {report.name: report.verdicts for report in mine}
        compared = {name: found[name].panels for name in verdicts if name in COMPARED}
        facts += _facts(scale, compared, found.get("final-step-size"), verdicts)
        for panels in (found[name].panels for name in verdicts if name in NETWORKS):
            networks |= {_network(name, scale, curves): curves for name, curves in panels.items()}
        everything += [curve for study in shown if study.rows for curve in found[study.name].curves]
        reports += mine
    return Report(tuple(scales), tuple(reports), tuple(facts), pairs(networks), tuple(_environment(everything)))


def _has_ended(study: Study, found: Mapping[str, StudyRuns]) -> bool:
    """Whether there is something to show: one curve of a comparison, or all curves of another study."""
    curves = found[study.name].curves if study.name in found else []
    return bool(curves) and (any if study.name in COMPARED else all)(curve.ended for curve in curves)


def _network(name: str, scale: str, curves: Mapping[str, Curve]) -> str:
    task = next(iter(curves.values())).spec.task
    return f"{data_name(task)}, {name} ({scale})"


def _environment(curves: Sequence[Curve]) -> Iterator[str]:
    """The machines and versions of all runs; for a resumed run, those of its last session."""
    machines: Counter[str] = Counter()
    for run in {seed.spec.name: seed for curve in curves for seed in curve.finished}.values():
        for last in run.environment[-1:]:
            parts = [f"{key} {last[key]}" for key in ("dynabound", "torch", "python") if last.get(key)]
            parts += [str(last[key]) for key in ("platform", "cpu", "device") if last.get(key)]
            machines[", ".join(parts)] += 1
    yield from (f"{runs} runs: {machine}" for machine, runs in machines.most_common())


def _study(study: Study, scale: str, runs: StudyRuns, authors: Authors | None) -> StudyReport:
    verdicts = judge_study(study.name, runs)
    same_data = study.name == "cifar10" and data_name(runs.curves[0].spec.task) == "CIFAR-10"
    authors = authors if same_data else None
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        scale=scale,
        verdicts=tuple(verdicts),
        tables=tuple(method_table(name, list(curves.values())) for name, curves in runs.panels.items()),
        runs=run_states(runs.curves),
        failures=tuple(failures(runs.curves)),
        settings=tuple(settings(study, scale, runs.curves)),
        figures=tuple(_figures(study, runs, verdicts, authors)),
        ours=study.ours,
        note=authors.note if authors else study.note or _responsible(verdicts),
    )


def _responsible(verdicts: Sequence[Verdict]) -> str:
    """In how many comparisons AdaBound is better than other methods with its learning rates; empty for none."""
    own = [each for each in verdicts if each.claim.endswith(tuple(SAME_RATES.values()))]
    return f"{_count('Better than Adam or CSGD with the learning rates of AdaBound', own)}." if own else ""


def _theory(study: Study, scale: str, folder: Path | None) -> StudyReport:
    parts = {name: theory.read(folder, name) for name in theory.NAMES} if folder else {}
    found = {name: part for name, part in parts.items() if part}
    return StudyReport(
        name=study.name,
        title=study.title,
        claim=study.claim,
        scale=scale,
        verdicts=tuple(_theory_verdict(name, each) for name, part in found.items() for each in part["verdicts"]),
        tables=(),
        runs={"simulations": len(found)},
        failures=tuple(Failure(name, name, "new", "") for name in parts if name not in found),
        settings=tuple(f"{name}: " + ", ".join(f"{key} {value}" for key, value in part["settings"].items())
                       for name, part in found.items()),
        figures=tuple(drawings.StoredFigure(name, part["title"], Path(folder or "", f"{name}.svg"))
                      for name, part in found.items()),
    )  # fmt: skip


def _theory_verdict(name: str, fields: Mapping[str, Any]) -> Verdict:
    where = f" ({fields['settings']})" if fields["settings"] else ""
    return Verdict(**{**fields, "claim": f"{name}: {fields['claim']}{where}", "settings": ""})


# The figures of a study.


def _figures(
    study: Study, runs: StudyRuns, verdicts: Sequence[Verdict], authors: Authors | None
) -> Iterator[drawings.ReportFigure]:
    first = runs.curves[0]
    here = "" if first.spec.scale == "paper" else f" — here {first.spec.scale} scale, {data_name(first.spec.task)}"
    title = f"{study.title}{here}"
    if study.name == "learning-rates":
        if runs.sampled:
            yield drawings.HeatmapsFigure(study.name, title, runs.sampled)
    elif study.name == "rate-evolution":
        if runs.evolution:
            yield drawings.EvolutionFigure(study.name, title, runs.evolution)
    elif study.name == "suggest":
        yield from _cost_figures(study.name, f"{first.spec.scale.capitalize()} scale", runs.panels)
    else:
        yield _curves(study, title, runs.panels, authors)
        if study.name == "final-step-size":
            yield drawings.side_by_side(
                "final-step-size-compared", f"SGDM and AdaBound side by side{here}", runs.panels
            )
    tested = tuple(drawings.Dot.of(verdict) for verdict in verdicts if verdict.low is not None)
    if tested:
        units = " / ".join(dict.fromkeys(each.unit for each in verdicts if each.low is not None))
        x = f"difference in {units}; logarithmic beyond ±2"
        yield drawings.DotsFigure(f"{study.name}-claims", "The claims: difference and interval of each", tested, x)


def _curves(study: Study, title: str, panels: Panels, authors: Authors | None) -> drawings.CurvesFigure:
    ended = {name: methods for name, methods in panels.items() if any(curve.finished for curve in methods.values())}
    drawn, shown = ended or panels, []
    for name, methods in drawn.items():
        shown.append(drawings.Panel(name, tuple(_band(curve, study.splits) for curve in methods.values())))
        if authors and name in authors.panels:
            bands = tuple(drawings.Band(label, False, [train], [test]) for label, train, test in authors.panels[name])
            shown.append(drawings.Panel(f"{name}, the authors'", bands))
    labels = [set(methods) for methods in drawn.values()]
    shared = set.union(*labels) in labels  # a panel may lack some methods of another
    metric = next(iter(next(iter(drawn.values())).values())).metric
    return drawings.CurvesFigure(study.name, title, tuple(shown), study.splits, metric, shared)


def _band(curve: Curve, splits: Sequence[str]) -> drawings.Band:
    series = {split: [seed.series(split) for seed in curve.finished] for split in splits}
    return drawings.Band(curve.label, curve.diverged, series.get("train"), series.get("test"))


def _cost_figures(name: str, title: str, panels: Panels) -> Iterator[drawings.ReportFigure]:
    finished = {panel: [curve for curve in curves.values() if curve.finished] for panel, curves in panels.items()}
    # A search has trained its winner already.
    shown = tuple(
        drawings.CostPanel(panel, curves[0].metric, tuple(
            drawings.Point(each.label, each.tuning_steps + (0 if each.search_runs else each.steps), each.final())
            for each in curves))
        for panel, curves in finished.items() if curves
    )  # fmt: skip
    if shown:
        yield drawings.CostFigure(f"{name}-cost", f"{title}: quality against cost", shown)
        yield drawings.RanksFigure(f"{name}-ranks", f"{title}: ranks over workloads", ranks_by_method(panels))


# The facts at the top of the page.


def _facts(
    scale: str, compared: Mapping[str, Panels], steps: StudyRuns | None, verdicts: Mapping[str, Sequence[Verdict]]
) -> list[Fact]:
    panels = {name: curves for study in compared.values() for name, curves in study.items()
              if all(curve.finished for label, curve in curves.items()
                     if label in ("SGDM", "SGD", "Adam", "AdaBound"))}  # fmt: skip
    if not panels:
        return []
    found = (_start(scale, panels, verdicts), _end(scale, panels), _tuning(scale, panels, steps), _time(scale, panels))
    return [fact for fact in found if fact]


def _finals(panels: Panels, labels: Sequence[str], of: Callable[[Curve], list[float]]) -> str:
    """Means over seeds on every network, such as "MNIST: AdaBound 97.96, SGDM 98.12"."""
    return "; ".join(
        f"{name}: " + ", ".join(f"{label} {mean(of(curves[label])):.1f}" for label in labels if label in curves)
        for name, curves in panels.items()
    )


def _count(subject: str, verdicts: Sequence[Verdict]) -> str:
    """A line in the one form that all counts have."""
    words = ", ".join(f"{count} {word}" for word, count in count_verdicts(verdicts).items()
                      if count or word != NOT_TESTABLE)  # fmt: skip
    differences = sorted(each.difference for each in verdicts if each.difference is not None)
    units = " or ".join(dict.fromkeys(each.unit for each in verdicts if each.unit))
    range_ = f"{_range(differences, '+.1f')} {units}; " if differences else ""
    return f"{subject}: {range_}{words}"


def _range(numbers: Sequence[float], form: str = ",") -> str:
    low, high = (f"{pick(numbers):{form}}".replace("-", "−") for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _compare(panels: Panels, ours: str, others: Mapping[str, str], margin: bool) -> dict[str, Verdict]:
    """Of each network: ``ours`` ends better than the other method, or not worse by more than the margin."""
    groups = {name: Group(curves) for name, curves in panels.items() if name in others and ours in curves}
    claims = [group.better(f"{ours} ends better", "ours", ours, others[name], [LAST], -group.margin if margin else 0.0)
              for name, group in groups.items()]  # fmt: skip
    return dict(zip(groups, judge(claims), strict=True))


def _start(scale: str, panels: Panels, verdicts: Mapping[str, Sequence[Verdict]]) -> Fact | None:
    tested = [each for own in verdicts.values() for each in own if STARTS in each.claim and each.difference is not None]
    shown = {name: curves for name, curves in panels.items() if REFERENCE in curves and curves[REFERENCE].finished}
    if not tested or not shown:
        return None
    name, curves = list(shown.items())[-1]
    bands = tuple(_band(curves[label], ("train",)) for label in (same_start(curves), REFERENCE, "SGDM"))
    title = f"The first epochs on {name}"
    figure = drawings.CurvesFigure(
        "question-start", title, (drawings.Panel("", bands),), ("start",), "accuracy (%)", False
    )
    first = _finals(shown, (same_start(curves), REFERENCE, "SGDM"),
                    lambda curve: [seed.series("train")[0] for seed in curve.finished])  # fmt: skip
    lines = (
        f"Training accuracy after one epoch, in %: {first}",
        _count("After one epoch AdaBound is nearer to Adam with the same α than to SGDM", tested),
    )
    return Fact(scale, "Does it start like Adam?", lines, figure)


def _end(scale: str, panels: Panels) -> Fact:
    sgd = {name: "SGDM" if "SGDM" in curves else "SGD" for name, curves in panels.items()}
    against = {
        "SGD": _compare(panels, "AdaBound", sgd, margin=True),
        "Adam": _compare(panels, "AdaBound", dict.fromkeys(panels, "Adam"), margin=False),
    }
    plain = {name: REFERENCE for name, curves in panels.items() if REFERENCE in curves and curves[REFERENCE].finished}
    lines = [
        "Final test accuracy in %, or perplexity: " + _finals(panels, (OURS, "SGDM", "SGD", "Adam"), Curve.final),
        _count("AdaBound − SGD at the last epoch, not worse by more than the margin", [*against["SGD"].values()]),
        _count("AdaBound − Adam at the last epoch, better", [*against["Adam"].values()]),
    ]
    if plain:
        verdicts = _compare(panels, "AdaBound", plain, margin=False)
        lines.append(_count("AdaBound − Adam with learning rate 0.001, without a search, better", [*verdicts.values()]))
    dots = tuple(drawings.Dot.of(verdict, name, f"AdaBound − {other}") for other, found in against.items()
                 for name, verdict in found.items())  # fmt: skip
    figure = drawings.DotsFigure("question-end", "Final test results, with intervals over seeds", dots, _DIFFERENCE)
    return Fact(scale, "Does it end as well as SGD?", tuple(lines), figure)


def _tuning(scale: str, panels: Panels, steps: StudyRuns | None) -> Fact | None:
    best = {name: label for name, curves in panels.items() if (label := best_searched(curves))}
    if not best:
        return None
    shown = [panels[name] for name in best]
    costs = [curves["AdaBound"].suggestion.cost for curves in shown if curves["AdaBound"].suggestion]
    searches = [curve.tuning_steps for curves in shown for curve in curves.values() if curve.search_runs]
    how = "with suggested learning rates" if costs else "at the paper's defaults"
    verdicts = _compare(panels, "AdaBound", best, margin=True)
    on = f" ({' and '.join(best)} only)" if len(best) < 3 else ""
    spent = f"a suggestion for AdaBound took {_range(costs)}" if costs else "AdaBound was not tuned"
    lines = [f"Training steps for a learning rate{on}: a search took {_range(searches)}, {spent}",
             _count(f"AdaBound {how} − the best searched method{on}, not worse by more than the margin",
                    [*verdicts.values()])]  # fmt: skip
    label = DEFAULTS["AdaBound"]
    plain = {name: curves for name, curves in panels.items() if label in curves and curves[label].finished}
    if plain:
        found = _compare(plain, label, dict.fromkeys(plain, "AdaBound"), margin=True)
        subject = "AdaBound at the paper's defaults − with suggested learning rates, not worse by more than the margin"
        lines.append(_count(subject, [*found.values()]))
    lines += _sensitivity(steps) if steps else ()
    dots = tuple(drawings.Dot.of(each, f"{name}\n(best: {best[name]})", "AdaBound") for name, each in verdicts.items())
    figure = drawings.DotsFigure("question-tuning", f"AdaBound {how} − the best searched method", dots, _DIFFERENCE)
    return Fact(scale, "Do I have to tune it?", tuple(lines), figure)


def _sensitivity(steps: StudyRuns) -> Iterator[str]:
    finals = {name: [mean(curve.final()) for curve in steps.panels[name].values() if curve.final()]
              for name in ("AdaBound", "SGDM")}  # fmt: skip
    if all(finals.values()):
        spans = ", ".join(f"{name} {max(means) - min(means):.1f} points" for name, means in finals.items())
        network = steps.curves[0].spec.model
        yield f"Range of the final accuracy over a thousandfold range of α* or α ({network} only): {spans}"


def _time(scale: str, panels: Panels) -> Fact | None:
    times = {name: found for name, curves in panels.items() if (found := _cpu_times(curves))}
    if not times:
        return None
    ratios = {(name, label): [second / mean(found["Adam"]) for second in seconds]
              for name, found in times.items() for label, seconds in found.items()}  # fmt: skip
    dots = tuple(drawings.Dot(name, label, mean(own), min(own), max(own)) for (name, label), own in ratios.items())
    ours = [dot.value for dot in dots if dot.label == OURS]
    spread = max(max(own) / min(own) for own in ratios.values()) - 1
    line = (
        f"CPU time of a run, AdaBound / Adam: {_range(ours, '.2f')} on {len(ours)} network{'s'[: len(ours) != 1]}; "
        f"runs of one method differ by up to {spread:.0%}, and dynabound bench compares single steps"
    )
    x = "CPU time of a run / mean of Adam's; lines: range over seeds"
    figure = drawings.DotsFigure("question-cost", "CPU time of a run", dots, x, zero=1.0, logarithmic=False)
    return Fact(scale, "What did it cost?", (line, "State: two numbers per parameter, as Adam"), figure)


def _cpu_times(curves: Mapping[str, Curve]) -> dict[str, list[float]]:
    """Each method's CPU times, on the CPU model with the most runs of AdaBound and Adam; older runs have none."""
    found: dict[str, dict[str, list[float]]] = {}
    for label in (label for label in (OURS, "Adam", "SGDM", "SGD") if label in curves):
        for seed in (seed for seed in curves[label].finished if seed.cpu and "cpu_seconds" in seed.metrics[0]):
            seconds = sum(line["cpu_seconds"] for line in seed.metrics)
            found.setdefault(seed.cpu, {}).setdefault(label, []).append(seconds)
    runs = Counter({cpu: min(len(times.get(label, ())) for label in (OURS, "Adam"))
                    for cpu, times in found.items()})  # fmt: skip
    return found[runs.most_common(1)[0][0]] if runs.total() else {}
