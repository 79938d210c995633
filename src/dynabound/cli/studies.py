"""``dynabound reproduce`` and ``tune``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from dynabound.cli import options
from dynabound.cli.output import CommandError, echo, echo_json, print_table, progress_bar
from dynabound.cli.progress import board
from dynabound.cli.results import AddTo, Names, OutDir, Scale, check_ledger, print_report
from dynabound.cli.runs import check_optimizer
from dynabound.lab import ledger as ledgers
from dynabound.lab.engines.base import cores
from dynabound.lab.engines.pool import LocalEngine, run_tasks
from dynabound.lab.engines.ray import RayEngine
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Ledger
from dynabound.lab.report.statistics import mean, std
from dynabound.lab.spec import RunSpec, describe
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import cost, drive
from dynabound.lab.studies import plan as plans
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import Study, choose, seeded
from dynabound.lab.studies.search import GRIDS, TUNE_GRIDS, Loss, Search, search_lr
from dynabound.lab.training import distributed

_OUT = Path("reproduction")

DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and, at paper scale, their cost, and exit.")]
Plan = Annotated[bool, typer.Option("--plan", help="Estimate the time on N workers and exit.")]
Workers = Annotated[
    list[int] | None,
    typer.Option(metavar="N", min=1, max=1_000_000, help="With --plan: workers; repeatable (default 8, 64, 512)."),
]
TFlops = Annotated[float | None, typer.Option(min=0.01, help="With --plan: assumed speed of a GPU (default 10).")]
Reuse = Annotated[Path | None, typer.Option(metavar="LEDGER", help="First copy ended runs from a ledger.")]


@options.examples(
    "dynabound reproduce",
    "dynabound reproduce mnist --scale laptop --data-dir DIR",
    "dynabound reproduce --scale paper --plan --workers 64",
    "dynabound reproduce --engine ray --address auto --device cuda",
    "dynabound reproduce cifar10 --scale laptop --reuse results --add-to results",
)
@options.expand(where=options.Fields(options.EngineOptions))
def reproduce(
    where: dict[str, Any],
    studies: Names = None,
    scale: Scale = "demo",
    dry_run: DryRun = False,
    plan: Plan = False,
    workers: Workers = None,
    tflops: TFlops = None,
    reuse: Reuse = None,
    add_to: AddTo = None,
    out: OutDir = _OUT,
    as_json: options.Json = False,
) -> None:
    """Run the paper's experiments, all or some, and write the report.

    The study "suggest" is our own, and runs only if it is named.

    A ledger is a folder of ended runs as plain text. --reuse copies the runs that the studies need from it instead of
    training them; --add-to adds new ones. Runs of others are taken on trust; verify trains a sample of them again.

    Safe to interrupt: run the same command again to resume.
    """
    options.check_finite("--tflops", tflops)
    if plan or dry_run:
        given = {"--dry-run": plan and dry_run, "--reuse": reuse, "--add-to": add_to}
        options.check_unused("--plan" if plan else "--dry-run", given)
        _check_device(where.get("device", "cpu"))
    if not plan and (workers or tflops):
        raise CommandError(f"--{'workers' if workers else 'tflops'}: is for --plan; add --plan, or leave it out")
    chosen = choose(studies or [], scale)
    specs = [row.spec(scale) for study in chosen for row in study.rows if row.included(scale)]
    placement = options.EngineOptions(**where)
    engine = _engine(placement, _modules(specs))
    store = Store(out / "runs")
    options.check_readable(out, "--out")
    if plan:
        tflops = tflops or 10.0
        found = cost.estimate_time(chosen, scale, store, workers or (8, 64, 512), 1e12 * tflops)
        _print_plan(found, tflops, as_json)
        return
    if dry_run:
        missing = None if all(study.rows for study in chosen) else theorems.missing(out / "theory")
        _print_dry_run(plans.plan(chosen, scale, StoredRuns(store)), missing, scale, as_json)
        return
    check_ledger(add_to)
    if reuse and _take(chosen, scale, out, Ledger(reuse)):
        specs = []  # nothing is left to train: no data set is needed
    _check(specs, engine, placement, out)
    runs = StoredRuns(store)

    def prepare() -> None:
        _prepare(chosen, scale, out, placement, as_json)

    failed = _run(lambda loss: plans.wanted(chosen, scale, runs, loss), store, engine, as_json, prepare)
    print_report(chosen, scale, out, add_to, as_json)
    if failed:
        echo(f"{failed} runs failed; the report shows why; run the same command again to retry them", err=True)
        raise typer.Exit(1)


def _take(chosen: Sequence[Study], scale: str, out: Path, ledger: Ledger) -> bool:
    """Copy the ledger's runs into ``out``; return whether no run is left to train."""
    ledger.require()
    _check_folders(out)
    store = Store(out / "runs")
    echo(f"taken from {ledger.root}: {ledgers.import_runs(chosen, scale, store, ledger)} runs", err=True)
    return all(run.state in ENDED for run in plans.plan(chosen, scale, StoredRuns(store)))


