"""Theorems 1 to 3, simulated and measured: where Adam fails, and whether bounds on its rates prevent it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dynabound.theory import problems
from dynabound.theory.demonstration import Demonstration, Statement, check_size, log_spaced, step_size_text
from dynabound.theory.fast import ProgressCallback, simulate
from dynabound.theory.framework import METHODS, SCHEMES, Box, Floats, Method, Steps, Trajectory, check_betas
from dynabound.theory.regret import regret

# What the paper states.
THEOREM_1 = Statement("Theorem 1", 231, "theorem")
THEOREM_2 = Statement("Theorem 2", 245, "theorem")
THEOREM_3 = Statement("Theorem 3", 250, "theorem")
CONSTANT_STEP = Statement("Theorem 1 with a constant step", 234)
RMSPROP = Statement("Theorem 1 for RMSprop", 159)
AMSGRAD = Statement("Theorem 1 for AMSGrad", 159)
DEBIASED = Statement("Theorem 1 for debiased Adam", 151)
CONVEX = Statement("Theorem 1's problem is convex", 231)
SGD_SOLVES_IT = Statement("SGD solves Theorem 1's problem", 235)
DECREASING_BETA1 = Statement("Theorem 2 for decreasing β₁", 254)

ALPHAS: Floats = np.logspace(-10, 10, 41)
OUTCOMES = ("optimal", "trapped", "jumped past")
REPAIRED = ("SGD", "AMSGrad", "AdaBound", "AMSBound")
AMSGRAD_FACTOR = 10.0
"""AMSGrad divides by the largest gradient so far, C instead of 1: without ten times the α it hardly moves."""
SMALL_TREND = 0.05
"""A curve is flat if it changes less than this per decade of steps (of t, or of log t for a regret)."""
MOST_STEPS = 100_000_000
"""The most steps of all seeds together: their losses are kept, 8 bytes a step."""


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
    check_size(steps)
    check_betas(beta1, beta2)
    period, compared = _choose_period(period, lambda: problems.theorem_1_period(beta2))
    problem = problems.theorem_1(period)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma)
    settings = dict(alpha=alpha, period=period, steps=steps, scheme=scheme, **numbers)
    demo = Demonstration("theorem-1", "Theorem 1 claims: whatever its step size, Adam never reaches x < 0", settings)
    met = bool(problems.theorem_1_condition(period, beta2))
    demo.judge("C meets 5β₂^(C−2) ≤ (1−β₂)/(4−β₂)", compared, met)

    runs = simulate([(problem, make_method(name, alpha=alpha, scheme=scheme, **numbers)) for name in METHODS], steps)
    grid = [(name, other, a) for name in METHODS for other in SCHEMES for a in ALPHAS]
    lanes = [(problem, make_method(name, alpha=float(a), scheme=other, **numbers)) for name, other, a in grid]
    swept = simulate(lanes, steps, log_spaced(steps), progress)
    outcomes = {name: [_outcome(run) for run in swept if _is(run, name, scheme)] for name in METHODS}
    _judge_traps(demo, swept, within_theorem=met and beta1 == 0)
    _judge_escapes(demo, runs, swept, outcomes)
    _caveats_1(demo, problem, alpha, scheme, numbers)

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


def _choose_period(given: int | None, find_smallest: Callable[[], int]) -> tuple[int, str]:
    """C, and how it compares with the smallest that the theorem allows."""
    if given is None:
        smallest = find_smallest()
        return smallest, f"C = {smallest:,}, the smallest that does"
    try:
        return given, f"C = {given:,}; the smallest that does is {find_smallest():,}"
    except ValueError:  # it is too large to be run
        return given, f"C = {given:,}; the smallest that does is above {problems.MAX_PERIOD:,}"


def _is(run: Trajectory, name: str, scheme: str) -> bool:
    return run.method.name == name and run.method.scheme == scheme


def _outcome(run: Trajectory) -> int:
    """The index in :data:`OUTCOMES` of where x ended; beyond 1 every gradient is 0, so there is no way back."""
    x = float(run.last[0])
    return 0 if x < 0 else 2 if x > 1 else 1


def _judge_traps(demo: Demonstration, swept: list[Trajectory], within_theorem: bool) -> None:
    """Adam and RMSprop must stay at x ≥ 0; outside the theorem's conditions the claim is not the paper's."""
    for scheme in SCHEMES:
        for name in ("Adam", "RMSprop"):
            runs = [run for run in swept if _is(run, name, scheme)]
            lowest = min(run.lowest for run in runs)
            # R_t ≥ 100t − 1 at every recorded t.
            slack = min(float((regret(run) - (100.0 * run.at - 1)).min()) for run in runs)
            trapped = lowest >= 0 and slack >= 0
            short = demo.settings["steps"] < demo.settings["period"] + 2  # the second gradient 2 was never seen
            statement = RMSPROP if name == "RMSprop" else THEOREM_1 if scheme == "sqrt" else CONSTANT_STEP
            demo.judge(
                f"{name} stays at x ≥ 0 and R_T ≥ 100T − 1 for every α from 1e-10 to 1e10",
                f"lowest x {lowest:.3g}; R_T − (100T − 1) ≥ {slack:.3g}; {len(runs)} α's",
                None if trapped and short else trapped,
                step_size_text(scheme),
                of=statement if within_theorem else None,
            )


def _escapes(run: Trajectory) -> bool | None:
    """Whether x < 0 was reached; None if x still fell over the last decade of steps, short of 0."""
    if run.lowest < 0:
        return True
    before = run.x[np.searchsorted(run.at, run.steps / 10), 0]
    return None if run.last[0] <= 1 and run.last[0] < before else False


def _judge_escapes(
    demo: Demonstration, runs: list[Trajectory], swept: list[Trajectory], outcomes: dict[str, list[int]]
) -> None:
    for run in runs:
        name = run.method.name
        if name in ("Adam", "RMSprop"):
            continue
        first, works = first_below_0(run), ALPHAS[np.array(outcomes[name]) == 0]
        span = f"; works for {works.size} of {ALPHAS.size} α's, up to {works.max():.3g}" if works.size else ""
        where = f"never, in {run.steps:,} steps; ends at x = {run.last[0]:.3g}"
        measured = (f"first x < 0 at t = {first:,}" if first else where) + span
        demo.judge(f"{name} reaches x < 0", measured, _escapes(run), of=SGD_SOLVES_IT if name == "SGD" else None)
        if name == "AMSGrad":
            trapped = None if _escapes(run) is None else not first
            claim = "The argument applies to AMSGrad as well: it is trapped"
            demo.judge(claim, measured, trapped, of=AMSGRAD)
    scheme, final_lr, gamma = (demo.settings[key] for key in ("scheme", "final_lr", "gamma"))
    wide = [_escapes(run) for run in swept if _is(run, "AdaBound", scheme) and 1e-8 <= run.method.alpha <= 1e8]
    measured = f"x < 0 for {wide.count(True)} of {len(wide)} α's; α*(1+1/γ) = {final_lr * (1 + 1 / gamma):.3g}"
    holds = False if False in wide else None if None in wide else True
    demo.judge("AdaBound escapes for every α from 1e-8 to 1e8", measured, holds)


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
    """Adam's average regret stays at 2/C; that of the others goes to 0."""
    check_size(steps)
    check_betas(beta1, beta2)
    period, compared = _choose_period(period, lambda: problems.theorem_2_period(beta1, beta2))
    problem = problems.theorem_2(period)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    demo = Demonstration(
        "theorem-2",
        "Theorem 2 claims: whatever its step size, Adam's average regret does not vanish",
        dict(alpha=alpha, alpha_amsgrad=AMSGRAD_FACTOR * alpha, period=period, steps=steps, **numbers),
    )
    met = bool(problems.theorem_2_condition(float(period), beta1, beta2))
    demo.judge("C meets the theorem's three conditions", compared, met)

    own = [_tuned(name, alpha, numbers) for name in METHODS]
    more = [Method("Adam", alpha=factor * alpha, **numbers) for factor in (0.1, 10, 100)]
    at = log_spaced(steps, multiple=period)
    runs = simulate([(problem, method) for method in own + more], steps, at, progress)
    units = [regret(run) / at * period / 2 for run in runs]
    for run, unit in zip(runs, units, strict=True):
        _judge_average(demo, run, unit, f"α = {run.method.alpha:g}", THEOREM_2 if met else None)
    demo.data.update(
        t=at,
        units={run.method.name: unit for run, unit in zip(runs[: len(own)], units, strict=False)},
        x={run.method.name: run.x[:, 0] for run in runs[: len(own)]},
        adam_units={f"{run.method.alpha:g}": unit for run, unit in zip(runs, units, strict=True)
                    if run.method.name == "Adam"},
    )  # fmt: skip
    _decreasing_beta1(demo, problem, alpha, numbers, met)
    _caveats_2(demo, problem, alpha, numbers)
    return demo


