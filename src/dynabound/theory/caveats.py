"""What Theorems 1 to 3 and the bounds' effect depend on: debiasing, momentum, ε, and above all the constant step."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynabound.theory import problems, statements
from dynabound.theory.fast import race
from dynabound.theory.methods import SCHEMES, Method
from dynabound.theory.regret import regret
from dynabound.theory.statements import Statement
from dynabound.theory.study import Demonstration, first_below_0, limit, power, step_size_text, trend


def theorem_1(demo: Demonstration, problem: problems.Line, alpha: float, scheme: str, numbers: dict[str, Any]) -> None:
    """The problem is not convex; whether debiasing, momentum and ε matter."""
    points = np.linspace(-2, 2, 41)
    f = np.array([problem.loss(1, np.array([x])) for x in points])
    rise = float((f[1:-1] - (f[:-2] + f[2:]) / 2).max())
    measured = f"f₁ rises {rise:.3g} above a chord of its graph"
    demo.judge("f_t is convex", measured, rise <= 1e-12, of=statements.CONVEX)
    steps = demo.settings["steps"]

    def adam(claim: str, shown: str, changed: dict[str, Any], of: Statement | None) -> None:
        run = race([(problem, Method("Adam", **{**numbers, "alpha": alpha, "scheme": scheme, **changed}))], steps)[0]
        first = first_below_0(run)
        measured = f"first x < 0 at t = {first:,}" if first else "never x < 0"
        demo.judge(claim, measured, first is None, shown, of=of)

    for other in SCHEMES:
        shown, changed = f"debiased, {step_size_text(other)}", dict(debias=True, scheme=other)
        adam("The debiased Adam is trapped as well", shown, changed, statements.DEBIASED)
    if numbers["beta2"] > 0.9**2:  # β₁ must be below √β₂
        adam("Momentum does not free Adam", "β₁ = 0.9", dict(beta1=0.9), None)
    adam("A small ε does not free Adam", "ε = 1e-3", dict(eps=1e-3), None)


def theorem_2(demo: Demonstration, problem: problems.Line, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step α*: SGD, which AdaBound becomes, jumps over the whole box at every gradient of size C."""
    period, at = demo.settings["period"], demo.data["t"]
    constant = {**numbers, "scheme": "constant", "alpha": alpha}
    rates = [numbers["final_lr"], numbers["final_lr"] / 100]
    methods = [Method("Adam", **constant)] + [Method("AdaBound", **{**constant, "final_lr": rate}) for rate in rates]
    # The defaults of AdaBound(), without the bias correction.
    defaults = Method("AdaBound", alpha=1e-3, beta1=0.9, beta2=0.999, scheme="constant", final_lr=0.1, gamma=1e-3)
    runs = race([(problem, method) for method in (*methods, defaults)], demo.settings["steps"], at)
    adam, *bounded, default = [regret(run) / at * period / 2 for run in runs]
    for rate, units in zip(rates, bounded, strict=True):
        measured = f"AdaBound {units[-1]:.3g} × 2/C, Adam {adam[-1]:.3g}"
        claim, shown = "With a constant step AdaBound has less regret than Adam", f"constant α, α* = {rate:g}"
        demo.judge(claim, measured, units[-1] < adam[-1], shown)
    slope = trend(at, np.log10(np.maximum(default, 1e-12)))
    measured = f"{default[-1] * 2 / period:.3g}, {power(slope)} over the last decade"
    shown = "constant α = 0.001, β₁ = 0.9, β₂ = 0.999, α* = 0.1, γ = 0.001"
    holds = limit(bool(default[-1] < 0.1), -slope, False, False)
    demo.judge("With its default settings AdaBound learns: R_T/T goes to 0", measured, holds, shown)
    found = {f"{rate:g}": float(units[-1]) for rate, units in zip(rates, bounded, strict=True)}
    demo.data["constant_step"] = dict(adam=float(adam[-1]), adabound=found)


def theorem_3(demo: Demonstration, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step never stops moving: one rare gradient moves x by α*·C."""
    steps, seeds, period = demo.settings["steps"], demo.settings["seeds"], 50
    lines = [problems.theorem_3(period, steps, seed, min(demo.settings["delta"], period / 2)) for seed in range(seeds)]
    for rate in (numbers["final_lr"], 3e-3 * numbers["final_lr"]):
        method = Method("AdaBound", **{**numbers, "alpha": alpha, "scheme": "constant", "final_lr": rate})
        half = np.arange(steps // 2 + 1, steps + 1)
        highest = max(float(run.x.mean()) for run in race([(line, method) for line in lines], steps, half))
        measured = f"highest mean x over the second half {highest:+.3f}"
        claim = "With a constant step AdaBound keeps its mean below −0.9 in every run"
        shown = f"constant α, C = {period}, α* = {rate:g}"
        demo.judge(claim, measured, highest < -0.9, shown)
