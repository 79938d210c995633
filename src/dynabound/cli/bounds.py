"""``dynabound bounds``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynabound.cli.errors import CommandError, check_folder
from dynabound.cli.options import Json, examples, one_of
from dynabound.cli.tables import echo
from dynabound.lens import forecast

__all__ = ["bounds"]


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
