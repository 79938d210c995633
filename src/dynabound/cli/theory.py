"""``dynabound theory`` and ``bounds``: what is known before any run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from dynabound.cli.options import Json, check_folder, examples, one_of
from dynabound.cli.output import CommandError, echo, progress_bar, show
from dynabound.lens import forecast
from dynabound.theory import studies
from dynabound.theory.demonstration import Demonstration
from dynabound.theory.verdict import REFUTED, SUPPORTED, UNDECIDED

_NAMES = (*studies.DEMONSTRATIONS, "all")


@examples("dynabound theory", "dynabound theory theorem-3 --C 50 --seeds 3", "dynabound theory all --out theory")
def theory(
    names: Annotated[
        list[str] | None,
        typer.Argument(**one_of(_NAMES, "Demonstrations to run; none: list them", argument=True)),
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Initial step size α.")] = None,
    beta1: Annotated[float | None, typer.Option(help="β₁.")] = None,
    beta2: Annotated[float | None, typer.Option(help="β₂.")] = None,
    period: Annotated[int | None, typer.Option("--C", help="The problems' C (default: the smallest valid).")] = None,
    steps: Annotated[int | None, typer.Option("--T", help="Number of steps T.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    scheme: Annotated[str | None, typer.Option(**one_of(("sqrt", "constant"), "Step size: α/√t, or constant."))] = None,
    final_lr: Annotated[float | None, typer.Option(help="α*, the limit of the bounds.")] = None,
    gamma: Annotated[float | None, typer.Option(help="γ, the speed of the bounds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures and numbers.")] = Path("theory"),
    as_json: Json = False,
) -> None:
    """Simulate the paper's theorems: a verdict on every claim, figures and all numbers."""
    if not names:
        listed = {name: (study.__doc__ or "").splitlines()[0] for name, study in studies.DEMONSTRATIONS.items()}
        echo(json.dumps(listed, ensure_ascii=False)) if as_json else _print_list(listed)
        return
    check_folder(out)
    given = dict(alpha=alpha, beta1=beta1, beta2=beta2, period=period, steps=steps, seeds=seeds, scheme=scheme,
                 final_lr=final_lr, gamma=gamma)  # fmt: skip
    try:
        chosen = studies.choose(names, {key: value for key, value in given.items() if value is not None})
        # Nothing is written before all have run: some mistakes in the options show up only during a run.
        with np.errstate(over="ignore"), progress_bar() as start:  # absurd step sizes lead to infinity
            results = [studies.DEMONSTRATIONS[name](**options, progress=start(name))
                       for name, options in chosen.items()]  # fmt: skip
    except ValueError as error:
        raise CommandError(str(error)) from None
    files = [studies.write(study, out) for study in results]
    if as_json:
        full = [study.as_dict() for study in results]
        kept = [{key: study[key] for key in ("name", "title", "settings", "verdicts", "statements")} for study in full]
        echo(json.dumps(kept, ensure_ascii=False))
        return
    for study, paths in zip(results, files, strict=True):
        _print_study(study, paths)


def _print_study(study: Demonstration, paths: list[Path]) -> None:
    table = Table(title=study.title, title_justify="left", title_style="bold")
    for heading in ("claim", "source", "measured", "verdict", "settings"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for verdict in study.verdicts:
        colour = {SUPPORTED: "green", REFUTED: "red"}.get(verdict.verdict, "yellow")
        table.add_row(verdict.claim, verdict.source, verdict.measured, Text(verdict.verdict, colour), verdict.settings)
    show(table)
    show(Text("; ".join(f"{name}: {word}" for name, word in study.statements.items())))
    if any(verdict.verdict == UNDECIDED for verdict in study.verdicts):
        echo("undecided: T is too small to decide; give a larger --T")
    show(Text(f"{study.summary}\n{'  '.join(map(str, paths))}\n", "dim"))


def _print_list(listed: dict[str, str]) -> None:
    for name, line in listed.items():
        echo(f"{name:15} {line}")
    echo("\ndynabound theory NAME..., or all; --help shows the options")


@examples("dynabound bounds --final-lr 0.5 --gamma 0.01", "dynabound bounds --certificate --out bounds")
def bounds(
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    final_lr: Annotated[float, typer.Option(help="The learning rate of SGD at the end.")] = 0.1,
    gamma: Annotated[float, typer.Option(help="Speed at which the bounds converge.")] = 1e-3,
    family: Annotated[str, typer.Option(**one_of(forecast.CONVERGING, "Form of the bounds."))] = "harmonic",
    certificate: Annotated[bool, typer.Option("--certificate", help="Add what the theory says about them.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Folder for bounds.png and bounds.json.")] = None,
) -> None:
    """Draw the bounds: when they clip a rate, and when AdaBound is close to SGD."""
    try:
        result = forecast.forecast(lr, final_lr, gamma, family)
    except ValueError as error:
        raise CommandError(str(error), code=2) from None
    if out is not None:
        check_folder(out)
        result.save(out)
    echo(result.json() if as_json else result.text(certificate))