def _tuned(name: str, alpha: float, numbers: dict[str, Any]) -> Method:
    return make_method(name, alpha=AMSGRAD_FACTOR * alpha if name == "AMSGrad" else alpha, **numbers)


def _judge_average(
    demo: Demonstration, run: Trajectory, unit: Floats, shown: str, of: Statement | None, suffix: str = ""
) -> None:
    """Judge R_t/t in units of 2/C: Adam's must stay at 1, that of the repaired methods must go to 0."""
    name, end, x = run.method.name, float(unit[-1]), float(run.last[0])
    slope = trend(run.at, np.log10(np.maximum(unit, 1e-12)))
    measured = f"{end:.3g} × 2/C, {power(slope)} over the last decade; ends at x = {x:.3f}"
    # Steps of α/√t sum to infinity: an x inside the box may still reach either end.
    can_move = run.method.scheme == "sqrt" and abs(x) < 0.99
    if name == "Adam":
        claim = f"Adam's average regret stays at 2/C{suffix}: at least 0.95 of it at T"
        demo.judge(claim, measured, limit(end >= 0.95, slope, x > 0.9, can_move), shown, of=of)
    elif name in REPAIRED:
        claim = f"{name}'s average regret goes to 0: below 0.1 × 2/C at T"
        demo.judge(claim, measured, limit(end < 0.1, -slope, x < -0.9, can_move), shown)


