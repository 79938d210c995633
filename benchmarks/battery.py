"""How good is dynabound.suggest on small models outside the lab? Tasks, grids, regret and ranks.

    python benchmarks/battery.py [--others] [--seeds 3] [--only NAME ...] [--json FILE]

A task is a model of 300 to 9,000 parameters, a loss, and a number of steps. Its result is L, the mean training loss of
the last tenth of the steps. Adam and SGDM get the best learning rate of a grid (half-decades, in hindsight, by the mean
over seeds; from 0.01 and 0.1 on upwards and downwards, until L rises). The regret of a method is 100·log((L + f) /
(L_best + f)), where L_best is that of the better grid and f is 1 % of the untrained loss. The rule was chosen on the
eight tasks of battery_tasks.py; --others takes those of battery_others.py, which were written after all but its last
step. Grids are kept in --json FILE: run it again to compare another rule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import battery_others
import battery_tasks
import dynabound
from battery_tasks import Task
from dynabound.tuning.decide import explore


def model_of(task: Task, seed: int) -> nn.Module:
    """The untrained model."""
    torch.manual_seed(seed)
    return task.build()


def final_loss(task: Task, seed: int, optimizer: Callable[[Any], torch.optim.Optimizer]) -> float:
    """The mean loss of the last tenth of the steps; infinity if the loss is not finite."""
    model, batches = model_of(task, seed), task.batches(seed)
    stepper, losses = optimizer(model.parameters()), []
    for batch in itertools.islice(batches, task.steps):
        stepper.zero_grad()
        loss = task.loss(model, batch)
        if not math.isfinite(loss.item()):
            return math.inf
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return statistics.mean(losses[-max(1, task.steps // 10) :])


def untrained_loss(task: Task, seed: int) -> float:
    """The mean loss of the untrained model over 20 batches."""
    model = model_of(task, seed)
    with torch.no_grad():
        return statistics.mean(task.loss(model, batch).item() for batch in itertools.islice(task.batches(seed), 20))


def suggested(task: Task, seed: int) -> tuple[float, dict[str, float]]:
    """The result of AdaBound with suggested numbers, and the numbers."""
    batches = list(itertools.islice(task.batches(seed + 1000), 200))
    found = dynabound.suggest(model_of(task, seed), task.loss, batches, task.steps)
    loss = final_loss(task, seed, lambda params: dynabound.AdaBound(params, **found.options))
    return loss, dict(lr=found.lr, final_lr=found.final_lr, gamma=found.gamma, cost=found.cost)


def grid(task: Task, seeds: range) -> dict[str, Any]:
    """What does not depend on the rule: the grids, Adam at 0.001, AdaBound's defaults and the untrained loss."""

    def mean(optimizer: Callable[[Any], torch.optim.Optimizer]) -> float:
        return statistics.mean(final_loss(task, seed, optimizer) for seed in seeds)

    def best(optimizer: Callable[[Any, float], torch.optim.Optimizer], first: float) -> dict[float, float]:
        return explore(lambda rate: mean(lambda params: optimizer(params, rate)), first, start=math.inf, most=12)

    adam = best(torch.optim.Adam, 0.01)
    sgdm = best(lambda params, rate: torch.optim.SGD(params, rate, 0.9), 0.1)
    return {
        "start": statistics.mean(untrained_loss(task, seed) for seed in seeds),
        "Adam 1e-3": mean(lambda params: torch.optim.Adam(params, 1e-3)),
        "best Adam": min(adam.values()),
        "best SGDM": min(sgdm.values()),
        "AdaBound default": mean(dynabound.AdaBound),
        "rates": [min(adam, key=adam.__getitem__), min(sgdm, key=sgdm.__getitem__)],
    }


METHODS = ("Adam 1e-3", "best Adam", "best SGDM", "AdaBound default", "suggested")


def regret(row: dict[str, Any], method: str) -> float:
    """In percent, against the better grid."""
    floor, best = 0.01 * row["start"], min(row["best Adam"], row["best SGDM"])
    return 100 * math.log((row[method] + floor) / (best + floor))


def ranks(row: dict[str, Any]) -> dict[str, int]:
    """Rank of each method, 1 is the best."""
    return {method: 1 + sum(row[other] < row[method] for other in METHODS) for method in METHODS}


def main() -> None:
    """Print a row per task, then medians and mean ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--others", action="store_true", help="the tasks of battery_others.py")
    parser.add_argument("--only", nargs="*", help="names of tasks; default: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tasks = battery_others.TASKS if options.others else battery_tasks.TASKS
    if unknown := set(options.only or ()) - set(tasks):
        parser.error(f"--only {min(unknown)}: must be among {', '.join(tasks)}")
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    rows = {}
    headings = ["task", "steps", "best Adam", "best SGDM", "Adam 1e-3", "AdaBound default", "suggested (lr / final_lr)",
                "regret", "cost"]  # fmt: skip
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for name in options.only or tasks:
        task = tasks[name]
        if name not in known:
            known[name] = grid(task, seeds)
            if options.json:
                options.json.write_text(json.dumps(known, indent=1))
        found = [suggested(task, seed) for seed in seeds]
        row = rows[name] = {**known[name], "suggested": statistics.mean(loss for loss, _ in found)}
        rates, first = row["rates"], found[0][1]
        row["cost"] = max(numbers["cost"] for _, numbers in found)
        print(
            f"| {name} | {task.steps} | {rates[0]:.2g}: {row['best Adam']:.4g} "
            f"| {rates[1]:.2g}: {row['best SGDM']:.4g} | {row['Adam 1e-3']:.4g} "
            f"| {row['AdaBound default']:.4g} | {row['suggested']:.4g} "
            f"({first['lr']:.2g} / {first['final_lr']:.2g}) | {regret(row, 'suggested'):+.1f} | {row['cost']} |",
            flush=True,
        )
    regrets = [regret(row, "suggested") for row in rows.values()]
    mean_ranks = {method: statistics.mean(ranks(row)[method] for row in rows.values()) for method in METHODS}
    print(f"\nsuggested: median regret {statistics.median(regrets):+.1f} %, worst {max(regrets):+.1f} %; mean ranks:")
    print(", ".join(f"{method} {rank:.2f}" for method, rank in mean_ranks.items()))


if __name__ == "__main__":
    main()
