"""A ledger as one Markdown file with figures: where AdaBound is better, by how much, and at what cost."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dynabound._files import write_whole
from dynabound.lab import ledger as ledgers
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Ledger
from dynabound.lab.report import authors, summary
from dynabound.lab.report.evidence import BEST, LAST, Group
from dynabound.lab.report.figures import ReportFigure
from dynabound.lab.report.html import headline
from dynabound.lab.report.results import Curve, curves
from dynabound.lab.report.suggested import tuning_steps
from dynabound.lab.report.summary import StudyReport
from dynabound.lab.report.verdicts import FAILS, HOLDS, Check, judge
from dynabound.lab.spec import SCALES
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies.plan import StoredRuns, plan
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, WORKLOADS, Study

__all__ = ["build", "write"]

_COMPARED = ("mnist", "cifar10", "ptb")
_COPIES = {
    "5b6abbfe37f12552": "The CIFAR-10 runs were trained on a copy of CIFAR-10 whose images are JPEG files. Its pixels "
    "differ slightly from those of the original files, so `dynabound verify` with the original files does not compare "
    "these runs."
}
"""Notes on data sets that are not the original files, by the fingerprint in a run's environment."""
_OUTCOMES = {HOLDS: "better", FAILS: "worse"}


@dataclass(frozen=True)
class Pair:
    """AdaBound against another method on a network."""

    where: str
    ours: str
    other: str
    check: Check
    costs: tuple[int, int]
    """Training steps spent on finding the step size: of AdaBound, of the other method."""

    @property
    def outcome(self) -> str:
        """``better``, ``worse`` or ``not decided``."""
        return _OUTCOMES.get(self.check.verdict, "not decided")


def write(studies: Sequence[Study], ledger: Ledger, path: Path) -> int:
    """Write the file, and its figures into the folder ``figures`` beside it; return the number of figures."""
    text, figures = build(studies, ledger)
    folder = path.parent / "figures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as drawn:
            for figure in figures:
                png = next(each for each in figure.save(Path(drawn)) if each.suffix == ".png")
                shutil.copyfile(png, folder / png.name)
        write_whole(path, text.encode())
    except OSError as error:
        raise LabError(f"{error.filename or path}: cannot be written ({error.strerror}); give another FILE") from None
    return len(figures)


def build(studies: Sequence[Study], ledger: Ledger) -> tuple[str, list[ReportFigure]]:
    """The text, and the figures that it shows."""
    parts: list[str] = []
    panels: list[tuple[str, Mapping[str, Curve]]] = []
    figures: list[ReportFigure] = []
    notes: set[str] = set()
    scales = {entry.spec.scale for entry in ledger.entries().values()}
    for scale in (scale for scale in reversed(SCALES) if scale in scales):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "runs")
            chosen = [study for study in studies if study.name not in ledgers.NOT_IN_LEDGERS]
            ledgers.import_runs(chosen, scale, store, ledger)
            found = {study.name: curves(study, scale, store) for study in chosen}
            shown = [study for study in chosen if _shown(study, found[study.name])]
            report = summary.build(shown, scale, Path(folder))
            parts += _under_way(chosen, scale, store)
        for study in shown:
            panels += _panels(found[study.name], scale) if study.name in _COMPARED else []
        parts += _questions(report)
        for each in report.studies:
            text, drawn = _section(each, scale, ledger, notes)
            parts.append(text)
            figures += drawn
    return "\n".join([*_introduction(ledger), *_pairs(panels), *parts]), figures


def _shown(study: Study, found: Sequence[Curve]) -> bool:
    """Whether there is something to show: one curve of a comparison, or all curves of another study."""
    return (any if study.name in _COMPARED else all)(curve.ended for curve in found)


def _under_way(studies: Sequence[Study], scale: str, store: Store) -> Iterator[str]:
    """The comparisons that lack runs."""
    for study in (study for study in studies if study.name in _COMPARED):
        states = {run.spec.name: run.state for run in plan([study], scale, StoredRuns(store))}
        ended = sum(state in ENDED for state in states.values())
        if 0 < ended < len(states):
            yield f"Incomplete: {study.title}, {scale} scale: {ended} of at least {len(states)} runs have ended.\n"


