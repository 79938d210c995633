"""Theorems 1 to 3, run and measured: where Adam fails, and whether bounds on its rates repair it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynabound._checks import require
from dynabound.theory import problems
from dynabound.theory.domains import Floats
from dynabound.theory.fast import ProgressCallback, race
from dynabound.theory.framework import Trajectory
from dynabound.theory.methods import METHODS, SCHEMES, Method
from dynabound.theory.regret import regret
from dynabound.theory.study import Demonstration, first_below_0, log_spaced, make_method, step_size_text

ALPHAS: Floats = np.logspace(-10, 10, 41)
OUTCOMES = ("optimal", "trapped", "jumped past")
REPAIRED = ("SGD", "AMSGrad", "AdaBound", "AMSBound")
AMSGRAD_FACTOR = 10.0
"""AMSGrad divides by the largest gradient for ever, C instead of 1: it gets ten times the α, or it hardly moves."""


def theorem_1(
    *,
    alpha: float = 0.1,
    beta1: float = 0.0,
    beta2: float = 0.9,
    period: int | None = None,
    steps: int = 10_000,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float = 0.2,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """Adam is trapped at x ≥ 0, whatever α is, where x < 0 is optimal."""
    period = problems.theorem_1_period(beta2) if period is None else period
    problem = problems.theorem_1(period)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma)
    settings = dict(alpha=alpha, period=period, steps=steps, scheme=scheme, **numbers)
    demo = Demonstration("theorem-1", "Theorem 1 claims: whatever its step size, Adam never reaches x < 0", settings)
    met = problems.theorem_1_condition(period, beta2)
    smallest = problems.theorem_1_period(beta2)
    demo.judge("C meets 5β₂^(C−2) ≤ (1−β₂)/(4−β₂)", f"C = {period}, smallest that does: {smallest}", met)

    runs = race([(problem, make_method(name, alpha=alpha, scheme=scheme, **numbers)) for name in METHODS], steps)
    grid = [(name, other, a) for name in METHODS for other in SCHEMES for a in ALPHAS]
    lanes = [(problem, make_method(name, alpha=float(a), scheme=other, **numbers)) for name, other, a in grid]
    swept = race(lanes, steps, log_spaced(steps), progress)
    outcomes = {name: [_outcome(run) for run in swept if _is(run, name, scheme)] for name in METHODS}

    for other in SCHEMES:
        for name in ("Adam", "RMSprop"):
            _judge_trap(demo, [run for run in swept if _is(run, name, other)], name, other)
    for run in runs:
        if run.method.name not in ("Adam", "RMSprop"):
            _judge_escape(demo, run, outcomes[run.method.name])
    wide = [run.lowest < 0 for run in swept if _is(run, "AdaBound", scheme) and 1e-8 <= run.method.alpha <= 1e8]
    bound = final_lr * (1 + 1 / gamma)
    measured = f"x < 0 for {sum(wide)} of {len(wide)} α's; α*(1+1/γ) = {bound:.3g}"
    demo.judge("AdaBound escapes for every α from 1e-8 to 1e8", measured, all(wide))
    _theorem_1_caveats(demo, problem, alpha, scheme, numbers)

    at = log_spaced(steps)
    demo.data.update(
        t=at,
        x={run.method.name: run.x[at - 1, 0] for run in runs},
        average_regret={run.method.name: regret(run, at) / at for run in runs},
        alphas=ALPHAS,
        outcomes=outcomes,
        lowest={f"{name}, {other}": [run.lowest for run in swept if _is(run, name, other)]
                for name in METHODS for other in SCHEMES},
    )  # fmt: skip
    return demo


def _is(run: Trajectory, name: str, scheme: str) -> bool:
    return run.method.name == name and run.method.scheme == scheme


def _outcome(run: Trajectory) -> int:
    """The index in :data:`OUTCOMES` of where x ended; beyond 1 every gradient is 0, so there is no way back."""
    x = float(run.last[0])
    return 0 if x < 0 else 2 if x > 1 else 1


def _judge_trap(demo: Demonstration, runs: list[Trajectory], name: str, scheme: str) -> None:
    lowest = min(run.lowest for run in runs)
    # R_t ≥ 100t − 1 at every recorded t.
    slack = min(float((regret(run) - (100.0 * run.at - 1)).min()) for run in runs)
    demo.judge(
        f"{name} stays at x ≥ 0 and R_T ≥ 100T − 1 for every α from 1e-10 to 1e10",
        f"lowest x {lowest:.3g}; R_T − (100T − 1) ≥ {slack:.3g}; {len(runs)} α's",
        lowest >= 0 and slack >= 0,
        step_size_text(scheme),
    )


def _judge_escape(demo: Demonstration, run: Trajectory, outcomes: list[int]) -> None:
    first = first_below_0(run)
    works = ALPHAS[np.array(outcomes) == 0]
    span = f"; works for {works.size} of {ALPHAS.size} α's, up to {works.max():.3g}" if works.size else ""
    measured = f"first x < 0 at t = {first:,}{span}" if first else f"never, in {run.steps:,} steps{span}"
    demo.judge(f"{run.method.name} reaches x < 0", measured, first is not None)


def _theorem_1_caveats(
    demo: Demonstration, problem: problems.Line, alpha: float, scheme: str, numbers: dict[str, Any]
) -> None:
    points = np.linspace(-2, 2, 41)
    f = np.array([problem.loss(1, np.array([x])) for x in points])
    rise = float((f[1:-1] - (f[:-2] + f[2:]) / 2).max())
    demo.judge("f_t is convex", f"f₁ rises {rise:.3g} above a chord of its graph", rise <= 1e-12)
    steps = demo.settings["steps"]

    def adam(claim: str, shown: str, **changed: Any) -> None:
        run = race([(problem, Method("Adam", **{**numbers, "alpha": alpha, "scheme": scheme, **changed}))], steps)[0]
        first = first_below_0(run)
        demo.judge(claim, f"first x < 0 at t = {first:,}" if first else "never x < 0", first is None, shown)

    for other in SCHEMES:
        shown = f"debiased, {step_size_text(other)}"
        adam("The debiased Adam is trapped as well (the paper's footnote)", shown, debias=True, scheme=other)
    if numbers["beta2"] > 0.9**2:  # β₁ must be below √β₂
        adam("Momentum does not free Adam", "β₁ = 0.9", beta1=0.9)
    adam("A small ε does not free Adam", "ε = 1e-3", eps=1e-3)


def theorem_2(
    *,
    alpha: float = 0.1,
    beta1: float = 0.0,
    beta2: float = 0.5,
    period: int | None = None,
    steps: int = 1_000_000,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float = 0.5,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """Adam's average regret stays at 2/C, which the others leave behind."""
    period = problems.theorem_2_period(beta1, beta2) if period is None else period
    problem = problems.theorem_2(period)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    demo = Demonstration(
        "theorem-2",
        "Theorem 2 claims: whatever its step size, Adam's average regret does not vanish",
        dict(alpha=alpha, alpha_amsgrad=AMSGRAD_FACTOR * alpha, period=period, steps=steps, **numbers),
    )
    met, smallest = problems.theorem_2_condition(period, beta1, beta2), problems.theorem_2_period(beta1, beta2)
    demo.judge("C meets the theorem's three conditions", f"C = {period}, smallest that does: {smallest:,}", met)

    own = [_tuned(name, alpha, numbers) for name in METHODS]
    more = [Method("Adam", alpha=factor * alpha, **numbers) for factor in (0.1, 10, 100)]
    at = log_spaced(steps, multiple=period)
    runs = race([(problem, method) for method in own + more], steps, at, progress)
    units = [regret(run) / at * period / 2 for run in runs]
    for run, unit in zip(runs, units, strict=True):
        name, end = run.method.name, float(unit[-1])
        measured, shown = f"{end:.3g} × 2/C, ends at x = {run.last[0]:.3f}", f"α = {run.method.alpha:g}"
        if name == "Adam":
            demo.judge("Adam's average regret stays at 2/C: at least 0.95 of it at T", measured, end >= 0.95, shown)
        elif name in REPAIRED:
            demo.judge(f"{name}'s average regret goes to 0: below 0.1 × 2/C at T", measured, end < 0.1, shown)
    demo.data.update(
        t=at,
        units={run.method.name: unit for run, unit in zip(runs[: len(own)], units, strict=False)},
        x={run.method.name: run.x[:, 0] for run in runs[: len(own)]},
        adam_units={f"{run.method.alpha:g}": unit for run, unit in zip(runs, units, strict=True)
                    if run.method.name == "Adam"},
    )  # fmt: skip
    _theorem_2_caveat(demo, problem, alpha, numbers)
    return demo


