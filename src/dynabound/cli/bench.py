"""``dynabound bench``: time per step beside torch's fused Adam, other AdaBounds, and the machine's streaming limit.

With ``--device`` on a GPU: the Triton kernel beside foreach, as nobody has measured it yet.

All optimizers run in one process, interleaved step by step. A time is the median over an optimizer's steps; the results
are ratios of such times.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
import typer
from rich.table import Table
from torch import Tensor

from dynabound import AdaBound, AMSBound
from dynabound._files import write_whole
from dynabound.cli.options import Json, check_folder, examples, one_of
from dynabound.cli.output import echo, echo_json, progress_bar, show
from dynabound.lab.tasks.models import ResNet34
from dynabound.optim import _fused
from dynabound.optim._scalars import Scalars

ISSUES = "https://github.com/dynabound/dynabound/issues"
OTHER_PACKAGES = ("adabound", "torch_optimizer", "pytorch_optimizer")
"""Other packages with a class AdaBound; those that are installed are measured too."""

Shapes: TypeAlias = "list[tuple[int, ...]]"
Step: TypeAlias = "Callable[[], object]"
ProgressCallback: TypeAlias = "Callable[[int, int], None]"


def _resnet34_shapes() -> Shapes:
    with torch.device("meta"):
        return [tuple(param.shape) for param in ResNet34().parameters()]


WORKS: dict[str, Callable[[], Shapes]] = {
    "resnet34": _resnet34_shapes,
    "small": lambda: [(64, 64)] * 500,
    "large": lambda: [(50_000_000,)],
}
"""What to update: ResNet-34's tensors, 500 tensors of 64×64, one of 50 M elements, all float32."""

REPETITIONS = {"resnet34": 40, "small": 100, "large": 15}


@examples("dynabound bench", "dynabound bench small --repetitions 20 --json", "dynabound bench --device cuda")
def bench(
    work: Annotated[
        list[str] | None, typer.Argument(**one_of(WORKS, "What to update (default: all).", argument=True))
    ] = None,
    device: Annotated[str, typer.Option(help="Where: cpu, cuda (also for ROCm) or xpu.")] = "cpu",
    repetitions: Annotated[int | None, typer.Option(min=1, help="Steps per optimizer; shows the median.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads (default: torch's).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json.")] = None,
    as_json: Json = False,
) -> None:
    """Time a step of AdaBound against torch's fused Adam and other AdaBounds.

    All optimizers run in one process, interleaved step by step, so that a disturbance affects all of them. Compare the
    ratios: the milliseconds depend on the machine. `large` needs about 4 GB of memory.
    """
    unknown = set(work or ()) - set(WORKS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: must be among {', '.join(WORKS)}")
    _check_device(device)
    if out:
        check_folder(out)
    if threads:
        torch.set_num_threads(threads)
    results = _measure_all(work or list(WORKS), repetitions, device, quiet=as_json)
    imported = import_milliseconds(min(repetitions or 5, 5))
    report = {"torch": torch.__version__, "import_milliseconds": imported, "works": results}
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "bench.json", (json.dumps(report, indent=2) + "\n").encode(), durable=False)
    echo_json(report) if as_json else _print(report)


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda", "xpu"):
        raise typer.BadParameter(f"--device={device}: must be cpu, cuda or xpu")
    if device != "cpu" and not getattr(torch, device).is_available():
        raise typer.BadParameter(
            f"--device={device}: torch {torch.__version__} finds no such device; see dynabound doctor"
        )
    if device != "cpu" and (missing := _fused.gpu_missing()):
        raise typer.BadParameter(f"--device={device}: there is no Triton kernel: {missing}")


def _measure_all(works: list[str], repetitions: int | None, device: str, quiet: bool) -> list[dict[str, Any]]:
    with progress_bar(quiet) as start:
        return [measure(name, repetitions, start(name), device) for name in works]


def _print(report: dict[str, Any]) -> None:
    works = report["works"]
    place = works[0].get("gpu") or f"{works[0]['threads']} threads"
    table = Table(title=f"Milliseconds per step: torch {report['torch']}, {place}, float32")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for result in works:
        table.add_column(f"{result['work']}\n{result['tensors']} × {result['elements'] / 1e6:.1f} M", justify="right")
        for name, cell in _cells(result).items():
            rows.setdefault(name, []).append(cell)
    for name, row in rows.items():
        table.add_row(name, *row, end_section=name == list(works[0]["milliseconds"])[-1])
    show(table)
    echo(f"import dynabound takes {report['import_milliseconds']:.0f} ms after import torch")
    if works[0].get("gpu"):
        echo(f"Please send this table to {ISSUES}: the Triton kernel has not been measured on a GPU before.")
        if _fused.gpu_failure:
            echo(f"Its times are those of foreach: {_fused.gpu_failure}")


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """A column of the table, from top to bottom."""
    cells = {name: f"{value:.2f}" for name, value in result["milliseconds"].items()}
    cells["AdaBound / fused Adam"] = f"{result['against_fused_adam']:.2f}"
    cells["AMSBound / AdaBound"] = f"{result['amsbound_against_adabound']:.2f}"
    if result["share_of_streaming_limit"] is not None:
        cells["share of the streaming limit"] = f"{result['share_of_streaming_limit']:.2f}"
    cells |= {f"times faster than {name}": f"{value:.1f}" for name, value in result["times_faster_than"].items()}
    for name, value in result["peak_temporaries_in_parameters"].items():
        cells[f"peak temporaries, {name}"] = "–" if value is None else f"{value:.2f} parameters"
    return cells


