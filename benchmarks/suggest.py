"""The bars of dynabound.tuning.suggest: suggested AdaBound against searched, default and tuning-free methods.

    python benchmarks/suggest.py [--out DIR] [--seeds N] [--data-dir DIR] [WORKLOAD ...]

Prints a table per workload, the ranks, and whether each bar is met. Runs and suggestions are kept in ``--out``: run it
again to resume, or with more seeds. Without names it runs the six demo workloads on embedded data; ``cifar10``, ``ptb``
and ``mnist`` need ``--data-dir``. Tuning-free peers take part where they are installed (prodigyopt, schedulefree,
dadaptation).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabound import Suggestion, suggest
from dynabound.lab.report.statistics import ALPHA, contrast
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies.search import GRIDS, search
from dynabound.lab.tasks import models
from dynabound.lab.tasks.datasets import load
from dynabound.lab.train import train
from dynabound.lab.training.batches import Batch, make_batches

_CNN = dict(task="digits", width=1 / 16, epochs=8, decay_after=6, weight_decay=5e-4)
_LSTM = dict(task="pydoc", hidden=32, epochs=5, examples=30_000)
DEMO: dict[str, dict[str, Any]] = {
    "perceptron": dict(task="digits", hidden=100, epochs=40),
    "resnet34": dict(**_CNN, model="resnet34", batch_size=64),
    "densenet121": dict(**_CNN, model="densenet121", batch_size=128),
    **{f"lstm-{n}": dict(**_LSTM, layers=n) for n in (1, 2, 3)},
}
"""Six small networks on embedded data."""
FOUND: dict[str, dict[str, dict[str, Any]]] = {
    "resnet34": dict(
        sgdm=dict(lr=0.05),
        adagrad=dict(lr=0.05),
        adam=dict(lr=0.01, betas=(0.9, 0.99)),
        amsgrad=dict(lr=0.01, betas=(0.9, 0.99)),
    ),
    "densenet121": dict(
        sgdm=dict(lr=0.5), adagrad=dict(lr=0.1), adam=dict(lr=0.01), amsgrad=dict(lr=0.05, betas=(0.9, 0.99))
    ),
    "lstm-1": dict(sgd=dict(lr=20.0), adam=dict(lr=0.05)),
    "lstm-2": dict(sgd=dict(lr=20.0), adam=dict(lr=0.005)),
    "lstm-3": dict(sgd=dict(lr=20.0), adam=dict(lr=0.05)),
}
"""What the paper's search finds on seed 0 (dynabound tune). The perceptron is searched here: it takes minutes."""
PACE = {"perceptron": 20, "resnet34": 17, "densenet121": 33, "lstm": 31}
"""γ of AdaBound's defaults, in thousandths: as fast per epoch as in the paper, as dynabound reproduce has it."""
REAL: dict[str, dict[str, Any]] = {
    "cifar10": dict(task="cifar10", model="resnet34", width=0.125, examples=5000, epochs=6),
    "ptb": dict(task="ptb", hidden=64, examples=200_000, epochs=2),
    "mnist": dict(task="mnist", epochs=5),
}
PEERS = {
    "Prodigy": ("prodigyopt:Prodigy", 1.0),
    "D-Adapt Adam": ("dadaptation:DAdaptAdam", 1.0),
    "D-Adapt SGD": ("dadaptation:DAdaptSGD", 1.0),
}
CPU = torch.device("cpu")


class Problem:
    """A run's model, loss and batches, as ``suggest`` takes them."""

    def __init__(self, spec: RunSpec, data_dir: str | None) -> None:
        data = load(spec.task, data_dir)
        torch.manual_seed(spec.seed)
        self.model = models.build(spec.model, spec.to_dict(), data)
        self._batches = make_batches(data, spec, CPU)
        self.steps = self._batches.steps * spec.epochs
        self._carry: Any = None

    def reset(self) -> None:
        """Forget the state that a language model carries on."""
        self._carry = None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        if isinstance(model, models.LanguageModel):
            logits, carry = model(batch.x, self._carry or model.start(batch.x.shape[1]))
            self._carry = tuple(state.detach() for state in carry)
        else:
            logits = model(batch.x)
        return F.cross_entropy(logits.flatten(0, -2), batch.y.flatten())

    def batches(self) -> Iterator[Batch]:
        """The batches in the order of training."""
        return itertools.chain.from_iterable(map(self._batches.epoch, itertools.count(1)))


