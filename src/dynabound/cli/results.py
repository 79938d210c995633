"""``dynabound report`` and ``verify``: the results, and whether they can be repeated."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dynabound.cli.options import DataDir, Json, check_folder, check_readable, check_unused, examples, one_of
from dynabound.cli.output import echo, echo_json, print_table, printable, progress_bar
from dynabound.lab import ledger as ledgers
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import FIRST_POINTS, LAST_POINTS, Entry, Ledger, Outcome, sample
from dynabound.lab.ledger import verify as train_again
from dynabound.lab.spec import SCALES, describe
from dynabound.lab.store import Store
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import PEERS, STUDIES, Study, choose
from dynabound.lab.train import Progress

Names = Annotated[
    list[str] | None, typer.Argument(**one_of(STUDIES, "Studies (default: all of the paper's).", argument=True))
]
Scale = Annotated[str, typer.Option(**one_of(SCALES, "Size of the experiments."))]
OutDir = Annotated[Path, typer.Option("--out", help="Folder of the runs, the figures and the report.")]
AddTo = Annotated[
    Path | None,
    typer.Option("--add-to", metavar="LEDGER", help="At the end, add the studies' ended runs to a ledger."),
]


@examples(
    "dynabound report --out reproduction",
    "dynabound report mnist cifar10 --json",
    "dynabound report cifar10 --scale laptop --results results --out page",
    "dynabound report --results results --markdown docs/results.md",
    "dynabound report mnist --scale paper --add-to results",
)
def report(
    studies: Names = None,
    scale: Scale = "demo",
    results: Annotated[
        Path | None, typer.Option(metavar="LEDGER", help="Take the runs from a ledger; they are copied to --out.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --results: write all scales of the ledger as Markdown, no page."),
    ] = None,
    add_to: AddTo = None,
    out: OutDir = Path("reproduction"),
    as_json: Json = False,
) -> None:
    """Write the report of the stored runs, without running any.

    With --results the runs are those of a ledger: a folder of ended runs as plain text, which --add-to fills, here or
    in reproduce. --markdown writes one file about all studies and scales that the ledger has, with its figures in the
    folder figures beside it; --scale and --out have no effect then.
    """
    chosen = choose(studies or [], scale)
    if markdown:
        check_unused("--markdown", {"--add-to": add_to})
        if results is None:
            raise LabError("--markdown: needs the runs of a ledger; add --results LEDGER, such as --results results")
        _markdown([STUDIES[name] for name in studies or STUDIES], results, markdown)
        return
    check_ledger(add_to)
    if results:
        ledger = Ledger(results)
        ledger.require()
        ledgers.import_runs(chosen, scale, Store(out / "runs"), ledger)
    if not Store(out / "runs").runs() and theorems.missing(out / "theory") == list(theorems.NAMES):
        if results:
            names = ", ".join(study.name for study in chosen)
            raise LabError(f"{results}: has no runs of {names} at {scale} scale; give another --scale")
        raise LabError(
            f"{out}: has no runs; run: dynabound reproduce --out {shlex.quote(str(out))}, or give another --out"
        )
    if results and not studies:
        chosen = ledgers.available_studies(chosen, scale, StoredRuns(Store(out / "runs")))
    print_report(chosen, scale, out, add_to, as_json)


def check_ledger(folder: Path | None) -> None:
    """Raise, before anything is run, unless runs can be added to the ledger, which need not exist."""
    if folder is not None:
        check_folder(folder, "--add-to")
        Ledger(folder).entries()


def _markdown(studies: Sequence[Study], results: Path, path: Path) -> None:
    from dynabound.lab.report import pages, read, summary

    ledger = Ledger(results)
    entries = ledger.entries()
    scales = [scale for scale in reversed(SCALES) if any(entry.spec.scale == scale for entry in entries.values())]
    chosen = [study for study in studies if study.name not in ledgers.NOT_IN_LEDGERS]
    runs, authors = StoredRuns(None, entries, ledger.suggestions()), read.read_authors(results)
    report = summary.build(chosen, scales, runs, authors=authors, only_ended=True)
    figures = pages.write_markdown(report, list(entries.values()), results.name, path)
    echo(f"the results: {path}, with {figures} figures in {path.parent / 'figures'}")


def print_report(chosen: Sequence[Study], scale: str, out: Path, add_to: Path | None, as_json: bool) -> None:
    """Write the page, print a table of verdicts, and add the runs to a ledger."""
    from dynabound.lab.report import pages, summary

    report = summary.build(chosen, [scale], StoredRuns(Store(out / "runs")), out / "theory")
    path = pages.write_html(report, out)
    if add_to:
        added = ledgers.add_runs(chosen, scale, Store(out / "runs"), Ledger(add_to))
        echo(f"added to {add_to}: {added} runs and suggestions", err=True)
    if as_json:
        plain = [pages.as_dict(study) for study in report.studies]
        echo(json.dumps({"page": str(path), "scale": scale, "studies": plain}))
        return
    rows = []
    for study in report.studies:
        states = ", ".join(f"{runs} {state}" for state, runs in study.runs.items())
        rows.append((study.name, study.headline, states))
    print_table(("study", "claims", "runs"), rows)
    echo(f"the report: {printable(path)}")


@examples(
    "dynabound verify --results results",
    "dynabound verify --results results --sample 10 --seed 7 --data-dir DIR",
)
def verify(
    results: Annotated[Path, typer.Option(metavar="LEDGER", help="Folder of the ledger.")] = Path("results"),
    number: Annotated[int, typer.Option("--sample", min=1, max=1_000_000, help="Number of runs to train again.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice of runs.")] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train runs of a ledger again and compare.

    The runs are chosen at random. On the same CPU model, with the same versions of torch and dynabound and the same
    number of threads, every metric of every epoch must be equal bit for bit. Elsewhere rounding differs: accuracies of
    the first epoch may differ by 1 point, those of the last by 0.3 points or four standard deviations over the seeds of
    the same settings, if that is more; perplexities by as many per cent. Runs whose data set is not found are listed
    and not compared. Exits with 1 if a run differs.
    """
    ledger = Ledger(results)
    ledger.require()
    check_readable(data_dir, "--data-dir")
    outcomes = _train_again(ledger.entries(), number, seed, data_dir, as_json)
    if as_json:
        echo_json([{"run": each.entry.spec.name, "outcome": each.state, "reason": each.reason,
                    "spec": each.entry.spec.to_dict()} for each in outcomes])  # fmt: skip
    else:
        rows = [(each.entry.spec.name, describe(each.entry.spec), each.state, each.reason) for each in outcomes]
        print_table(("run", "settings", "outcome", "why"), rows, wrap="why")
        counts = Counter(each.state for each in outcomes)
        echo(f"{', '.join(f'{runs} {state}' for state, runs in counts.items())}; bit for bit on the same machine, "
             f"elsewhere the first epoch within {FIRST_POINTS:g} and the last within {LAST_POINTS:g} points of "
             "accuracy or per cent of perplexity, or four standard deviations over seeds")  # fmt: skip
    if any(each.state == "differs" for each in outcomes):
        raise typer.Exit(1)


def _train_again(
    entries: dict[str, Entry], number: int, seed: int, data_dir: Path | None, quiet: bool
) -> list[Outcome]:
    chosen = sample(entries, number, seed)
    trusted = tuple(path for path, _ in PEERS.values())
    outcomes = []
    with progress_bar(quiet) as start:
        for place, entry in enumerate(chosen, start=1):
            update = start(f"{place} of {len(chosen)}: {describe(entry.spec)}")
            show = partial(_show, update)
            outcomes.append(train_again(entry, trusted, data_dir, show, entries.values()))
    return outcomes


def _show(update: Callable[[int, int], None], now: Progress) -> None:
    update(now.step, now.steps)