def measure(
    work: str, repetitions: int | None = None, progress: ProgressCallback = lambda done, of: None, device: str = "cpu"
) -> dict[str, Any]:
    """Milliseconds per step of every optimizer on ``work``, and their ratios."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in WORKS[work]()]
    for param in params:
        param.grad = torch.randn_like(param)
    gpu = device != "cpu"
    optimizers = _on_a_gpu(params) if gpu else _optimizers(params)
    times = _interleave(optimizers, repetitions or REPETITIONS[work], progress)
    ours, adam = times["dynabound AdaBound"], times["torch Adam fused"]
    return {
        **({"gpu": getattr(torch, device).get_device_name()} if gpu else {}),
        "work": work,
        "tensors": len(params),
        "elements": sum(param.numel() for param in params),
        "threads": torch.get_num_threads(),
        "milliseconds": times,
        "against_fused_adam": ours / adam,
        "amsbound_against_adabound": times["dynabound AMSBound"] / ours,
        "share_of_streaming_limit": times["streaming limit"] / ours if "streaming limit" in times else None,
        "times_faster_than": {name: times[name] / ours for name in OTHER_PACKAGES if name in times},
        "peak_temporaries_in_parameters": {name: _peak(step, params) for name, step in _backends(params)}
        if not gpu
        else {},
    }


def _optimizers(params: list[torch.nn.Parameter]) -> dict[str, Step]:
    steps: dict[str, Step] = {
        "torch Adam fused": torch.optim.Adam(params, fused=True).step,
        "dynabound AdaBound": AdaBound(params).step,
        "dynabound AMSBound": AMSBound(params).step,
    }
    if _fused.AVAILABLE:
        steps["streaming limit"] = _stream(params)
    for name in OTHER_PACKAGES:
        try:
            steps[name] = importlib.import_module(name).AdaBound(params).step
        except ImportError:
            continue
    return steps


def _on_a_gpu(params: list[torch.nn.Parameter]) -> dict[str, Step]:
    """The Triton kernel, in its formats, beside foreach; each step ends when the GPU has ended it."""
    steps: dict[str, Step] = {
        "torch Adam fused": torch.optim.Adam(params, fused=True).step,
        "torch Adam foreach": torch.optim.Adam(params, foreach=True).step,
        "dynabound AdaBound": AdaBound(params, fused=True).step,
        "dynabound AMSBound": AMSBound(params, fused=True).step,
        "AdaBound capturable": AdaBound(params, fused=True, capturable=True).step,
        "AdaBound bfloat16 state": AdaBound(params, fused=True, state_dtype=torch.bfloat16).step,
        "AdaBound foreach": AdaBound(params, foreach=True).step,
    }

    def synchronized(step: Step) -> Step:
        def until_done() -> None:
            step()
            torch.accelerator.synchronize()

        return until_done

    return {name: synchronized(step) for name, step in steps.items()}


def _stream(params: list[torch.nn.Parameter]) -> Step:
    """A step that moves the same bytes with the same threads, and hardly any arithmetic: reads 4 numbers, writes 3."""
    lists: list[list[Tensor]] = [[torch.zeros_like(p, requires_grad=False) for p in params] for _ in range(4)]
    counts = [torch.zeros((), dtype=torch.int64) for _ in params]
    scalars: Any = (0.0,) * len(Scalars._fields)
    kernel: Any = importlib.import_module("dynabound.optim._kernel")

    def step() -> None:
        kernel.stream(_fused.LEVEL, torch.get_num_threads(), kernel.scan(*lists, [], counts)[1], scalars)

    return step


def _interleave(steps: dict[str, Step], repetitions: int, progress: ProgressCallback) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the other packages call deprecated signatures of torch
        for repetition in range(-2, repetitions):  # two steps of warm-up
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if repetition >= 0:
                    times[name].append(1e3 * (time.perf_counter() - start))
            progress(repetition + 3, repetitions + 2)
    return {name: statistics.median(values) for name, values in times.items()}


def _backends(params: list[torch.nn.Parameter]) -> Iterator[tuple[str, Step]]:
    if _fused.AVAILABLE:
        yield "fused", AdaBound(params, fused=True).step
    yield "loop", AdaBound(params, fused=False).step


def _peak(step: Step, params: list[torch.nn.Parameter]) -> float | None:
    """Peak memory that a step allocates, as a multiple of the largest parameter.

    Measured as the peak of the resident set, which a process can reset on Linux; too coarse for less than 64 MB.
    """
    largest = max(param.numel() * param.element_size() for param in params)
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if largest < 2**26 or not reset.exists():
        return None
    step()
    reset.write_text("5")
    before = _kilobytes(status, "VmRSS")
    step()
    return (_kilobytes(status, "VmHWM") - before) * 1024 / largest


def _kilobytes(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))


def import_milliseconds(repetitions: int) -> float:
    """Time of ``import dynabound`` with its optimizers after ``import torch``, in new interpreters."""
    code = "import time, torch; t = time.perf_counter(); import dynabound.optim; print(1e3 * (time.perf_counter() - t))"
    return statistics.median(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(repetitions))