def _decreasing_beta1(
    demo: Demonstration, problem: problems.Line, alpha: float, numbers: dict[str, Any], met: bool
) -> None:
    """The paper's remark: the example also works for β₁ that decreases over time."""
    beta1 = 0.9 * numbers["beta2"] ** 0.5
    for decay, text in ((0.99, "β₁·0.99^(t−1)"), ("harmonic", "β₁/t")):
        method = Method("Adam", **{**numbers, "alpha": alpha, "beta1": beta1, "beta1_decay": decay})
        run = simulate([(problem, method)], demo.settings["steps"], demo.data["t"])[0]
        unit = regret(run) / run.at * demo.settings["period"] / 2
        shown = f"β₁ₜ = {text}, β₁ = {beta1:.3g}"
        _judge_average(demo, run, unit, shown, DECREASING_BETA1 if met else None, " with decreasing β₁")


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
    """With random losses Adam drifts to the worst point of the interval."""
    check_size(steps, seeds, MOST_STEPS)
    check_betas(beta1, beta2)
    gamma = 1 - beta2 if gamma is None else gamma
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    scale = dict(period=period, delta=delta, steps=steps, seeds=seeds)
    demo = Demonstration(
        "theorem-3",
        "Theorem 3 claims: with random losses, too, Adam does not converge to x* = −1",
        dict(alpha=alpha, alpha_amsgrad=AMSGRAD_FACTOR * alpha, **scale, **numbers),
    )
    names = ("Adam", *REPAIRED)
    methods = {name: _tuned(name, alpha, numbers) for name in names}
    lines = [problems.theorem_3(period, steps, seed, delta) for seed in range(seeds)]
    met = _judge_drift(demo, beta1, beta2)
    at = log_spaced(steps)
    runs = simulate([(line, methods[name]) for name in names for line in lines], steps, at, progress)
    paths = {name: [run.x[:, 0] for run in runs if run.method.name == name] for name in names}
    last = {name: np.array([run.last[0] for run in runs if run.method.name == name]) for name in names}
    for name in names:
        adam = name == "Adam"
        sign = 1 if adam else -1
        farthest, slope = (sign * last[name]).min(), trend(at, np.mean(paths[name], axis=0))
        reached = bool(farthest > 0.9)
        can_move = scheme == "sqrt" and abs(last[name].mean()) < 0.99
        goal = (
            "does not converge to x* = −1: it ends beyond +0.9" if adam else "converges to x* = −1: it ends below −0.9"
        )
        measured = (
            f"{'lowest' if adam else 'highest'} end {sign * farthest:+.3f} of {seeds} seeds, mean {slope:+.2f} a decade"
        )
        holds = limit(reached, sign * slope, reached, can_move)
        demo.judge(f"{name} {goal} in every run", measured, holds, of=THEOREM_3 if adam and met else None)
    demo.data.update(t=at, x=paths, last=last)
    _caveats_3(demo, alpha, numbers)
    return demo


