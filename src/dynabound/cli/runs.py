"""``dynabound train``, ``runs`` and ``data``."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from dynabound.cli import options, progress
from dynabound.cli.output import echo, echo_json, print_table, printable, progress_bar
from dynabound.lab.engines.base import limit_threads
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Run, Store
from dynabound.lab.studies.suggestions import suggest_rates, with_rates
from dynabound.lab.tasks import catalog, datasets, optimizers
from dynabound.lab.tasks.download import check_source, download
from dynabound.lab.tasks.models import MODELS
from dynabound.lab.train import Progress, Result
from dynabound.lab.train import train as train_run
from dynabound.lab.training import distributed
from dynabound.lens.rates import rule_of

data = typer.Typer(no_args_is_help=True, add_completion=False, help="List and download data sets.")
runs = typer.Typer(add_completion=False, help="List, show and remove stored runs.")
STATES = ("running", "stopped", "finished", "diverged", "failed", "damaged")


@options.examples(
    "dynabound train digits",
    "dynabound train mnist --optimizer adam --lr 0.001 --epochs 20",
    "dynabound train cifar10 --model resnet34 --opt final_lr=0.5 --device cuda",
    "dynabound train digits --epochs 40 --suggest",
    "torchrun --nproc-per-node 2 -m dynabound train mnist",
    "dynabound train --resume 860a",
)
@options.expand(spec=options.Fields(RunSpec), saving=options.Fields(options.SaveOptions))
def train(
    spec: dict[str, Any],
    saving: dict[str, Any],
    suggest: Annotated[
        bool, typer.Option("--suggest", help="First find lr, final_lr and gamma by short trials (see: suggest).")
    ] = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume a stored run.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume: import the optimizer's module that the stored run names.")
    ] = False,
    data_dir: options.DataDir = None,
    out: options.Out = Path("runs"),
    device: options.Device = "cpu",
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Shard the model over torchrun's processes (FSDP2).")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves into the run's folder.")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train one run, or resume it: the same options name the same run.

    Safe to interrupt: run the same command again to resume.

    Under torchrun, N processes share every batch. With --fsdp each of them also keeps, and saves, only its part of
    the model and of the optimizer's state: for models that are too large for one. A run may be resumed with another
    N, with --fsdp or without.
    """
    options.check_finite("--checkpoint-minutes", saving.get("checkpoint_minutes"))
    options.check_readable(data_dir, "--data-dir")
    with distributed.joined(device, group=fsdp):
        store = Store(out)
        if trust and not resume:
            raise LabError("--trust: is for --resume; add --resume RUN, or leave it out")
        chosen = _stored_spec(store, resume, spec, trust) if resume else RunSpec.from_dict(spec)
        options.check_folder(out)
        check_optimizer(chosen, device)
        limit_threads(chosen)
        if suggest:
            chosen = _suggested(chosen, spec, resume, data_dir, device, quiet)
        curves = store.run(chosen).folder / "tensorboard" if tensorboard else None
        silent = quiet or distributed.rank() > 0
        with _stop_signals() as received, progress.one_run(chosen, silent) as shown:
            result = train_run(
                chosen,
                store,
                data_dir=data_dir,
                device=device,
                fsdp=fsdp,
                **saving,
                progress=_listener(shown, curves),
                stop=lambda: bool(received),
            )
        if distributed.rank() == 0:
            _print_result(result, chosen, out, as_json)
    if result.state == "stopped":
        sys.exit(128 + (received[0] if received else signal.SIGTERM))