class Bench:
    """Suggestions and runs, made once and kept."""

    def __init__(self, out: Path, data_dir: str | None) -> None:
        self.out, self.store, self.data_dir = out, Store(out / "runs"), data_dir

    def suggestion(self, spec: RunSpec) -> Suggestion:
        """What suggest finds for this run's model and data."""
        path = self.out / "suggestions" / f"{spec.name}.json"
        if path.exists():
            return Suggestion.from_dict(json.loads(path.read_text()))
        problem = Problem(spec, self.data_dir)
        found = suggest(problem.model, problem.loss, problem.batches(), problem.steps, clip=spec.clip or None,
                        reset=problem.reset, seed=spec.seed, weight_decay=spec.weight_decay)  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found.to_dict()))
        temporary.replace(path)
        return found

    def final(self, spec: RunSpec) -> float:
        """The test metric of the last epoch: accuracy in percent or perplexity; NaN if the run diverged."""
        metrics = self._train(spec)
        value = metrics.get(f"test_{spec.metric}", math.nan)
        return float(value if spec.text else 100 * value)

    def loss(self, spec: RunSpec) -> float:
        """The final training loss, which a search minimises."""
        return float(self._train(spec).get("train_loss", math.inf))

    def _train(self, spec: RunSpec) -> dict[str, Any]:
        result = train(spec, self.store, data_dir=self.data_dir)
        return result.metrics[-1] if result.state == "finished" else {}

    def searched(self, workload: str, spec: RunSpec, method: str) -> tuple[RunSpec, int]:
        """The method with what the paper's search finds on seed 0, and the number of runs that the search takes."""
        fixed = dict(FOUND.get(workload, {}).get(method, {}))
        if fixed:
            lr = fixed.pop("lr")
            return replace(spec, optimizer=method, lr=lr, opt=fixed), _search_runs(method, lr)
        found = search(replace(spec, optimizer=method, lr=None, opt=(), seed=0), self.loss)
        assert found.best is not None
        return found.best, len(found.tried)


def _search_runs(method: str, best: float) -> int:
    """How many runs a search that ended at ``best`` takes at least: its grid, and the points beyond an edge."""
    grid = GRIDS[method]
    beyond = sum(best >= edge for edge in (grid.lrs[-1], 5 * grid.lrs[-1]))
    return len(grid.lrs) * len(grid.options) + beyond + len(grid.fine)


def decided_worse(a: list[float], b: list[float], panel: list[list[float]], text: bool) -> bool:
    """Whether ``a`` is worse than ``b`` by the report's test; a run that diverged decides."""
    if any(map(math.isnan, (*a, *b))):
        return any(map(math.isnan, a)) and not any(map(math.isnan, b))
    sign = 1.0 if text else -1.0
    return contrast([(sign, a), (-sign, b)], panel).p_above(0.0) < ALPHA / 2