def _tuned(name: str, alpha: float, numbers: dict[str, Any]) -> Method:
    return make_method(name, alpha=AMSGRAD_FACTOR * alpha if name == "AMSGrad" else alpha, **numbers)


def _theorem_2_caveat(demo: Demonstration, problem: problems.Line, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step α*: SGD, which AdaBound becomes, jumps over the whole box at every gradient of size C."""
    numbers = {**numbers, "scheme": "constant", "alpha": alpha}
    rates = [numbers["final_lr"], numbers["final_lr"] / 100]
    methods = [Method("Adam", **numbers)] + [Method("AdaBound", **{**numbers, "final_lr": rate}) for rate in rates]
    last = demo.data["t"][-1:]
    runs = race([(problem, method) for method in methods], demo.settings["steps"], last)
    adam, *bounded = [float(regret(run)[-1] / last[-1] * demo.settings["period"] / 2) for run in runs]
    for rate, units in zip(rates, bounded, strict=True):
        measured = f"AdaBound {units:.3g} × 2/C, Adam {adam:.3g}"
        claim = "With a constant step AdaBound has less regret than Adam"
        demo.judge(claim, measured, units < adam, f"constant α, α* = {rate:g}")
    demo.data["constant_step"] = dict(adam=adam, adabound={f"{r:g}": u for r, u in zip(rates, bounded, strict=True)})


def theorem_3(
    *,
    alpha: float = 0.1,
    beta1: float = 0.0,
    beta2: float = 0.5,
    period: int = 20,
    steps: int = 10_000,
    seeds: int = 20,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float | None = None,
    delta: float = 1.0,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """With random losses Adam drifts to the worst point of all."""
    require(seeds >= 1, "seeds", seeds, "at least 1")
    gamma = 1 - beta2 if gamma is None else gamma
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    demo = Demonstration(
        "theorem-3",
        "Theorem 3 claims: with random losses, too, Adam does not converge to x* = −1",
        dict(
            alpha=alpha,
            alpha_amsgrad=AMSGRAD_FACTOR * alpha,
            period=period,
            delta=delta,
            steps=steps,
            seeds=seeds,
            **numbers,
        ),
    )
    at = log_spaced(steps)
    lines = [problems.theorem_3(period, steps, seed, delta) for seed in range(seeds)]
    names = ("Adam", *REPAIRED)
    runs = race([(line, _tuned(name, alpha, numbers)) for name in names for line in lines], steps, at, progress)
    last = {name: np.array([run.last[0] for run in runs if run.method.name == name]) for name in names}
    claim = "Adam does not converge to x* = −1: it ends beyond +0.9 in every run"
    demo.judge(claim, f"lowest end {last['Adam'].min():+.3f} of {seeds} seeds", last["Adam"].min() > 0.9)
    for name in REPAIRED:
        claim = f"{name} converges to x* = −1: it ends below −0.9 in every run"
        demo.judge(claim, f"highest end {last[name].max():+.3f} of {seeds} seeds", last[name].max() < -0.9)

    demo.data.update(t=at, x={n: [run.x[:, 0] for run in runs if run.method.name == n] for n in names}, last=last)
    _theorem_3_caveat(demo, alpha, numbers)
    return demo


def _theorem_3_caveat(demo: Demonstration, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step never stops shaking: α*·C is how far one rare gradient throws x."""
    steps, seeds, period = demo.settings["steps"], demo.settings["seeds"], 50
    lines = [problems.theorem_3(period, steps, seed, demo.settings["delta"]) for seed in range(seeds)]
    for rate in (numbers["final_lr"], 3e-3 * numbers["final_lr"]):
        method = Method("AdaBound", **{**numbers, "alpha": alpha, "scheme": "constant", "final_lr": rate})
        half = np.arange(steps // 2 + 1, steps + 1)
        highest = max(float(run.x.mean()) for run in race([(line, method) for line in lines], steps, half))
        measured = f"highest mean x over the second half {highest:+.3f}"
        claim = "With a constant step AdaBound keeps its mean below −0.9 in every run"
        demo.judge(claim, measured, highest < -0.9, f"constant α, C = {period}, α* = {rate:g}")