def _engine(placement: options.EngineOptions, modules: Sequence[str] = ()) -> LocalEngine | RayEngine:
    """The engine that the options ask for."""
    if placement.engine == "local":
        for name in ("address", "cpus_per_run", "gpus_per_run", "ranks_per_run"):
            if getattr(placement, name) is not None:
                raise LabError(f"--{name.replace('_', '-')}: is for Ray; add --engine ray, or leave it out")
        return LocalEngine(placement.jobs, placement.data_dir, placement.device)
    if placement.engine != "ray":
        raise LabError(f"--engine {placement.engine}: must be local or ray")
    if placement.jobs:
        raise LabError("--jobs: is for --engine local; on Ray, --cpus-per-run and --gpus-per-run limit the runs")
    ranks, cuda = placement.ranks_per_run or 1, placement.device == "cuda"
    cpus = placement.cpus_per_run or ranks
    gpus = (ranks if cuda else 0) if placement.gpus_per_run is None else placement.gpus_per_run
    _check_ray(placement.device, ranks, cpus, gpus)
    return RayEngine(
        placement.address,
        cpus=cpus,
        gpus=gpus,
        ranks=ranks,
        data_dir=placement.data_dir,
        device=placement.device,
        modules=modules,
    )


def _modules(specs: Sequence[RunSpec]) -> list[str]:
    """The packages of optimizers that are not the lab's own."""
    names = (spec.optimizer.partition(":")[0].partition(".")[0] for spec in specs if ":" in spec.optimizer)
    return list(dict.fromkeys(names))


def _check_ray(device: str, ranks: int, cpus: int, gpus: float) -> None:
    cuda = device == "cuda"
    if device not in ("cpu", "cuda"):
        raise LabError(f"--device {device}: must be cpu or cuda with --engine ray, which chooses the GPU")
    if bool(gpus) != cuda:
        remedy = "leave out --gpus-per-run" if cuda else "add --device cuda"
        raise LabError(f"--gpus-per-run {gpus:g} with --device {device}: {remedy}")
    if gpus > 1 and gpus % 1:
        raise LabError(f"--gpus-per-run {gpus:g}: runs share a GPU or own GPUs; ask for 1 at most, or an integer")
    if cpus < ranks or (cuda and 1 < ranks > gpus):
        raise LabError(f"--ranks-per-run {ranks}: every rank needs a CPU, and on cuda a GPU; ask for {ranks} per run")


def _check_device(device: str) -> None:
    """Raise CommandError unless torch knows the device, which this machine need not have."""
    try:
        torch.device(device)
    except RuntimeError:
        raise CommandError(f"--device {device}: is not a device; try cpu or cuda") from None


def _check(specs: list[RunSpec], engine: LocalEngine | RayEngine, placement: options.EngineOptions, out: Path) -> None:
    """Raise LabError or CommandError if the runs cannot be trained or stored."""
    _check_folders(out)
    options.check_readable(placement.data_dir, "--data-dir")
    if isinstance(engine, LocalEngine):  # a node of Ray has its own device, and downloads the data it does not find
        distributed.local_device(placement.device)
        drive.check_data(specs, placement.data_dir)


def _check_folders(out: Path) -> None:
    """Raise CommandError unless everything that a study writes can be written."""
    for folder in (out, out / "runs", out / "suggestions", out / "theory"):
        options.check_folder(folder)


