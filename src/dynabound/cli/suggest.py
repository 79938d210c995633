"""``dynabound suggest``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dynabound._files import write_whole
from dynabound.cli import options
from dynabound.cli.output import echo, echo_json, progress_bar
from dynabound.lab.engines.base import limit_threads
from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.suggestions import suggest_rates, with_rates
from dynabound.tuning import Suggestion


@options.examples(
    "dynabound suggest digits --model resnet34 --epochs 8",
    "dynabound suggest pydoc --hidden 32 --examples 30000 --steps 1000 --out suggestion",
)
@options.expand(spec=options.Fields(RunSpec, without=("lr", "opt", "rates"), required=True))
def suggest(
    spec: dict[str, Any],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length of the planned run (default: that of --epochs).")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Repeat with other batches and average.")] = 1,
    finish: Annotated[
        Literal["auto", "adam", "sgd"], typer.Option(help="How far towards SGD; auto: where trials show a gain.")
    ] = "auto",
    data_dir: options.DataDir = None,
    device: options.Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for suggestion.png and suggestion.json.")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Find AdaBound's learning rates for a task and model by short trials.

    Prints lr, final_lr and gamma with the reason for each, and the command that trains with them.
    """
    chosen = RunSpec.from_dict(spec)
    options.check_readable(data_dir, "--data-dir")
    if out:
        options.check_folder(out)
    limit_threads(chosen)
    with progress_bar(quiet or as_json) as start:
        progress = start("suggesting learning rates")
        found = suggest_rates(
            chosen, steps=steps, repeats=repeats, finish=finish, data_dir=data_dir, device=device, progress=progress
        )
    if out:
        _write(found, out)
    command = _train_command(spec, with_rates(chosen, found))
    if steps is not None:  # they need not be whole epochs
        command += f"  # choose --epochs so that it has {steps} steps"
    if as_json:
        echo_json({**found.to_dict(), "command": command})
        return
    echo(f"{found}\n\n{command}")


def _write(found: Suggestion, out: Path) -> None:
    picture = io.BytesIO()
    found.figure().savefig(picture, format="png", dpi=110)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "suggestion.png", picture.getvalue(), durable=False)
    write_whole(out / "suggestion.json", (json.dumps(found.to_dict(), indent=1) + "\n").encode(), durable=False)


def _train_command(given: dict[str, Any], spec: RunSpec) -> str:
    """The command that trains ``spec``: the given options and the suggested numbers."""
    options = {name: value for name, value in given.items() if name != "task"}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    words += [f"--lr {spec.lr:g}", *(f"--opt {name}={value:g}" for name, value in spec.options.items())]
    return " ".join(["dynabound train", spec.task, *words])
