"""The laboratory's commands: parse, call, print."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dynabound.cli import progress as show
from dynabound.lab import distributed
from dynabound.lab.errors import LabError
from dynabound.lab.spec import MODELS, PRECISIONS, SCALES, TASKS, RunSpec
from dynabound.lab.store import Run, Store
from dynabound.lab.tasks import catalog, datasets
from dynabound.lab.tasks.download import fetch as fetch_data
from dynabound.lab.train import Progress, Result
from dynabound.lab.train import train as train_run

__all__ = ["register"]

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets: what is where, and downloads.")
runs_app = typer.Typer(rich_markup_mode=None, help="Stored runs: list, show, remove.")

_OUT = typer.Option("--out", help="Folder of the runs.")
_DATA_DIR = typer.Option("--data-dir", envvar="DYNABOUND_DATA", help="Folder that is searched for data first.")
_JSON = typer.Option("--json", help="Print JSON.")
Out = Annotated[Path, _OUT]
DataDir = Annotated[Path | None, _DATA_DIR]
Json = Annotated[bool, _JSON]
Model = Annotated[str | None, typer.Option(help=f"{', '.join(MODELS)}.")]
Width = Annotated[float | None, typer.Option(help="Of resnet34, densenet121; 1 is the paper's.")]
Hidden = Annotated[int | None, typer.Option(help="Units of perceptron, lstm.")]
Layers = Annotated[int | None, typer.Option(help="Of lstm.")]
BatchSize = Annotated[int | None, typer.Option(help="Images, or columns of text, of a step.")]
Epochs = Annotated[int | None, typer.Option(help="Passes through the training data; default: 10.")]
DecayAfter = Annotated[int | None, typer.Option(help="Divide lr by 10 after this epoch.")]
WeightDecay = Annotated[float | None, typer.Option(help="As the optimizer has it; default: the task's.")]
Examples = Annotated[int | None, typer.Option(help="Train on the first so many only.")]
ScaleLabel = Annotated[str | None, typer.Option(help=f"Label: {', '.join(SCALES)}.")]


def register(app: typer.Typer) -> None:
    """Add the laboratory's commands to the command line."""
    app.command()(train)
    app.add_typer(data_app, name="data")
    app.add_typer(runs_app, name="runs")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """A fault that the user can repair is one line on standard error, and exit code 1."""
    try:
        yield
    except LabError as error:
        typer.echo(f"dynabound: {error}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals SIGINT and SIGTERM as they come in, instead of an end in the middle of something.

    The second one ends the process at once, as it does without this; but not under ``torchrun``, which sends one more
    whenever it is sent one itself, and makes an end of those who do not heed it.
    """
    torchrun = "WORLD_SIZE" in os.environ
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)
        if not torchrun:
            for each, handler in before.items():
                signal.signal(each, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _option(text: str) -> tuple[str, Any]:
    """``key=value``: the value as Python would read it, or else as a string."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r}: must be key=value, such as final_lr=0.5 or betas=0.9,0.99")
    try:
        return key, ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError):
        return key, value


