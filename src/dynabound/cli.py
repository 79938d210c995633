"""The command line: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="AdaBound and AMSBound: measure them, see their learning rates, check their theory.",
)


@app.callback()
def _version() -> None:
    pass


@app.command("bounds")
def _bounds(
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    final_lr: Annotated[float, typer.Option(help="The learning rate of SGD at the end.")] = 0.1,
    gamma: Annotated[float, typer.Option(help="The speed at which the bounds close in.")] = 1e-3,
    family: Annotated[str, typer.Option(help="harmonic, exponential or linear.")] = "harmonic",
    certificate: Annotated[bool, typer.Option("--certificate", help="Add what the theory says of the bounds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