def _judge_drift(demo: Demonstration, beta1: float, beta2: float) -> bool:
    """Theorem 3's condition on C: the expected step of Adam points away from x* (measured without projection)."""
    period, delta, steps = demo.settings["period"], demo.settings["delta"], 100_000
    free = [replace(problems.theorem_3(period, steps, seed, delta), domain=Box(-1e9, 1e9)) for seed in range(8)]
    method = Method("Adam", alpha=1.0, beta1=beta1, beta2=beta2, scheme="constant")
    runs = simulate([(line, method) for line in free], steps, np.array([steps]))
    drift = np.array([run.last[0] / steps for run in runs])
    mean, error = float(drift.mean()), float(drift.std(ddof=1) / np.sqrt(drift.size))
    proven = bool(problems.theorem_3_condition(float(period), beta1, beta2, delta))
    measured = f"expected step {mean:+.3g}·α_t, ± {error:.1g}{'; proven for this C' if proven else ''}"
    holds = None if abs(mean) < 3 * error else mean > 0
    demo.judge("C is so large that Adam's expected step points away from x*", measured, holds)
    return holds is True


def _caveats_1(demo: Demonstration, problem: problems.Line, alpha: float, scheme: str, numbers: dict[str, Any]) -> None:
    """The problem is not convex; whether debiasing, momentum and ε matter."""
    points = np.linspace(-2, 2, 41)
    f = np.array([problem.loss(1, np.array([x])) for x in points])
    rise = float((f[1:-1] - (f[:-2] + f[2:]) / 2).max())
    measured = f"f₁ rises {rise:.3g} above a chord of its graph"
    demo.judge("f_t is convex", measured, rise <= 1e-12, of=CONVEX)
    steps = demo.settings["steps"]

    def adam(claim: str, shown: str, changed: dict[str, Any], of: Statement | None) -> None:
        method = Method("Adam", **{**numbers, "alpha": alpha, "scheme": scheme, **changed})
        run = simulate([(problem, method)], steps)[0]
        first = first_below_0(run)
        measured = f"first x < 0 at t = {first:,}" if first else "never x < 0"
        demo.judge(claim, measured, first is None, shown, of=of)

    for other in SCHEMES:
        shown, changed = f"debiased, {step_size_text(other)}", dict(debias=True, scheme=other)
        adam("The debiased Adam is trapped as well", shown, changed, DEBIASED)
    if numbers["beta2"] > 0.9**2:  # β₁ must be below √β₂
        adam("Momentum does not free Adam", "β₁ = 0.9", dict(beta1=0.9), None)
    adam("A small ε does not free Adam", "ε = 1e-3", dict(eps=1e-3), None)


