"""The command line. A command's module is imported when the command is called, not before."""

from __future__ import annotations

import importlib
import inspect
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from dynabound import doctor as diagnosis
from dynabound._version import __version__
from dynabound.cli.options import Json, examples
from dynabound.cli.output import one_line

__all__ = ["app"]

COMMANDS: dict[str, tuple[str, str]] = {
    "suggest": ("suggest", "Find AdaBound's learning rates for a task and model by short trials."),
    "train": ("runs", "Train one run, or resume it: the same options name the same run."),
    "runs": ("runs", "List, show and remove stored runs."),
    "data": ("runs", "List and download data sets."),
    "reproduce": ("studies", "Run the paper's experiments, all or some, and write the report."),
    "tune": ("studies", "Search for learning rates as the paper does."),
    "report": ("results", "Write the report of the stored runs, without running any."),
    "verify": ("results", "Train runs of a ledger again and compare."),
    "theory": ("theory", "Simulate the paper's theorems: a verdict on every claim, figures and all numbers."),
    "bounds": ("theory", "Draw the bounds: when they clip a rate, and when AdaBound is close to SGD."),
    "doctor": ("", "Show versions, the compiled kernel or why there is none, devices and extras."),
    "bench": ("bench", "Time a step of AdaBound against torch's fused Adam and other AdaBounds."),
}
"""For each command: the module that defines it under the same name, and the first line of its help.

``doctor`` is defined here, because it needs no module of its own."""


class _Commands(typer.core.TyperGroup):
    """A group that knows its commands by name and first line, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: typer.core.TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_types_of_flags(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = _load(name)
        return name, command, rest

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with one_line():  # it prints --help and --version
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        with one_line(lambda: ctx.invoked_subcommand):
            return super().invoke(ctx)


def _load(name: str) -> Any:
    module = COMMANDS[name][0]
    found: Any = getattr(importlib.import_module(f"dynabound.cli.{module}"), name) if module else doctor
    group = found
    if not isinstance(found, typer.Typer):
        group = typer.Typer(add_completion=False)
        paragraphs = (inspect.getdoc(found) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        group.command(name, help=text, epilog=found.epilog)(found)
    loaded = typer.main.get_command(group)
    loaded.name = name
    for command in (loaded, *getattr(loaded, "commands", {}).values()):
        _hide_types_of_flags(command.get_params(typer.Context(command)))
    return loaded


def _hide_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Without this, typer shows ``--json <bool>`` for an option that takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


@examples("dynabound doctor", "dynabound doctor --json")
def doctor(as_json: Json = False) -> None:
    """Show versions, the compiled kernel or why there is none, devices and extras."""
    diagnosis.main(as_json)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="AdaBound and AMSBound: train, measure, see their learning rates, check their theory.",
)


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
