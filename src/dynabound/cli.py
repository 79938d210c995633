"""The command line: parse, call, print."""

from __future__ import annotations

import typer

from dynabound.lab.commands import register as register_lab

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="AdaBound and AMSBound: measure them, see their learning rates, check their theory.",
)


@app.callback()
def _version() -> None:
    pass


register_lab(app)
