"""The command line: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynabound.theory.verdicts import Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="AdaBound and AMSBound: measure them, see their learning rates, check their theory.",
)


@app.callback()
def _version() -> None:
    pass


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
    json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON instead of tables.")] = False,
) -> None:
    """Play the paper's theorems: a verdict on every claim, pictures, and all numbers."""
    try:
        from dynabound.theory import studies
    except ModuleNotFoundError as error:
        raise SystemExit(f"dynabound: {error.name} is missing: pip install 'dynabound[lab]'") from None
    if not names:
        listed = {name: (study.__doc__ or "").splitlines()[0] for name, study in studies.STUDIES.items()}
        _print_json(listed) if json else _print_listed(listed)
        return
    given = dict(alpha=alpha, beta1=beta1, beta2=beta2, period=period, steps=steps, seeds=seeds, scheme=scheme,
                 final_lr=final_lr, gamma=gamma)  # fmt: skip
    try:
        chosen = studies.choose(names, {key: value for key, value in given.items() if value is not None})
        # Nothing is written before all have run: what is wrong with the options shows up on the way.
        results = [_play(studies.STUDIES[name], name, options) for name, options in chosen.items()]
    except ValueError as error:
        raise SystemExit(f"dynabound: {error}") from None
    files = [studies.write(study, out) for study in results]
    if json:
        full = [study.as_dict() for study in results]
        _print_json([{key: study[key] for key in ("name", "title", "settings", "verdicts")} for study in full])
        return
    for study, paths in zip(results, files, strict=True):
        _print_study(study, paths)


def _play(run: Callable[..., Study], name: str, options: dict[str, object]) -> Study:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        return run(**options, progress=lambda done, total: bar.update(task, completed=done, total=total))


def _print_study(study: Study, paths: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=study.title, title_justify="left", title_style="bold", show_lines=False)
    for heading in ("claim", "measured", "verdict", "settings"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for verdict in study.verdicts:
        word = "[green]holds[/]" if verdict.holds else "[red]fails[/]"
        table.add_row(verdict.claim, verdict.measured, word, verdict.settings)
    console = Console()
    console.print(table)
    console.print(f"[dim]{study.summary}[/]\n[dim]{'  '.join(map(str, paths))}[/]\n", highlight=False)


def _print_listed(listed: dict[str, str]) -> None:
    for name, line in listed.items():
        typer.echo(f"{name:15} {line}")
    typer.echo("\ndynabound theory NAME..., or all; --help shows the options")


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False))