def _questions(report: summary.Report) -> Iterator[str]:
    if report.questions:
        yield f"## In short, {report.scale} scale\n"
        yield from (
            f"- **{_plain(each.question)}** {_plain(each.answer)} {_plain(each.details)}" for each in report.questions
        )
        yield ""


def _introduction(ledger: Ledger) -> Iterator[str]:
    entries = ledger.entries().values()
    states = [f"{sum(e.state == state for e in entries)} {state}" for state in sorted({e.state for e in entries})]
    machines = sorted({_machine(entry.environment[-1]) for entry in entries})
    seconds = sum(line["seconds"] for entry in entries for line in entry.metrics)
    yield "# Results\n"
    yield (
        f"Computed from the {len(entries)} runs in `{ledger.root.name}/` ({', '.join(states)}; "
        f"{seconds / 3600:.1f} hours of training in all). This page is generated by a command; no number in it is "
        "typed by hand:\n"
    )
    yield "```sh"
    yield f"dynabound report --results {ledger.root.name} --markdown docs/results.md"
    yield f"dynabound verify --results {ledger.root.name} --sample 3       # train some of the runs again and compare"
    yield "```\n"
    yield f"Trained on: {'; '.join(machines)}.\n"
    yield (
        "*Demo*, *laptop* and *paper* are [scales](reproduce.md#scales): demo runs train small networks on embedded "
        "data for minutes. Laptop runs of CIFAR-10 and Penn Treebank train on small parts of them, for the first few "
        "hundred steps; only paper runs have the paper's length. Figure 1 needs checkpoints, which a ledger "
        "does not have, and [theory](theory.md) has a page of its own.\n"
    )
    data = {session.get("data") for entry in entries for session in entry.environment}
    yield from (f"{note}\n" for fingerprint, note in _COPIES.items() if fingerprint in data)


def _machine(session: Mapping[str, object]) -> str:
    cpu = session.get("cpu", "a CPU that was not recorded")
    return _plain(f"{cpu}, {session.get('platform')}, torch {session.get('torch')}")


def _panels(found: Sequence[Curve], scale: str) -> list[tuple[str, Mapping[str, Curve]]]:
    panels: dict[str, dict[str, Curve]] = {}
    for curve in found:
        panels.setdefault(curve.row.panel, {})[curve.row.label] = curve
    task = found[0].spec.task
    return [(f"{summary.data_name(task)}, {name} ({scale})", group) for name, group in panels.items()]


def _pairs(panels: Sequence[tuple[str, Mapping[str, Curve]]]) -> Iterator[str]:
    """AdaBound against Adam and SGD, first as sentences, then as a table."""
    planned = [
        (where, group, ours, other)
        for where, group in panels
        for ours in ("AdaBound", DEFAULTS["AdaBound"])
        for other in ("Adam", REFERENCE, "SGDM", "SGD")
        if all(label in group and group[label].ended for label in (ours, other))
    ]
    checks = judge([Group(group).better(f"{ours} ends better than {other}", "ours", ours, other, (LAST, BEST))
                    for _, group, ours, other in planned])  # fmt: skip
    found = [
        Pair(where, ours, other, check, (tuning_steps(group[ours]), tuning_steps(group[other])))
        for (where, group, ours, other), check in zip(planned, checks, strict=True)
    ]
    if not found:
        return
    yield "## Where AdaBound is better, and where it is not\n"
    for ours in ("AdaBound", DEFAULTS["AdaBound"]):
        for others in (("Adam",), (REFERENCE,), ("SGDM", "SGD")):
            mine = [pair for pair in found if pair.ours == ours and pair.other in others]
            if mine:
                yield f"- {ours}, against {others[-1]}: {_sentence(mine)}."
    yield (
        "\n*AdaBound* has suggested step sizes, or its defaults at paper scale; *AdaBound, defaults* has the paper's,"
        " with γ scaled to the length of an epoch ([scales](reproduce.md#scales)). The step sizes of the other "
        "methods were searched for, except for *Adam, α = 0.001*. Differences are between final test results, in "
        "points of accuracy or percent of perplexity (100 times the logarithm of the ratio); above zero AdaBound is "
        "better. A difference is decided if the last epoch and the best one agree, after Holm's correction over the "
        "whole table. The table shows the one of the two that is harder to decide. The tables below may differ: there"
        " the correction is over the claims of one study, and in the short answers over those of one question "
        "([rules](reproduce.md#verdicts)). The cost is the number of training steps that were spent on finding the "
        "step size.\n"
    )
    yield "| on | method | against | difference | interval | AdaBound is | cost of its step size | of the other's |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for pair in found:
        check = pair.check
        cells = (pair.where, pair.ours, pair.other, _signed(check.difference), _interval(check), pair.outcome,
                 *(f"{cost:,} steps" if cost else "none" for cost in pair.costs))  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""


