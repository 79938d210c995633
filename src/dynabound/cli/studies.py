"""The commands that run whole studies: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from dynabound.cli.board import board
from dynabound.cli.runs import (
    BatchSize,
    DataDir,
    DecayAfter,
    Epochs,
    Examples,
    Hidden,
    Json,
    Layers,
    Model,
    ScaleLabel,
    WeightDecay,
    Width,
    _one_line_errors,
)
from dynabound.lab.describe import describe
from dynabound.lab.engines.local import LocalEngine
from dynabound.lab.engines.ray_driver import RayEngine
from dynabound.lab.errors import LabError
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.spec import SCALES, TASKS, RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import drive, simulate
from dynabound.lab.studies import plan as plans
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.plan import losses, read
from dynabound.lab.studies.recipes import STUDIES, choose, seeded
from dynabound.lab.studies.search import GRIDS, Loss, Search, search

__all__ = ["register"]

Names = Annotated[list[str] | None, typer.Argument(metavar="[STUDY]...", help=f"{', '.join(STUDIES)}; default: all.")]
Scale = Annotated[str, typer.Option(help=f"{', '.join(SCALES)}.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at the same time; default: one per core, or GPU.")]
Where = Annotated[str, typer.Option("--engine", help="local: this machine; ray: a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="Of Ray: auto, host:port, ray://host:port; default: start it here.")]
Cpus = Annotated[int | None, typer.Option(min=1, help="Cores, and threads, of a run on Ray; default: 1 per rank.")]
Gpus = Annotated[float | None, typer.Option(min=0.0, help="GPUs of a run on Ray; default: 1 per rank on cuda.")]
Ranks = Annotated[int | None, typer.Option(min=1, help="Processes that train a run on Ray together; default: 1.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps …")]
Workers = Annotated[list[int] | None, typer.Option(min=1, help="With --plan; repeatable; default: 8, 64, 512.")]
OutDir = Annotated[Path, typer.Option("--out", help="Folder of runs, figures and page.")]
_OUT = Path("reproduction")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (reproduce, tune, report):
        app.command()(command)


@contextmanager
def _faults_told() -> Iterator[None]:
    """What the user can repair is told in a line, and so is Ctrl-C, whatever it interrupts."""
    try:
        with _one_line_errors():
            yield
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; the same command goes on from here", err=True)
        sys.exit(130)


def reproduce(
    studies: Names = None,
    scale: Scale = "demo",
    jobs: Jobs = None,
    engine: Where = "local",
    address: Address = None,
    cpus_per_run: Cpus = None,
    gpus_per_run: Gpus = None,
    ranks_per_run: Ranks = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be run, and what it costs.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only foretell how long it takes on --workers N.")] = False,
    workers: Workers = None,
    tflops: Annotated[float, typer.Option(min=0.01, help="With --plan: a GPU's assumed speed.")] = 10.0,
    data_dir: DataDir = None,
    device: Device = "cpu",
    out: OutDir = _OUT,
    as_json: Json = False,
) -> None:
    """Run every experiment of the paper, or some, and write the report. Interrupt it at will: run again, it goes on."""
    with _faults_told():
        chosen = choose(studies or [], scale)
        place = _engine(engine, address, jobs, cpus_per_run, gpus_per_run, ranks_per_run, data_dir, device)
        store = Store(out / "runs")
        if plan:
            _plan(simulate.estimate_time(chosen, scale, store, workers or (8, 64, 512), 1e12 * tflops), tflops, as_json)
            return
        if dry_run:
            unplayed = None if all(study.rows for study in chosen) else theorems.missing(out / "theory")
            _dry_run(plans.plan(chosen, scale, store), unplayed, scale, as_json)
            return
        specs = [row.spec(scale) for study in chosen for row in study.rows]
        drive.check(specs if engine == "local" else (), out, data_dir)  # a node fetches what it does not find
        failed = _run(lambda loss: plans.wanted(chosen, scale, store, loss), store, place, as_json)
        if any(not study.rows for study in chosen):
            _play_theory(out / "theory", as_json)
        _report([study.name for study in chosen], scale, out, as_json)
    if failed:
        typer.echo(f"{failed} runs failed; the report tells why, and the same command tries them again", err=True)
        raise typer.Exit(1)


def _engine(
    name: str,
    address: str | None,
    jobs: int | None,
    cpus: int | None,
    gpus: float | None,
    ranks: int | None,
    data_dir: Path | None,
    device: str,
    modules: Sequence[str] = (),
) -> LocalEngine | RayEngine:
    """The engine that the options ask for, or what is wrong with them."""
    if name == "local":
        given = {"address": address, "cpus-per-run": cpus, "gpus-per-run": gpus, "ranks-per-run": ranks}
        for option in (option for option, value in given.items() if value is not None):
            raise LabError(f"--{option}: is for Ray; add --engine ray, or leave it out")
        return LocalEngine(jobs, data_dir, device)
    if name != "ray":
        raise LabError(f"--engine {name}: must be local or ray")
    if jobs:
        raise LabError("--jobs: is for --engine local; on Ray, --cpus-per-run and --gpus-per-run say how many runs fit")
    if device not in ("cpu", "cuda"):
        raise LabError(f"--device {device}: must be cpu or cuda with --engine ray, which chooses the GPU")
    ranks, cuda = ranks or 1, device == "cuda"
    cpus, gpus = cpus or ranks, (ranks if cuda else 0) if gpus is None else gpus
    if bool(gpus) != cuda:
        remedy = "leave out --gpus-per-run" if cuda else "add --device cuda"
        raise LabError(f"--gpus-per-run {gpus:g} with --device {device}: {remedy}")
    if gpus > 1 and gpus % 1:
        raise LabError(
            f"--gpus-per-run {gpus:g}: runs share a GPU, or have whole ones; ask for 1 at most, or an integer"
        )
    if cpus < ranks or (cuda and 1 < ranks > gpus):
        raise LabError(f"--ranks-per-run {ranks}: every rank needs a CPU, and on cuda a GPU; ask for {ranks} per run")
    return RayEngine(address, cpus=cpus, gpus=gpus, ranks=ranks, data_dir=data_dir, device=device, modules=modules)


def _run(source: Callable[[Loss], Sequence[RunSpec]], store: Store, place: LocalEngine | RayEngine, quiet: bool) -> int:
    """Run all that ``source`` wants; how many runs failed."""
    with place as engine, board(lambda: engine.jobs, quiet) as shown:
        drive.complete(source, store, engine, shown.begin, shown.listen)
        return shown.failed


def _play_theory(folder: Path, quiet: bool) -> None:
    names = theorems.missing(folder)
    if not names:
        return
    with Bar(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        for name in names:
            task = bar.add_task(name, total=None)

            def progress(done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            theorems.play(name, folder, progress)


def report(
    studies: Names = None,
    scale: Scale = "demo",
    out: OutDir = _OUT,
    as_json: Json = False,
) -> None:
    """Write the report of the runs that are stored, without running any."""
    with _faults_told():
        chosen = choose(studies or [], scale)
        if not Store(out / "runs").runs() and theorems.missing(out / "theory") == list(theorems.NAMES):
            raise LabError(f"{out}: has no runs; run: dynabound reproduce --out {out}, or give another --out")
        _report([study.name for study in chosen], scale, out, as_json)


def _report(names: list[str], scale: str, out: Path, as_json: bool) -> None:
    from dynabound.lab.report import html, summary

    report = summary.build([STUDIES[name] for name in names], scale, out)
    path = html.write(report, out)
    if as_json:
        plain = [html.as_dict(study) for study in report.studies]
        typer.echo(json.dumps({"page": str(path), "scale": scale, "studies": plain}))
        return
    table = Table(box=None, header_style="bold")
    for column in ("study", "verdict", "the paper's claims", "runs"):
        table.add_column(column)
    for study in report.studies:
        counts = html.paper_claims(study)
        comparable = sum(counts.values()) - counts["none"]
        states = ", ".join(f"{runs} {state}" for state, runs in study.runs.items())
        table.add_row(study.name, study.verdict, f"{counts['yes']} of {comparable} hold", states)
    _print(table)
    typer.echo(f"the report: {path}")


def _dry_run(planned: list[plans.Planned], unplayed: list[str] | None, scale: str, as_json: bool) -> None:
    """Tell what would be run and played; ``unplayed`` is None if no demonstration is asked for."""
    from dynabound.lab.studies import cost as estimate

    left, costs = [run for run in planned if run.state not in ENDED], []
    if scale == "paper":
        costs = estimate.estimate(
            [run.spec for run in left], lambda name: typer.echo(f"measuring steps of {name}", err=True)
        )
    if as_json:
        listed = [{"study": p.study, "label": p.label, "run": p.spec.name, "state": p.state, "note": p.note,
                   "spec": p.spec.to_dict()} for p in planned]  # fmt: skip
        cost = [{**vars(c), "gpu_hours": c.gpu_hours} for c in costs]
        typer.echo(json.dumps({"runs": listed, "theory": unplayed, "costs": cost}))
        return
    for p in planned:
        typer.echo(f"{p.study:16} {p.state:9} {describe(p.spec)}{f'  ({p.note})' if p.note else ''}")
    if unplayed is not None:
        todo = f"{', '.join(unplayed)}: to be played; all five take some 30 s" if unplayed else "all played"
        typer.echo(f"{'theory':16} {'new' if unplayed else 'finished':9} {todo}")
    more = "; a search may ask for more at its edges" if any(p.note == "search" for p in left) else ""
    typer.echo(f"{len({p.spec.name for p in left})} runs to do of {len({p.spec.name for p in planned})}{more}")
    for c in costs:
        typer.echo(
            f"{c.workload:22} {c.runs:5} runs  {c.steps:12,} steps  {c.flops:8.2e} FLOP  "
            f"{c.gpu_hours:8.1f} GPU hours  {c.seconds / 3600:10,.0f} hours on this CPU"
        )
    if costs:
        flops, hours = sum(c.flops for c in costs), sum(c.gpu_hours for c in costs)
        typer.echo(
            f"in all {flops:.2e} floating-point operations: {hours:,.0f} GPU hours at an assumed "
            f"{estimate.GPU_FLOPS / 1e12:g} TFLOP/s and {1e3 * estimate.STEP_SECONDS:g} ms per step at least, "
            f"{sum(c.seconds for c in costs) / 3600:,.0f} hours on this CPU"
        )


def _plan(plan: dict[str, Any], tflops: float, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**plan, "tflops": tflops}))
        return
    typer.echo(
        f"{plan['runs']} runs to do at {plan['scale']} scale, no more than {plan['at_once']} at a time: "
        f"{plan['flops']:.2e} FLOP, {_time(plan['work_seconds'])} of work, {_size(plan['bytes'])} "
        f"when all have ended, up to {_size(2 * plan['largest_bytes'])} more for each run that goes on"
    )
    table = Table("workload", "runs", "parameters", "FLOP", "work", "storage", "times", box=None, header_style="bold")
    for w in plan["workloads"]:
        table.add_row(w["workload"], str(w["runs"]), f"{w['parameters']:,}", f"{w['flops']:.2e}",
                      _time(w["seconds"]), _size(w["bytes"]), w["time"])  # fmt: skip
    _print(table)
    table = Table("workers", "takes", "utilisation", "work / workers", "longest chain", "limited by", box=None,
                  header_style="bold")  # fmt: skip
    for s in plan["schedules"]:
        table.add_row(str(s["workers"]), _time(s["makespan"]), f"{s['utilisation']:.0%}",
                      _time(s["share"]), _time(plan["chain_seconds"]), s["limit"])  # fmt: skip
    _print(table)
    for text in (f"a GPU does {tflops:g} TFLOP/s, and a step takes a millisecond at least", *plan["assumed"]):
        typer.echo(f"assumed: {text}")


def _time(seconds: float) -> str:
    return next(
        f"{seconds / unit:,.1f} {name}"
        for unit, name in ((3600, "h"), (60, "min"), (1, "s"))
        if seconds >= unit or unit == 1
    )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _print(table: Table) -> None:
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


def tune(
    task: Annotated[str, typer.Argument(help=f"What to learn: {', '.join(TASKS)}.")],
    optimizers: Annotated[
        list[str] | None, typer.Option("--optimizer", help=f"Repeatable; default: {', '.join(GRIDS)}.")
    ] = None,
    model: Model = None,
    width: Width = None,
    hidden: Hidden = None,
    layers: Layers = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    decay_after: DecayAfter = None,
    weight_decay: WeightDecay = None,
    examples: Examples = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of the winner.")] = 3,
    scale: ScaleLabel = None,
    jobs: Jobs = None,
    engine: Where = "local",
    address: Address = None,
    cpus_per_run: Cpus = None,
    gpus_per_run: Gpus = None,
    ranks_per_run: Ranks = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    out: OutDir = _OUT,
    as_json: Json = False,
) -> None:
    """Search for step sizes as the paper does: five points, more at an edge, the lowest final training loss wins."""
    given = {k: v for k, v in locals().items() if k in RunSpec.__dataclass_fields__ and v is not None}
    with _faults_told():
        specs = [RunSpec(**given, optimizer=name) for name in optimizers or GRIDS]
        store = Store(out / "runs")
        modules = [spec.optimizer.partition(":")[0].partition(".")[0] for spec in specs if ":" in spec.optimizer]
        place = _engine(engine, address, jobs, cpus_per_run, gpus_per_run, ranks_per_run, data_dir, device, modules)
        drive.check(specs if engine == "local" else (), out, data_dir)
        failed = _run(plans.tuning(specs, seeds), store, place, as_json)
        found = {spec.optimizer: search(spec, losses(store)) for spec in specs}
        if as_json:
            typer.echo(json.dumps({name: _found(result, store, seeds) for name, result in found.items()}))
        else:
            for name, result in found.items():
                _print_found(name, result, _found(result, store, seeds))
    if failed:
        typer.echo(f"{failed} runs failed; the same command tries them again", err=True)
        raise typer.Exit(1)


def _found(result: Search, store: Store, seeds: int) -> dict[str, Any]:
    """What a search tried, and how the winner's seeds ended, as JSON has it."""
    best, tried = result.best, [(read(store, spec), loss) for spec, loss in result.tried]
    winner = [read(store, spec) for spec in seeded(best, seeds)] if best else []
    final = [run.series("test")[-1] for run in winner if run.state == "finished"]
    return {
        "best": best and best.to_dict(),
        "test": best and {
            "metric": "perplexity" if best.text else "accuracy (%)",
            "mean": mean(final) if final else None,
            "std": std(final) if len(final) > 1 else None,
            "states": [run.state for run in winner],
        },
        "tried": [{"lr": run.spec.lr, "opt": run.spec.options, "state": run.state, "error": run.error,
                   "train_loss": loss if run.state == "finished" else None} for run, loss in tried],
    }  # fmt: skip


def _print_found(name: str, result: Search, told: dict[str, Any]) -> None:
    rows = zip(result.tried, told["tried"], strict=True)
    for (spec, loss), run in sorted(rows, key=lambda row: row[0][1]):
        error = run["error"].strip().rpartition("\n")[-1]  # a traceback ends with what happened
        state = f"train loss {loss:10.5g}" if run["state"] == "finished" else run["state"]
        mark = " best" if spec == result.best else f": {error}" if error else ""
        typer.echo(f"{name:10} {describe(spec):60} {state}{mark}")
    if not result.tried:
        typer.echo(f"{name:10} has no grid: it keeps its defaults")
    test = told["test"]
    if test is None:
        typer.echo(f"{name:10} has no winner: no run came to its end")
        return
    ended = test["states"].count("finished")
    value = "none" if test["mean"] is None else f"{test['mean']:.2f}"
    value += "" if test["std"] is None else f" ± {test['std']:.2f} (mean ± standard deviation)"
    typer.echo(f"{name:10} final test {test['metric']}, {ended} of {len(test['states'])} seeds: {value}")