def _caveats_2(demo: Demonstration, problem: problems.Line, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step α*: SGD, which AdaBound becomes, jumps over the whole box at every gradient of size C."""
    period, at = demo.settings["period"], demo.data["t"]
    constant = {**numbers, "scheme": "constant", "alpha": alpha}
    rates = [numbers["final_lr"], numbers["final_lr"] / 100]
    methods = [Method("Adam", **constant)] + [Method("AdaBound", **{**constant, "final_lr": rate}) for rate in rates]
    # The defaults of AdaBound(), without the bias correction.
    defaults = Method("AdaBound", alpha=1e-3, beta1=0.9, beta2=0.999, scheme="constant", final_lr=0.1, gamma=1e-3)
    runs = simulate([(problem, method) for method in (*methods, defaults)], demo.settings["steps"], at)
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


def _caveats_3(demo: Demonstration, alpha: float, numbers: dict[str, Any]) -> None:
    """A constant step never stops moving: one rare gradient moves x by α*·C."""
    steps, seeds, period = demo.settings["steps"], demo.settings["seeds"], 50
    lines = [problems.theorem_3(period, steps, seed, min(demo.settings["delta"], period / 2)) for seed in range(seeds)]
    for rate in (numbers["final_lr"], 3e-3 * numbers["final_lr"]):
        method = Method("AdaBound", **{**numbers, "alpha": alpha, "scheme": "constant", "final_lr": rate})
        half = np.arange(steps // 2 + 1, steps + 1)
        highest = max(float(run.x.mean()) for run in simulate([(line, method) for line in lines], steps, half))
        measured = f"highest mean x over the second half {highest:+.3f}"
        claim = "With a constant step AdaBound keeps its mean below −0.9 in every run"
        shown = f"constant α, C = {period}, α* = {rate:g}"
        demo.judge(claim, measured, highest < -0.9, shown)


def trend(at: Steps, values: Any) -> float:
    """The slope of ``values`` against log₁₀ t over the last decade of the recorded steps ``at``."""
    last = at >= at[-1] / 10
    return float(np.polyfit(np.log10(at[last]), np.asarray(values)[last], 1)[0]) if last.sum() > 1 else 0.0


def power(slope: float) -> str:
    """A power of t in a measurement.

    >>> power(-0.5), power(-0.001)
    ('∝ t^-0.50', '∝ t^0.00')
    """
    return f"∝ t^{round(slope, 2) + 0:.2f}"  # + 0 turns −0 into 0


def limit(reached: bool, toward: float, arrived: bool, can_move: bool) -> bool | None:
    """Whether a limit is reached, judged from T steps; None if T is too small to decide.

    ``toward`` is the trend over the last decade, positive towards the limit; ``arrived`` says that x is at the point
    that the limit implies; ``can_move`` that x can still move.
    """
    if reached:
        return True if arrived or toward > -SMALL_TREND else None
    return None if toward > SMALL_TREND or (can_move and toward > -SMALL_TREND) else False


def first_below_0(run: Trajectory) -> int | None:
    """The first t with x_t < 0, of a run that has recorded all its steps."""
    below = np.flatnonzero(np.append(run.x[:, 0], run.last) < 0)
    return int(below[0]) + 1 if below.size else None


def make_method(name: str, **numbers: Any) -> Method:
    """The method of that name; SGDM takes its usual momentum instead of β₁."""
    if name == "SGDM":
        numbers["beta1"] = 0.9
    return Method(name, **numbers)