def _sentence(pairs: Sequence[Pair]) -> str:
    parts = []
    for outcome in ("better", "worse", "not decided"):
        places = [f"{pair.where}, {_signed(pair.check.difference)}" for pair in pairs if pair.outcome == outcome]
        if places:
            parts.append(f"{outcome} on {len(places)} of {len(pairs)} ({'; '.join(places)})")
    return ", ".join(parts)


def _section(report: StudyReport, scale: str, ledger: Ledger, notes: set[str]) -> tuple[str, list[ReportFigure]]:
    """The text and the figures of a study; a note that is in ``notes`` has been printed, and is left out."""
    figures = [_renamed(figure, scale) for figure in report.figures]
    comparable = report.name == "cifar10" and summary.data_name(WORKLOADS[scale]["resnet34"]["task"]) == "CIFAR-10"
    theirs = authors.combine(figures, ledger.root) if comparable else None
    if theirs:
        figures[0] = theirs.figure
    whose = "Our claim" if report.ours else "The paper"
    lines = [f"## {report.title}, {scale} scale\n", f"{whose}: {report.claim}\n"]
    incomplete = not {"new", "waiting"}.isdisjoint(report.runs)
    verdict = "incomplete: runs are missing" if incomplete else headline(report)[0]
    lines += [f"**{verdict[:1].upper()}{verdict[1:]}.** Runs: {_states(report)}.\n"]
    lines += [f"![{figure.title}](figures/{figure.name}.png)\n" for figure in figures]
    if theirs and theirs.note not in notes:
        notes.add(theirs.note)
        lines.append(f"{theirs.note}\n")
    lines += [*_tables(report), *_claims(report), "Settings:\n", *(f"- {line}" for line in report.settings), ""]
    return "\n".join(lines), figures


def _tables(report: StudyReport) -> Iterator[str]:
    for table in (table for table in report.tables if any(row.final is not None for row in table.rows)):
        yield f"{table.name}, {table.metric}, mean ± standard deviation of one run:\n"
        yield "| method | settings | last epoch, test | best epoch, test | last epoch, training | rank |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for row in table.rows:
            other = [state for state in row.states if state != "finished"]
            notes = f" ({', '.join(f'{other.count(state)} {state}' for state in sorted(set(other)))})" if other else ""
            cells = (row.method, row.settings, f"{_value(row.final, row.final_error)}{notes}",
                     _value(row.best, row.best_error), _value(row.train), str(row.rank or "–"))  # fmt: skip
            yield f"| {' | '.join(map(_plain, cells))} |"
        yield ""


def _claims(report: StudyReport) -> Iterator[str]:
    yield "| claim | whose | measured | difference | interval | verdict |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for check in report.checks:
        cells = (check.claim, check.source, check.measured, _signed(check.difference), _interval(check), check.verdict)
        yield f"| {' | '.join(map(_plain, cells))} |"
    yield ""


def _states(report: StudyReport) -> str:
    return ", ".join(f"{runs} {'not run' if state == 'new' else state}" for state, runs in report.runs.items())


def _renamed(figure: ReportFigure, scale: str) -> ReportFigure:
    return replace(figure, name=f"results-{scale}-{figure.name}")


def _value(value: float | None, error: float | None = None) -> str:
    return "–" if value is None else f"{value:.2f}" + ("" if error is None else f" ± {error:.2f}")


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def _interval(check: Check) -> str:
    return f"{_signed(check.low)} to {_signed(check.high)}" if check.low is not None else "–"


def _plain(text: str) -> str:
    """Text with the special characters of Markdown and HTML escaped: a ledger may come from anyone."""
    return re.sub(r"([|<>\[\]`*_\\])", r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")
