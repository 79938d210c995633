"""``dynabound bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID
from rich.table import Table

from dynabound import bench as benchmark
from dynabound._files import write_whole
from dynabound.cli import tables
from dynabound.cli.checks import check_threads
from dynabound.cli.errors import check_folder
from dynabound.cli.options import Json, examples, one_of

__all__ = ["bench"]


@examples("dynabound bench", "dynabound bench small --repetitions 20 --json")
def bench(
    work: Annotated[
        list[str] | None, typer.Argument(**one_of(benchmark.WORKS, "What to update (default: all).", argument=True))
    ] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Steps per optimizer; shows the median.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads (default: torch's).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json.")] = None,
    as_json: Json = False,
) -> None:
    """Time a step of AdaBound against torch's fused Adam and other AdaBounds.

    All optimizers run in one process, interleaved step by step, so that a disturbance affects all of them. Compare the
    ratios: the milliseconds depend on the machine. `large` needs about 4 GB of memory.
    """
    unknown = set(work or ()) - set(benchmark.WORKS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: must be among {', '.join(benchmark.WORKS)}")
    if out:
        check_folder(out)
    check_threads(threads)
    if threads:
        torch.set_num_threads(threads)
    results = _measure(work or list(benchmark.WORKS), repetitions, quiet=as_json)
    imported = benchmark.import_milliseconds(min(repetitions or 5, 5))
    report = {"torch": torch.__version__, "import_milliseconds": imported, "works": results}
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "bench.json", (json.dumps(report, indent=2) + "\n").encode(), durable=False)
    tables.echo_json(report) if as_json else _print(report)


def _measure(works: list[str], repetitions: int | None, quiet: bool) -> list[dict[str, Any]]:
    results = []
    with Bar(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        for name in works:
            task = bar.add_task(name)

            def show(done: int, of: int, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=of)

            results.append(benchmark.measure(name, repetitions, show))
    return results


def _print(report: dict[str, Any]) -> None:
    works = report["works"]
    table = Table(title=f"Milliseconds per step: torch {report['torch']}, {works[0]['threads']} threads, float32")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for result in works:
        table.add_column(f"{result['work']}\n{result['tensors']} × {result['elements'] / 1e6:.1f} M", justify="right")
        for name, cell in _cells(result).items():
            rows.setdefault(name, []).append(cell)
    for name, row in rows.items():
        table.add_row(name, *row, end_section=name == list(works[0]["milliseconds"])[-1])
    tables.show(table)
    tables.echo(f"import dynabound takes {report['import_milliseconds']:.0f} ms after import torch")


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """A column of the table, from top to bottom."""
    cells = {name: f"{value:.2f}" for name, value in result["milliseconds"].items()}
    cells["AdaBound / fused Adam"] = f"{result['against_fused_adam']:.2f}"
    cells["AMSBound / AdaBound"] = f"{result['amsbound_against_adabound']:.2f}"
    if result["share_of_streaming_limit"] is not None:
        cells["share of the streaming limit"] = f"{result['share_of_streaming_limit']:.2f}"
    cells |= {f"times faster than {name}": f"{value:.1f}" for name, value in result["times_faster_than"].items()}
    for name, value in result["peak_temporaries_in_parameters"].items():
        cells[f"peak temporaries, {name}"] = "–" if value is None else f"{value:.2f} parameters"
    return cells