def _prepare(chosen: Sequence[Study], scale: str, out: Path, placement: options.EngineOptions, quiet: bool) -> None:
    """Find the learning rates that AdaBound and AMSBound still lack, and compute the theory's demonstrations."""
    from dynabound.lab.studies import suggestions

    store, jobs = Store(out / "runs"), placement.jobs or cores()
    device = placement.device if placement.engine == "local" else "cpu"
    tasks: list[Callable[[], object]] = [
        partial(suggestions.compute, spec, store, placement.data_dir, device, jobs)
        for spec in suggestions.missing(chosen, scale, store)
    ]
    if any(not study.rows for study in chosen):
        tasks += [partial(theorems.compute, name, out / "theory") for name in theorems.missing(out / "theory")]
    with progress_bar(quiet or not tasks) as start:
        update = start("learning rates of AdaBound, and theorems")
        run_tasks(tasks, jobs, lambda done: update(done, len(tasks)))


def _run(
    source: Callable[[Loss], Sequence[RunSpec]],
    store: Store,
    engine: LocalEngine | RayEngine,
    quiet: bool,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Run all that ``source`` asks for; return how many runs failed."""
    with engine:
        prepare()
        with board(lambda: engine.jobs, quiet) as shown:
            drive.complete(source, store, engine, shown.begin, shown.listen)
            return shown.failed


def _print_dry_run(planned: list[plans.Planned], theory: list[str] | None, scale: str, as_json: bool) -> None:
    """Print what would be run; ``theory`` lists the theory studies to run, None if they were not asked for."""
    left = [run for run in planned if run.state not in ENDED]
    costs = []
    if scale == "paper":
        costs = cost.estimate([run.spec for run in left], lambda name: echo(f"measuring steps of {name}", err=True))
    if as_json:
        listed = [{"study": p.study, "label": p.label, "run": p.spec.name, "state": p.state, "note": p.note,
                   "spec": p.spec.to_dict()} for p in planned]  # fmt: skip
        echo_json({"runs": listed, "theory": theory, "costs": costs})
        return
    for p in planned:
        echo(f"{p.study:16} {p.state:9} {describe(p.spec)}{f'  ({p.note})' if p.note else ''}")
    if theory is not None:
        todo = f"{', '.join(theory)}: to run; all take about a minute" if theory else "all done"
        echo(f"{'theory':16} {'new' if theory else 'finished':9} {todo}")
    more = "; a search may add more at its edges" if any(p.note == "search" for p in left) else ""
    echo(f"{len({p.spec.name for p in left})} runs to do of {len({p.spec.name for p in planned})}{more}")
    if costs:
        _print_costs(costs)


def _print_costs(costs: list[dict[str, Any]]) -> None:
    for c in costs:
        echo(
            f"{c['workload']:22} {c['runs']:5} runs  {c['steps']:12,} steps  {c['flops']:8.2e} FLOP  "
            f"{c['gpu_hours']:8.1f} GPU hours  {c['seconds'] / 3600:10,.0f} hours on this CPU"
        )
    flops, hours = sum(c["flops"] for c in costs), sum(c["gpu_hours"] for c in costs)
    echo(
        f"total: {flops:.2e} floating-point operations: {hours:,.0f} GPU hours at an assumed "
        f"{cost.GPU_FLOPS / 1e12:g} TFLOP/s and at least {1e3 * cost.STEP_SECONDS:g} ms per step, "
        f"{sum(c['seconds'] for c in costs) / 3600:,.0f} hours on this CPU"
    )


def _print_plan(plan: dict[str, Any], tflops: float, as_json: bool) -> None:
    """Print the estimated time on several numbers of workers."""
    if as_json:
        echo_json({**plan, "tflops": tflops})
        return
    echo(
        f"{plan['runs']} runs to do at {plan['scale']} scale, at most {plan['at_once']} at a time: "
        f"{plan['flops']:.2e} FLOP, {_time_text(plan['work_seconds'])} of work, {_size_text(plan['bytes'])} of storage "
        f"at the end, and up to {_size_text(2 * plan['largest_bytes'])} more per run in progress"
    )
    print_table(
        ("workload", "runs", "parameters", "FLOP", "work", "storage", "times"),
        (
            (w["workload"], w["runs"], f"{w['parameters']:,}", f"{w['flops']:.2e}", _time_text(w["seconds"]),
             _size_text(w["bytes"]), w["time"]) for w in plan["workloads"]
        ),
    )  # fmt: skip
    print_table(
        ("workers", "takes", "utilisation", "work / workers", "longest chain", "limited by"),
        (
            (s["workers"], _time_text(s["makespan"]), f"{s['utilisation']:.0%}", _time_text(s["share"]),
             _time_text(plan["chain_seconds"]), s["limit"]) for s in plan["schedules"]
        ),
    )  # fmt: skip
    for text in (f"a GPU does {tflops:g} TFLOP/s, and a step takes at least a millisecond", *plan["assumed"]):
        echo(f"assumed: {text}")


def _time_text(seconds: float) -> str:
    """A duration in the largest unit that fits.

    >>> _time_text(90), _time_text(7200), _time_text(0.5)
    ('1.5 min', '2.0 h', '0.5 s')
    """
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "min"), (0, "s")) if seconds >= unit)
    return f"{seconds / (unit or 1):,.1f} {name}"


def _size_text(count: float) -> str:
    """A number of bytes.

    >>> _size_text(2.5e6), _size_text(4e12)
    ('2.5 MB', '4,000.0 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


@options.examples(
    "dynabound tune digits --optimizer adam --epochs 5",
    "dynabound tune mnist --optimizer sgdm --optimizer adabound --jobs 2",
)
@options.expand(
    spec=options.Fields(RunSpec, without=("optimizer", "lr", "opt", "seed"), required=True),
    where=options.Fields(options.EngineOptions),
)
def tune(
    spec: dict[str, Any],
    where: dict[str, Any],
    optimizers: Annotated[
        list[str] | None,
        typer.Option("--optimizer", **options.one_of(TUNE_GRIDS, "Optimizer; repeatable (default: the first five)")),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of runs of the best setting.")] = 3,
    out: OutDir = _OUT,
    as_json: options.Json = False,
) -> None:
    """Search for learning rates as the paper does.

    Five points, more if the best is at an edge; the lowest final training loss wins. Safe to interrupt: run the same
    command again to resume.
    """
    specs = [RunSpec(**spec, optimizer=name) for name in optimizers or GRIDS]
    store = Store(out / "runs")
    engine = _engine(options.EngineOptions(**where), _modules(specs))
    device = where.get("device", "cpu")
    if isinstance(engine, LocalEngine) or device == "cpu":  # the GPUs of a cluster are not here
        for each in specs:
            check_optimizer(each, device)
    _check(specs, engine, options.EngineOptions(**where), out)
    failed = _run(plans.tuning(specs, seeds), store, engine, as_json)
    runs = StoredRuns(store)
    found = {each.optimizer: search_lr(each, runs.losses(), TUNE_GRIDS) for each in specs}
    if as_json:
        echo_json({name: _found(result, runs, seeds) for name, result in found.items()})
    else:
        for name, result in found.items():
            _print_found(name, result, _found(result, runs, seeds))
    if failed:
        echo(f"{failed} runs failed; run the same command again to retry them", err=True)
        raise typer.Exit(1)


def _found(result: Search, runs: StoredRuns, seeds: int) -> dict[str, Any]:
    """The runs of a search and the results of its best setting, for JSON."""
    best, tried = result.best, [(runs.read(spec), loss) for spec, loss in result.tried]
    winner = [runs.read(spec) for spec in seeded(best, seeds)] if best else []
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


def _print_found(name: str, result: Search, summary: dict[str, Any]) -> None:
    rows = zip(result.tried, summary["tried"], strict=True)
    for (spec, loss), run in sorted(rows, key=lambda row: row[0][1]):
        error = run["error"].strip().rpartition("\n")[-1]  # the last line of a traceback is the error
        state = f"train loss {loss:10.5g}" if run["state"] == "finished" else run["state"]
        mark = " best" if spec == result.best else f": {error}" if error else ""
        echo(f"{name:10} {describe(spec):60} {state}{mark}")
    if not result.tried:
        echo(f"{name:10} has no grid: its defaults are used")
    test = summary["test"]
    if test is None:
        echo(f"{name:10} has no best setting: no run finished")
        return
    ended = test["states"].count("finished")
    value = "none" if test["mean"] is None else f"{test['mean']:.2f}"
    value += "" if test["std"] is None else f" ± {test['std']:.2f} (mean ± standard deviation)"
    echo(f"{name:10} final test {test['metric']}, {ended} of {len(test['states'])} seeds: {value}")