def check_optimizer(spec: RunSpec, device: str) -> None:
    """Raise OptimizerError unless the lab can make a step with the optimizer, and read its rates if asked to."""
    param = torch.nn.Parameter(torch.zeros(2, 2, device=distributed.local_device(device)))
    optimizer = optimizers.build(spec.optimizer, [param], spec.lr, spec.weight_decay, spec.options)
    if spec.rates:
        try:
            rule_of(optimizer)
        except TypeError as error:
            raise optimizers.OptimizerError(f"--rates with --optimizer {spec.optimizer}: {error}") from None
    if ":" not in spec.optimizer and not spec.opt:
        return
    param.grad = torch.ones_like(param)
    optimizers.set_mode(optimizer, training=True)
    try:
        optimizer.step()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise optimizers.OptimizerError(
            f"--optimizer {spec.optimizer}: cannot make a step on {device} ({reason}); the lab calls step() without a "
            "closure, after a plain backward(); use another optimizer or other --opt"
        ) from None


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, so that a run can stop after the current step.

    The second one interrupts at once. Under ``torchrun`` it does not, because that forwards every signal it gets and
    kills processes that do not stop.
    """
    torchrun = bool(os.environ.get("WORLD_SIZE"))
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


def _suggested(
    chosen: RunSpec, given: dict[str, Any], resume: str | None, data_dir: Path | None, device: str, quiet: bool
) -> RunSpec:
    """``chosen`` with suggested learning rates; LabError if they were given as well."""
    known = {"resume": resume, **given, **chosen.options}
    fixed = [name for name in ("resume", "lr", "final_lr", "gamma") if known.get(name) is not None]
    if fixed:
        raise LabError(f"--suggest: finds lr, final_lr and gamma; leave out {', '.join(fixed)}, or --suggest")
    if distributed.world_size() > 1:
        raise LabError("--suggest: needs one process; run dynabound suggest first, then torchrun with its numbers")
    with progress_bar(quiet) as start:
        update = start("suggesting learning rates")
        found = suggest_rates(chosen, data_dir=data_dir, device=device, progress=update)
    chosen = with_rates(chosen, found)
    if not quiet:
        rates = ", ".join(f"{name} {value}" for name, value in {"lr": chosen.lr, **chosen.options}.items())
        echo(f"suggested: {rates}", err=True)
    return chosen


def _listener(shown: Callable[[Progress], None], curves: Path | None) -> Callable[[Progress], None]:
    """What to pass as ``train(progress=…)``: a function that shows the run and writes its curves."""
    listeners = [shown, progress.tensorboard(curves)] if curves and distributed.rank() == 0 else [shown]

    def listen(event: Progress) -> None:
        for each in listeners:
            each(event)

    return listen


def _stored_spec(store: Store, name: str, given: dict[str, Any], trust: bool) -> RunSpec:
    """The spec of a stored run. Its optimizer is imported only if the user trusts it: anyone may have written it."""
    spec = store.find(name).spec()
    foreign = ":" in spec.optimizer
    others = [option for option in given if not (foreign and option == "optimizer")]
    if others:
        names = ", ".join(others)
        raise LabError(f"--resume {name}: the stored spec is used, so leave out {names}; or train without --resume")
    if foreign and not trust and given.get("optimizer") != spec.optimizer:
        raise LabError(
            f"--resume {name}: its optimizer {spec.optimizer} would be imported and run; if you trust it, add --trust"
        )
    return spec


def _print_result(result: Result, spec: RunSpec, out: Path, as_json: bool) -> None:
    last = {key: value for key, value in (result.metrics or [{}])[-1].items() if key != "rates"}
    if as_json:
        echo_json({"run": spec.name, "state": result.state, **last, **result.details})
        return
    where = f" at step {result.details['step']}" if result.state != "finished" else ""
    echo(printable(f"run {spec.name} {result.state}{where}: {result.run.folder}"))
    if last:
        echo(progress.epoch_line(last, spec.epochs))
    if result.state == "stopped":
        trust = " --trust" if ":" in spec.optimizer else ""
        echo(f"resume with: dynabound train --resume {spec.name} --out {printable(shlex.quote(str(out)))}{trust}")


@data.command("list", epilog="Example: dynabound data list --data-dir DIR")
def data_list(data_dir: options.DataDir = None, as_json: options.Json = False) -> None:
    """Show where each data set is."""
    options.check_readable(data_dir, "--data-dir")
    rows = [(name, "embedded") for name in catalog.EMBEDDED]
    for name in catalog.SOURCES:
        folder = datasets.locate(name, data_dir)
        rows.append((name, str(folder) if folder else f"missing: dynabound data fetch {name}"))
    if as_json:
        echo_json(dict(rows))
        return
    for name, place in rows:
        echo(printable(f"{name:14} {place}"))


@data.command("fetch", epilog="Example: dynabound data fetch mnist cifar10")
def data_fetch(
    names: Annotated[list[str], typer.Argument(**options.one_of(catalog.SOURCES, "Data sets.", argument=True))],
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
) -> None:
    """Download data sets, check them, and print where they are."""
    for name in names:
        check_source(name)
    for name in names:
        with progress.download_bar(quiet) as bar:
            folder = download(name, data_dir, bar)
        datasets.load(name, data_dir)  # print the folder only if the data set can be read
        echo(f"{name}: {printable(folder)}")


@runs.callback(invoke_without_command=True, epilog="Example: dynabound runs --optimizer adam --state finished")
def runs_list(
    context: typer.Context,
    out: options.Out = Path("runs"),
    task: Annotated[str | None, typer.Option(**options.one_of(catalog.TASKS, "Only this task."))] = None,
    model: Annotated[str | None, typer.Option(**options.one_of(MODELS, "Only this model."))] = None,
    optimizer: Annotated[
        str | None, typer.Option(**options.one_of(optimizers.OPTIMIZERS, "Only this optimizer."))
    ] = None,
    state: Annotated[str | None, typer.Option(**options.one_of(STATES, "Only this state."))] = None,
    as_json: options.Json = False,
) -> None:
    """List, show and remove stored runs.

    Without a command: list the runs, all or those that match the options.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            source = context.get_parameter_source(name)
            if source and source.name == "COMMANDLINE":  # it would be ignored: the command has its own --out
                option, command = f"--{name.removeprefix('as_')}", context.invoked_subcommand
                raise typer.BadParameter(f"{option}: must come after {command}: dynabound runs {command} … {option}")
        return
    wanted = {"task": task, "model": model, "optimizer": optimizer, "state": state}
    rows = [
        row
        for row in map(_row, Store(out).runs())
        if all(value is None or row.get(key) == value for key, value in wanted.items())
    ]
    if as_json:
        echo_json(rows)
    elif not rows:
        echo(f"no matching runs in {printable(out)}")
    else:
        columns = ("run", "task", "model", "optimizer", "lr", "seed", "state", "epoch", "result")
        print_table(columns, ([row.get(column, "") for column in columns] for row in rows), wrap="result", width=160)


