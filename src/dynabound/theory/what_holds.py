"""Bounds on the regret that hold, against random games; and bounds on the rates that close too slowly for AdaBound."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from dynabound.bounds import SAVARESE, certificate
from dynabound.theory import problems
from dynabound.theory.demonstration import Demonstration, Statement, check_size, log_spaced
from dynabound.theory.fast import ProgressCallback, simulate
from dynabound.theory.framework import Method, Trajectory, bound_arrays
from dynabound.theory.regret import regret, rho, rho_bound, that_hold, theorem_c

BOUNDED = ("AdaBound", "AMSBound")
RATE = Statement("AdaBound's regret is O(√T)", 316)
AMSBOUND_RATE = Statement("AMSBound's regret is O(√T)", 319)
MOST_GAME_STEPS = 1_000_000
DECAYS = (0.1, 0.25, 0.4, 0.6)


def guarantees(
    *,
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    steps: int = 200,
    seeds: int = 1000,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """Bounds on the regret that hold: against random games, and from which T they say something."""
    check_size(steps, seeds, MOST_GAME_STEPS)
    found = certificate("harmonic", gamma, final_lr)
    demo = Demonstration(
        "guarantees",
        "Regret bounds that hold: what they promise, and how close random games come",
        dict(final_lr=final_lr, gamma=gamma, steps=steps, seeds=seeds),
    )
    games = [problems.random_game(np.random.default_rng(seed), steps) for seed in range(seeds)]
    lanes = [(line, Method(name, **numbers)) for line, numbers in games for name in BOUNDED]
    ratios: dict[str, list[float]] = {}
    broken: Counter[str] = Counter()
    for run in simulate(lanes, steps, progress=progress):
        measured = regret(run)
        for name, right in that_hold(run).items():
            ratios.setdefault(name, []).append(float(measured[-1] / right[-1]))
            broken[name] += bool((measured > right * (1 + 1e-9)).any())
    for name, values in sorted(ratios.items()):
        text = f"broken in {broken[name]} of {len(values):,} games, R_T/right-hand side at most {max(values):.3g}"
        source = SAVARESE if name == "Savarese's bound" else "ours"
        demo.judge(f"{name} holds", text, not broken[name], "random games in one dimension", source=source)
    only = {"Theorem A": replace(found, m=math.inf), SAVARESE: replace(found, kappa=math.inf)}
    useful = {name: each.useful_from() for name, each in only.items()}
    claim = "Theorem A promises less than the trivial D·G·T sooner than Savarese's bound"
    text = f"from T = {useful['Theorem A']:,.0f}; Savarese's from {useful[SAVARESE]:.2g}"
    demo.judge(claim, text, useful["Theorem A"] < useful[SAVARESE], "D = 2, G = 1, d = 1, β₁ = 0")
    t = np.geomspace(1, 100 * useful[SAVARESE], 200).round()
    curves = {f"{name}, β₁ = {beta1:g}": [each.regret(step, beta1=beta1).value / step for step in t.tolist()]
              for name, each in only.items() for beta1 in (0.0, 0.9)}  # fmt: skip
    demo.data.update(
        ratios={name: np.quantile(values, np.linspace(0, 1, 201)) for name, values in sorted(ratios.items())},
        promised=dict(t=t, average=curves, useful_from=useful),
    )
    return demo


def slow_bounds(*, steps: int = 100_000, progress: ProgressCallback | None = None) -> Demonstration:
    """Bounds that close like t^−a: AdaBound's regret grows like T^(1−a), AMSBound's like √T."""
    check_size(steps)
    demo = Demonstration(
        "slow-bounds",
        "Bounds that close too slowly: AdaBound's regret outgrows √T, AMSBound's does not",
        dict(decay=DECAYS, steps=steps),
    )
    lanes = [problems.slow_bounds(steps, decay, name) for decay in DECAYS for name in BOUNDED]
    runs = simulate(lanes, steps, progress=progress)
    at = log_spaced(steps, 100)
    curves = {}
    for i, run in enumerate(runs):
        decay, name, measured = DECAYS[i // 2], run.method.name, regret(run)
        shown = f"{name}, a = {decay:g}"
        curves[shown] = measured[at - 1]
        distance = rho(*bound_arrays(run.method, steps), limit=1.0)
        right = rho_bound(distance, limit=1.0, diameter=2.0, gradient_bound=1.0)
        right = np.minimum(right, theorem_c(run)) if name == "AMSBound" else right
        holds = bool((measured <= right * (1 + 1e-9)).all())
        demo.judge("Theorems A and C hold", f"R_T/right-hand side {measured[-1] / right[-1]:.3g}", holds, shown)
        power = float(np.log10(measured[-1] / measured[max(steps // 10, 1) - 1]))
        text, enough = f"grows like T^{power:.2f} over the last decade", steps >= 10_000
        of = RATE if name == "AdaBound" else AMSBOUND_RATE
        demo.judge("The regret is O(√T)", text, power < 0.55 if enough else None, shown, of=of)
        if of is RATE and decay < 0.5:
            near = abs(power - 1 + decay) < 0.03 if enough else None
            demo.judge("The regret grows like T^(1−a)", text, near, shown)
    demo.data.update(t=at, regret=curves, periods=_periods(*lanes[2], runs[2:4], steps))
    return demo


def _periods(line: problems.Line, method: Method, runs: list[Trajectory], steps: int) -> dict[str, Any]:
    """The gradients and both methods' rates in three periods with a = 0.25."""
    lower, upper = bound_arrays(method, steps)
    columns: dict[str, Any] = dict(t=runs[0].at, gradient=line.slopes, lower=lower, upper=upper)
    columns |= {run.method.name: run.rate[:, 0] * np.sqrt(run.at) for run in runs}
    first = min(60, 6 * (steps // 12))
    return {name: values[first : first + 18] for name, values in columns.items()}