def train(
    task: Annotated[str | None, typer.Argument(help=f"What to learn: {', '.join(TASKS)}.")] = None,
    model: Model = None,
    width: Width = None,
    hidden: Hidden = None,
    layers: Layers = None,
    dropout: Annotated[float | None, typer.Option(help="Of lstm.")] = None,
    bptt: Annotated[int | None, typer.Option(help="Words that the lstm's gradient reaches back.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm of lstm; 0: any.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="A name, or module:Class.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    opt: Annotated[list[str] | None, typer.Option(help="Optimizer argument key=value, repeatable.")] = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    decay_after: DecayAfter = None,
    weight_decay: WeightDecay = None,
    seed: Annotated[int | None, typer.Option(help="Of all that is random; default: 0.")] = None,
    examples: Examples = None,
    precision: Annotated[str | None, typer.Option(help=f"{', '.join(PRECISIONS)}.")] = None,
    rates: Annotated[bool | None, typer.Option("--rates", help="Tell every layer's learning rates.")] = None,
    scale: ScaleLabel = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a stored run.")] = None,
    data_dir: DataDir = None,
    out: Out = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda, mps …")] = "cpu",
    fsdp: Annotated[
        bool,
        typer.Option("--fsdp", help="Cut the model up among torchrun's processes (FSDP2)."),
    ] = False,
    checkpoint_steps: Annotated[int | None, typer.Option(min=1, help="Save every N steps.")] = None,
    checkpoint_minutes: Annotated[float, typer.Option(min=0.0, help="Save every N minutes.")] = 2.0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves into the run's folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train one run, or go on with it: the same options name the same run.

    torchrun --nproc-per-node N -m dynabound train … makes N processes share
    every batch. With --fsdp each of them also keeps, and saves, only its part
    of the model and of the optimizer's state: for models that are too large
    for one. A run may go on with another N, with --fsdp or without.
    """
    given = {k: v for k, v in locals().items() if k in RunSpec.__dataclass_fields__ and v is not None}
    if opt:
        given["opt"] = dict(map(_option, opt))
    with _one_line_errors(), distributed.joined(device, group=fsdp):
        store = Store(out)
        spec = _stored_spec(store, resume, given) if resume else RunSpec.from_dict(given)
        with _signals() as received, show.live(spec, quiet or distributed.rank() > 0) as listener:
            listeners = [listener] if listener else []
            if tensorboard and distributed.rank() == 0:
                listeners.append(show.tensorboard(store.run(spec).folder / "tensorboard"))

            def progress(event: Progress) -> None:
                for each in listeners:
                    each(event)

            result = train_run(
                spec,
                store,
                data_dir=data_dir,
                device=device,
                fsdp=fsdp,
                checkpoint_steps=checkpoint_steps,
                checkpoint_minutes=checkpoint_minutes,
                progress=progress if listeners else None,
                stop=lambda: bool(received),
            )
        if distributed.rank() == 0:
            _print_result(result, spec, out, as_json)
    if result.state == "stopped":
        sys.exit(128 + (received[0] if received else signal.SIGTERM))


def _stored_spec(store: Store, name: str, given: dict[str, Any]) -> RunSpec:
    if given:
        names = ", ".join(given)
        raise LabError(f"--resume {name}: the stored spec holds, so leave out {names}; or train anew without --resume")
    return store.find(name).spec()


def _print_result(result: Result, spec: RunSpec, out: Path, as_json: bool) -> None:
    last = {key: value for key, value in (result.metrics or [{}])[-1].items() if key != "rates"}
    if as_json:
        typer.echo(json.dumps({"run": spec.name, "state": result.state, **last, **result.details}))
        return
    where = f" at step {result.details['step']}" if result.state != "finished" else ""
    typer.echo(f"run {spec.name} {result.state}{where}: {result.run.folder}")
    if last:
        typer.echo(show.epoch_line(last, spec.epochs))
    if result.state == "stopped":
        typer.echo(f"go on with: dynabound train --resume {spec.name} --out {out}")


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """What is where."""
    rows = [(name, "embedded") for name in catalog.EMBEDDED]
    for name in catalog.SOURCES:
        folder = datasets.locate(name, data_dir)
        rows.append((name, str(folder) if folder else f"missing: dynabound data fetch {name}"))
    if as_json:
        typer.echo(json.dumps(dict(rows)))
        return
    for name, place in rows:
        typer.echo(f"{name:14} {place}")


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help=f"{', '.join(catalog.SOURCES)}.")],
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Download data sets, check them, and tell where they are."""
    with _one_line_errors():
        for name in names:
            with show.download_bar(quiet) as progress:
                folder = fetch_data(name, data_dir, progress)
            datasets.load(name, data_dir)  # what cannot be read is not said to be there
            typer.echo(f"{name}: {folder}")


@runs_app.callback(invoke_without_command=True)
def runs_list(
    context: typer.Context,
    out: Out = Path("runs"),
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Only this optimizer.")] = None,
    state: Annotated[str | None, typer.Option(help="Only this state: running, stopped, finished …")] = None,
    as_json: Json = False,
) -> None:
    """List the runs, all or those that the options name."""
    if context.invoked_subcommand is not None:
        return
    wanted = {"task": task, "model": model, "optimizer": optimizer, "state": state}
    rows = [
        row
        for row in map(_row, Store(out).runs())
        if all(value is None or row.get(key) == value for key, value in wanted.items())
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(box=None, header_style="bold")
    columns = ("run", "task", "model", "optimizer", "lr", "seed", "state", "epoch", "result")
    for column in columns:
        table.add_column(column, no_wrap=column != "result")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    width = None if sys.stdout.isatty() else 160
    Console(highlight=False, markup=False, width=width).print(table if rows else f"no such runs in {out}")


def _row(run: Run) -> dict[str, Any]:
    """A run in a line; a damaged one is a line too."""
    try:
        spec, metrics, status = run.spec(), run.metrics(), run.status()
    except LabError as error:
        return {"run": run.name, "state": "damaged", "result": str(error)}
    last = metrics[-1] if metrics else {}
    value = last.get(f"test_{spec.metric}")
    result = "" if value is None else f"{spec.metric} {value:.4g}"
    return {
        "run": run.name,
        **{key: getattr(spec, key) for key in ("task", "model", "optimizer", "lr", "seed")},
        "state": status["state"],
        "epoch": f"{len(metrics)}/{spec.epochs}",
        "result": result,
    }


@runs_app.command("show")
def runs_show(run: str, out: Out = Path("runs"), as_json: Json = False) -> None:
    """All that is known about a run; its name may be shortened."""
    with _one_line_errors():
        found = Store(out).find(run)
        spec, status, metrics = found.spec(), found.status(), found.metrics()
        if as_json:
            parts = {"spec": spec.to_dict(), "status": status, "metrics": metrics, "environment": found.environment()}
            typer.echo(json.dumps({"run": found.name, **parts}))
            return
        typer.echo(f"run {found.name}: {', '.join(f'{key} {value}' for key, value in status.items())}")
        for title, fields in (("spec", spec.to_dict()), ("environment", (found.environment() or [{}])[-1])):
            known = {key: value for key, value in fields.items() if value not in (None, {})}
            typer.echo(f"{title}: {', '.join(f'{key} {value}' for key, value in known.items())}")
        for line in metrics:
            typer.echo(show.epoch_line(line, spec.epochs))


@runs_app.command("remove")
def runs_remove(runs: list[str], out: Out = Path("runs")) -> None:
    """Delete runs; not one that is being trained."""
    with _one_line_errors():
        for run in [Store(out).find(name) for name in runs]:
            run.remove()
            typer.echo(f"removed {run.name}")
