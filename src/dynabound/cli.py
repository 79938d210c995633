"""The command line: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from dynabound import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="AdaBound and AMSBound: measure them, see their learning rates, check their theory.",
)
console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON, for scripts, and nothing else.")]


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    pass


def _write_json(folder: Path, name: str, value: Any) -> Path:
    """Write whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)
    return path


@app.command()
def bench(
    work: Annotated[list[str] | None, typer.Argument(help="resnet34, small, large; all of them by default.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Steps of each contestant; the median counts.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; torch's choice by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json.")] = None,
    as_json: Json = False,
) -> None:
    """Time a step of AdaBound beside torch's fused Adam and every other AdaBound that is installed.

    The contestants take turns in one process, so that what disturbs one disturbs all. Look at the ratios: the
    milliseconds are this machine's. `large` needs about 4 GB of memory.
    """
    import torch

    from dynabound import bench as benchmark

    unknown = set(work or ()) - set(benchmark.WORKS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: must be among {', '.join(benchmark.WORKS)}")
    if threads:
        torch.set_num_threads(threads)
    results = []
    with Progress(console=console, transient=True, disable=as_json) as progress:
        for name in work or benchmark.WORKS:
            task = progress.add_task(name)

            def show(done: int, of: int, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=of)

            results.append(benchmark.measure(name, repetitions, show))
    report = {"torch": torch.__version__, "import_milliseconds": benchmark.import_milliseconds(), "works": results}
    if out:
        _write_json(out, "bench", report)
    if as_json:
        typer.echo(json.dumps(report))
        return
    _print_bench(report)


def _print_bench(report: dict[str, Any]) -> None:
    works = report["works"]
    table = Table(title=f"Milliseconds per step: torch {report['torch']}, {works[0]['threads']} threads, float32")
    table.add_column("")
    for result in works:
        table.add_column(f"{result['work']}\n{result['tensors']} × {result['elements'] / 1e6:.1f} M", justify="right")
    rows: dict[str, list[str]] = {}
    for result in works:
        cells = {name: f"{value:.2f}" for name, value in result["milliseconds"].items()}
        cells["AdaBound / fused Adam"] = f"{result['against_fused_adam']:.2f}"
        cells["AMSBound / AdaBound"] = f"{result['amsbound_against_adabound']:.2f}"
        if result["share_of_streaming_limit"] is not None:
            cells["share of the streaming limit"] = f"{result['share_of_streaming_limit']:.2f}"
        cells |= {f"times faster than {name}": f"{value:.1f}" for name, value in result["times_faster_than"].items()}
        peaks = result["peak_temporaries_in_parameters"]
        for name, value in peaks.items():
            cells[f"peak temporaries, {name}"] = "–" if value is None else f"{value:.2f} parameters"
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    for name, row in rows.items():
        table.add_row(name, *row, end_section=name in (list(works[0]["milliseconds"])[-1],))
    console.print(table)
    console.print(f"import dynabound takes {report['import_milliseconds']:.0f} ms after import torch")