def _row(run: Run) -> dict[str, Any]:
    """A run, also a damaged one, as a row of the list."""
    try:
        spec, status = run.spec(), run.status()
        if status["state"] == "damaged":
            raise LabError(status["error"])
        metrics = run.metrics()
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


Name = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, or the beginning of it.")]


@runs.command("show", epilog="Example: dynabound runs show 860a --json")
def runs_show(run: Name, out: options.Out = Path("runs"), as_json: options.Json = False) -> None:
    """Show everything that is stored about a run."""
    found = Store(out).find(run)
    spec, status, metrics = found.spec(), found.status(), found.metrics()
    if as_json:
        parts = {"spec": spec.to_dict(), "status": status, "metrics": metrics, "environment": found.environment()}
        echo_json({"run": found.name, **parts})
        return
    # indent tracebacks
    shown = ", ".join(f"{key} {value}" for key, value in status.items()).replace("\n", "\n    ")
    echo(f"run {printable(found.name)}: {shown}")
    for title, fields in (("spec", spec.to_dict()), ("environment", (found.environment() or [{}])[-1])):
        known = {key: value for key, value in fields.items() if value not in (None, {})}
        echo(printable(f"{title}: {', '.join(f'{key} {value}' for key, value in known.items())}"))
    for line in metrics:
        echo(progress.epoch_line(line, spec.epochs))


@runs.command("remove", epilog="Example: dynabound runs remove 860a 1f33")
def runs_remove(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names, or beginnings of names.")],
    out: options.Out = Path("runs"),
) -> None:
    """Delete runs; a run that is being trained is not deleted."""
    for run in [Store(out).find(name) for name in runs]:
        run.remove()
        echo(f"removed {printable(run.name)}")
