"""The targets of dynabound.suggest on real data: small networks, a few minutes per run on a core.

    python benchmarks/suggest.py --data-dir DIR [--out DIR] [--seeds N] [cifar10] [ptb] [mnist]

Prints a table per task and whether its targets are met. Runs and suggestions are kept in ``--out``: run it again to
resume, or with more seeds. `dynabound reproduce suggest` has the demo's networks, searched methods and tuning-free
ones.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import suggestions
from dynabound.lab.studies.suggestions import with_rates
from dynabound.lab.train import train

TASKS: dict[str, dict[str, Any]] = {
    "cifar10": dict(task="cifar10", model="resnet34", width=0.125, examples=5000, epochs=6),
    "ptb": dict(task="ptb", hidden=64, examples=200_000, epochs=2),
    "mnist": dict(task="mnist", epochs=5),
}
OURS, DEFAULTS = "AdaBound, suggested", "AdaBound, defaults"
ADAM, SGDM = "Adam, suggested lr", "SGDM dampened, suggested final_lr"
PLAIN_ADAM, PLAIN_SGDM = "Adam, 0.001", "SGDM, 0.1"
Results = dict[str, float]


def specs(name: str, seed: int, store: Store, data_dir: str) -> dict[str, RunSpec]:
    """From a method to its run. The learning rates are suggested for each seed."""
    base = RunSpec(**TASKS[name], seed=seed)
    found = suggestions.read(base, store) or suggestions.compute(base, store, data_dir)
    ours = with_rates(base, found)
    table = {
        OURS: ours,
        DEFAULTS: base,
        ADAM: replace(base, optimizer="adam", lr=ours.lr, opt=()),
        SGDM: replace(base, optimizer="sgdm-dampened", lr=ours.options["final_lr"], opt=()),
    }
    if not base.text:
        table[PLAIN_ADAM] = replace(base, optimizer="adam", lr=1e-3, opt=())
        table[PLAIN_SGDM] = replace(base, optimizer="sgdm", lr=0.1, opt=())
    return table


def final(spec: RunSpec, store: Store, data_dir: str) -> float:
    """Test accuracy in percent, or perplexity, of the last epoch; the worst one possible if the run diverged."""
    result = train(spec, store, data_dir=data_dir)
    if result.state != "finished":
        return math.inf if spec.text else 0.0
    return float(result.metrics[-1][f"test_{spec.metric}"]) * (1 if spec.text else 100)


def targets(name: str, means: Results) -> dict[str, bool]:
    """The targets of a task, and whether they are met."""
    ours, others = means[OURS], [value for method, value in means.items() if method != OURS]
    if name == "ptb":
        return {f"below {ADAM}": ours < means[ADAM], f"below {SGDM}": ours < means[SGDM]}
    if name == "mnist":
        return {"within 0.1 points of the best": ours >= max(others) - 0.1}
    plain = max(means[PLAIN_ADAM], means[PLAIN_SGDM])
    return {
        f"at least {DEFAULTS}": ours >= means[DEFAULTS],
        f"at least the better of {PLAIN_ADAM} and {PLAIN_SGDM}, less one point": ours >= plain - 1,
    }


def report(name: str, seeds: int, store: Store, data_dir: str) -> None:
    """Train the missing runs, and print a table and the targets."""
    runs = [specs(name, seed, store, data_dir) for seed in track(range(seeds), f"{name}: suggestions")]
    jobs = [(method, table[method]) for table in runs for method in table]
    values: dict[str, list[float]] = {}
    for method, spec in track(jobs, f"{name}: runs"):
        values.setdefault(method, []).append(final(spec, store, data_dir))
    print(f"\n| {name} | mean | seeds 0 to {seeds - 1} | lr / final_lr |\n| --- | --- | --- | --- |")
    for method, results in values.items():
        rates = [(table[method].lr, table[method].options.get("final_lr")) for table in runs]
        shown = ", ".join(" / ".join(f"{rate:.3g}" for rate in pair if rate is not None) for pair in rates)
        print(f"| {method} | {statistics.fmean(results):.2f} | {', '.join(f'{x:.2f}' for x in results)} | {shown} |")
    for target, met in targets(name, {method: statistics.fmean(results) for method, results in values.items()}).items():
        print(f"\n{'met' if met else 'MISSED'}: {target}")
    found = [suggestions.read(RunSpec(**TASKS[name], seed=seed), store) for seed in range(seeds)]
    print(f"\ncost of the suggestions: {[one.cost for one in found if one]} training steps\n", flush=True)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], help="default: all")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", type=Path, default=Path("suggest-bench"))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for name in args.tasks or TASKS:
        report(name, args.seeds, Store(args.out / "runs"), args.data_dir)


if __name__ == "__main__":
    main()
