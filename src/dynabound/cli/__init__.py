"""The command line: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from dynabound import __version__
from dynabound._files import write_whole
from dynabound.cli.runs import register as register_lab
from dynabound.cli.studies import register as register_studies

if TYPE_CHECKING:
    from dynabound.theory.study import Demonstration

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
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode(), durable=False)
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
        table.add_row(name, *row, end_section=name == list(works[0]["milliseconds"])[-1])
    console.print(table)
    console.print(f"import dynabound takes {report['import_milliseconds']:.0f} ms after import torch")


@app.command("bounds")
def _bounds(
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    final_lr: Annotated[float, typer.Option(help="The learning rate of SGD at the end.")] = 0.1,
    gamma: Annotated[float, typer.Option(help="The speed at which the bounds close in.")] = 1e-3,
    family: Annotated[str, typer.Option(help="harmonic, exponential or linear.")] = "harmonic",
    certificate: Annotated[bool, typer.Option("--certificate", help="Add what the theory says of the bounds.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="A folder for bounds.png and bounds.json.")] = None,
) -> None:
    """Draw the funnel of bounds; say when rates are clipped and when AdaBound is all but SGD."""
    from dynabound.lens import forecast

    try:
        result = forecast.forecast(lr, final_lr, gamma, family)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if out is not None:
        result.save(out)
    typer.echo(result.json() if as_json else result.text(certificate))


@app.command()
def theory(
    names: Annotated[list[str] | None, typer.Argument(help="Studies, or all. Without a name: list them.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Initial step size α.")] = None,
    beta1: Annotated[float | None, typer.Option(help="β₁.")] = None,
    beta2: Annotated[float | None, typer.Option(help="β₂.")] = None,
    period: Annotated[int | None, typer.Option("--C", help="The problems' C. Default: the smallest valid.")] = None,
    steps: Annotated[int | None, typer.Option("--T", help="Number of steps T.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Step size: sqrt (α/√t) or constant.")] = None,
    final_lr: Annotated[float | None, typer.Option(help="α*, where the bounds meet.")] = None,
    gamma: Annotated[float | None, typer.Option(help="γ, the speed of the bounds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and numbers.")] = Path("theory"),
    as_json: Json = False,
) -> None:
    """Play the paper's theorems: a verdict on every claim, pictures, and all numbers."""
    try:
        from dynabound.theory import studies
    except ModuleNotFoundError as error:
        raise SystemExit(f"dynabound: {error}") from None
    if not names:
        listed = {name: (study.__doc__ or "").splitlines()[0] for name, study in studies.DEMONSTRATIONS.items()}
        typer.echo(json.dumps(listed, ensure_ascii=False)) if as_json else _print_listed(listed)
        return
    given = dict(alpha=alpha, beta1=beta1, beta2=beta2, period=period, steps=steps, seeds=seeds, scheme=scheme,
                 final_lr=final_lr, gamma=gamma)  # fmt: skip
    try:
        chosen = studies.choose(names, {key: value for key, value in given.items() if value is not None})
        # Nothing is written before all have run: what is wrong with the options shows up on the way.
        results = [_play(studies.DEMONSTRATIONS[name], name, options) for name, options in chosen.items()]
    except ValueError as error:
        raise SystemExit(f"dynabound: {error}") from None
    files = [studies.write(study, out) for study in results]
    if as_json:
        full = [study.as_dict() for study in results]
        kept = [{key: study[key] for key in ("name", "title", "settings", "verdicts", "statements")} for study in full]
        typer.echo(json.dumps(kept, ensure_ascii=False))
        return
    for study, paths in zip(results, files, strict=True):
        _print_study(study, paths)


def _play(run: Callable[..., Demonstration], name: str, options: dict[str, object]) -> Demonstration:
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        return run(**options, progress=lambda done, total: bar.update(task, completed=done, total=total))


def _print_study(study: Demonstration, paths: list[Path]) -> None:
    table = Table(title=study.title, title_justify="left", title_style="bold", show_lines=False)
    for heading in ("claim", "whose", "measured", "verdict", "settings"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for verdict in study.verdicts:
        # Red is what should not be: a claim that is known to be false may fail.
        colour = "yellow" if verdict.holds is None else "green" if verdict.as_expected else "red"
        word = f"[{colour}]{verdict.verdict}[/]"
        table.add_row(verdict.claim, verdict.source, verdict.measured, word, verdict.settings)
    console.print(table)
    console.print("; ".join(f"{name}: {word}" for name, word in study.statements.items()), highlight=False)
    if any(verdict.holds is None for verdict in study.verdicts):
        console.print("undecided: T is too short to tell; give a larger --T", highlight=False)
    console.print(f"[dim]{study.summary}[/]\n[dim]{'  '.join(map(str, paths))}[/]\n", highlight=False)


def _print_listed(listed: dict[str, str]) -> None:
    for name, line in listed.items():
        typer.echo(f"{name:15} {line}")
    typer.echo("\ndynabound theory NAME..., or all; --help shows the options")


register_lab(app)
register_studies(app)