def methods(bench: Bench, workload: str) -> dict[str, Callable[[int], RunSpec]]:
    """From a method's name to its spec for a seed."""
    real = workload in REAL
    base = RunSpec(**(REAL | DEMO)[workload])
    gamma = 1e-3 * (1 if real else PACE[workload.partition("-")[0]])

    def suggested(seed: int) -> RunSpec:
        spec = replace(base, seed=seed)
        options = bench.suggestion(spec).options
        return replace(spec, lr=options["lr"], opt={"final_lr": options["final_lr"], "gamma": options["gamma"]})

    def other(optimizer: str, rate: str) -> Callable[[int], RunSpec]:
        def make(seed: int) -> RunSpec:
            spec = replace(base, seed=seed)
            return replace(spec, optimizer=optimizer, lr=bench.suggestion(spec).options[rate])

        return make

    def fixed(spec: RunSpec) -> Callable[[int], RunSpec]:
        return lambda seed: replace(spec, seed=seed)

    def searched(method: str) -> Callable[[int], RunSpec]:
        return lambda seed: replace(bench.searched(workload, base, method)[0], seed=seed)

    table: dict[str, Callable[[int], RunSpec]] = {
        "AdaBound, suggested": suggested,
        "AdaBound, defaults": fixed(replace(base, opt={"gamma": float(f"{gamma:.6g}")})),
        "Adam at the suggested lr": other("adam", "lr"),
        "SGD at the suggested final_lr": other("sgdm-dampened", "final_lr"),
    }
    if real:
        table["Adam, 0.001"] = fixed(replace(base, optimizer="adam", lr=1e-3))
        if not base.text:
            table["SGDM, 0.1"] = fixed(replace(base, optimizer="sgdm", lr=0.1))
        return table
    for method in ("sgd", "adam") if base.text else ("sgdm", "adagrad", "adam", "amsgrad"):
        table[f"{method}, searched"] = searched(method)
    for name, (path, lr) in PEERS.items():
        if importlib.util.find_spec(path.partition(":")[0]):
            table[f"{name}, tuning-free"] = fixed(replace(base, optimizer=path, lr=lr, opt=()))
    return table


def report(bench: Bench, workload: str, seeds: int) -> dict[str, list[float]]:
    """Run all methods, and print each as it is done."""
    results: dict[str, list[float]] = {}
    spec = None
    print(f"\n| {workload} | mean ± deviation, {seeds} seeds | |\n| --- | --- | --- |", flush=True)
    for name, make in methods(bench, workload).items():
        specs = [make(seed) for seed in range(seeds)]
        values = results[name] = [bench.final(spec) for spec in specs]
        spec = specs[0]
        deviation = statistics.stdev(values) if seeds > 1 else 0.0
        rates = ", ".join(
            f"{s.lr:.3g}" + (f"/{s.options['final_lr']:.3g}" if "final_lr" in s.options else "") for s in specs
        )
        print(f"| {name} | {statistics.fmean(values):.2f} ± {deviation:.2f} | {rates} |", flush=True)
    assert spec is not None
    ours = results["AdaBound, suggested"]
    for name, values in results.items():
        if decided_worse(ours, values, list(results.values()), spec.text):
            print(f"\nAdaBound, suggested, is decided worse than {name}")
    return results


def ranks(results: dict[str, list[float]], text: bool) -> dict[str, int]:
    """Places by the mean; whoever diverged is last."""
    losses = {name: statistics.fmean(values) * (1 if text else -1) for name, values in results.items()}
    losses = {name: math.inf if math.isnan(loss) else loss for name, loss in losses.items()}
    return {name: 1 + sum(other < loss for other in losses.values()) for name, loss in losses.items()}


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=DEMO)
    parser.add_argument("--out", type=Path, default=Path("suggest-bench"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-dir")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(args.out, args.data_dir)
    places: dict[str, list[int]] = {}
    for workload in args.workloads:
        results = report(bench, workload, args.seeds)
        for name, rank in ranks(results, workload.startswith(("lstm", "ptb"))).items():
            places.setdefault(name, []).append(rank)
        costs = [bench.suggestion(RunSpec(**(REAL | DEMO)[workload], seed=seed)).cost for seed in range(args.seeds)]
        print(f"\ncost: {costs} training steps")
    print("\n| method | mean rank | workloads |\n| --- | --- | --- |")
    for name, values in sorted(places.items(), key=lambda item: statistics.fmean(item[1])):
        print(f"| {name} | {statistics.fmean(values):.2f} | {len(values)} |")


if __name__ == "__main__":
    main()
