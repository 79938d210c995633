"""Theorems 1 to 3, played: where Adam fails, and whether a bound repairs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynabound.theory import problems
from dynabound.theory.fast import Progress, race
from dynabound.theory.framework import METHODS, SCHEMES, Floats, Method, Run
from dynabound.theory.regret import regret
from dynabound.theory.study import Study, first_below, make, spread, sqrt_or_constant

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
    C: int | None = None,  # noqa: N803 (the paper's letter)
    steps: int = 10_000,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float = 0.2,
    progress: Progress | None = None,
) -> Study:
    """Adam is trapped at x ≥ 0, whatever α is, where x < 0 is optimal."""
    C = problems.theorem_1_period(beta2) if C is None else C  # noqa: N806
    problem = problems.theorem_1(C)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma)
    settings = dict(alpha=alpha, C=C, steps=steps, scheme=scheme, **numbers)
    study = Study("theorem-1", "Theorem 1: however large its step, Adam never finds the way out", settings)
    met = problems.theorem_1_condition(C, beta2)
    smallest = problems.theorem_1_period(beta2)
    study.judge("C meets 5β₂^(C−2) ≤ (1−β₂)/(4−β₂)", f"C = {C}, smallest that does: {smallest}", met)

    runs = race([(problem, make(name, alpha=alpha, scheme=scheme, **numbers)) for name in METHODS], steps)
    grid = [(name, other, a) for name in METHODS for other in SCHEMES for a in ALPHAS]
    lanes = [(problem, make(name, alpha=float(a), scheme=other, **numbers)) for name, other, a in grid]
    swept = race(lanes, steps, spread(steps), progress)
    outcomes = {name: [_outcome(run) for run in swept if _is(run, name, scheme)] for name in METHODS}

    for other in SCHEMES:
        for name in ("Adam", "RMSprop"):
            _judge_trap(study, [run for run in swept if _is(run, name, other)], name, other)
    for run in runs:
        if run.method.name not in ("Adam", "RMSprop"):
            _judge_escape(study, run, outcomes[run.method.name])
    wide = [run.lowest < 0 for run in swept if _is(run, "AdaBound", scheme) and 1e-8 <= run.method.alpha <= 1e8]
    bound = final_lr * (1 + 1 / gamma)
    measured = f"x < 0 for {sum(wide)} of {len(wide)} α's; α*(1+1/γ) = {bound:.3g}"
    study.judge("AdaBound escapes for every α from 1e-8 to 1e8", measured, all(wide))
    _theorem_1_catches(study, problem, alpha, scheme, numbers)

    at = spread(steps)
    study.data.update(
        t=at,
        x={run.method.name: run.x[at - 1, 0] for run in runs},
        average_regret={run.method.name: regret(run, at) / at for run in runs},
        alphas=ALPHAS,
        outcomes=outcomes,
        lowest={f"{name}, {other}": [run.lowest for run in swept if _is(run, name, other)]
                for name in METHODS for other in SCHEMES},
    )  # fmt: skip
    return study


def _is(run: Run, name: str, scheme: str) -> bool:
    return run.method.name == name and run.method.scheme == scheme


def _outcome(run: Run) -> int:
    """The index in :data:`OUTCOMES` of where x ended; beyond 1 every gradient is 0, so there is no way back."""
    x = float(run.last[0])
    return 0 if x < 0 else 2 if x > 1 else 1


def _judge_trap(study: Study, runs: list[Run], name: str, scheme: str) -> None:
    lowest = min(run.lowest for run in runs)
    # R_t ≥ 100t − 1 at every recorded t.
    slack = min(float((regret(run) - (100.0 * run.at - 1)).min()) for run in runs)
    study.judge(
        f"{name} stays at x ≥ 0 and R_T ≥ 100T − 1 for every α from 1e-10 to 1e10",
        f"lowest x {lowest:.3g}; R_T − (100T − 1) ≥ {slack:.3g}; {len(runs)} α's",
        lowest >= 0 and slack >= 0,
        sqrt_or_constant(scheme),
    )


def _judge_escape(study: Study, run: Run, outcomes: list[int]) -> None:
    first = first_below(run) if run.lowest < 0 else None
    works = ALPHAS[np.array(outcomes) == 0]
    span = f"; works for {works.size} of {ALPHAS.size} α's, up to {works.max():.3g}" if works.size else ""
    measured = f"first x < 0 at t = {first:,}{span}" if first else f"never, in {run.steps:,} steps{span}"
    study.judge(f"{run.method.name} reaches x < 0", measured, first is not None)


def _theorem_1_catches(
    study: Study, problem: problems.Line, alpha: float, scheme: str, numbers: dict[str, Any]
) -> None:
    points = np.linspace(-2, 2, 41)
    f = np.array([problem.loss(1, np.array([x])) for x in points])
    rise = float((f[1:-1] - (f[:-2] + f[2:]) / 2).max())
    study.judge("f_t is convex", f"f₁ rises {rise:.3g} above a chord of its graph", rise <= 1e-12)
    steps = study.settings["steps"]

    def adam(claim: str, shown: str, **changed: Any) -> None:
        run = race([(problem, Method("Adam", **{**numbers, "alpha": alpha, "scheme": scheme, **changed}))], steps)[0]
        first = first_below(run) if run.lowest < 0 else None
        study.judge(claim, f"first x < 0 at t = {first:,}" if first else "never x < 0", first is None, shown)

    for other in SCHEMES:
        shown = f"debiased, {sqrt_or_constant(other)}"
        adam("The debiased Adam is trapped as well (the paper's footnote)", shown, debias=True, scheme=other)
    if numbers["beta2"] > 0.81:
        adam("Momentum does not free Adam", "β₁ = 0.9", beta1=0.9)
    adam("A small ε does not free Adam", "ε = 1e-3", eps=1e-3)


def theorem_2(
    *,
    alpha: float = 0.1,
    beta1: float = 0.0,
    beta2: float = 0.5,
    C: int | None = None,  # noqa: N803
    steps: int = 1_000_000,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float = 0.5,
    progress: Progress | None = None,
) -> Study:
    """Adam's average regret stays at 2/C, which the others leave behind."""
    C = problems.theorem_2_period(beta1, beta2) if C is None else C  # noqa: N806
    problem = problems.theorem_2(C)
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    study = Study(
        "theorem-2",
        "Theorem 2: Adam's average regret stays at 2/C",
        dict(alpha=alpha, alpha_amsgrad=AMSGRAD_FACTOR * alpha, C=C, steps=steps, **numbers),
    )
    met, smallest = problems.theorem_2_condition(C, beta1, beta2), problems.theorem_2_period(beta1, beta2)
    study.judge("C meets the theorem's three conditions", f"C = {C}, smallest that does: {smallest:,}", met)

    alphas = [alpha / 10, alpha, 10 * alpha, 100 * alpha]
    methods = [Method("Adam", **{**numbers, "alpha": a}) for a in alphas]
    methods += [_tuned(name, alpha, numbers) for name in METHODS if name != "Adam"]
    constant = {**numbers, "scheme": "constant"}
    methods += [Method("Adam", alpha=alpha, **constant)]
    methods += [Method("AdaBound", **{**constant, "alpha": alpha, "final_lr": a}) for a in (final_lr, final_lr / 100)]
    at = spread(steps, multiple=C)
    runs = race([(problem, method) for method in methods], steps, at, progress)
    units = [regret(run) / at * C / 2 for run in runs]
    end = [float(unit[-1]) for unit in units]

    for i, a in enumerate(alphas):
        _judge_units(study, "Adam's average regret does not fall below 2/C", runs[i], end[i], end[i] > 0.95, f"α = {a:g}")
    for i, run in enumerate(runs):
        if run.method.name in REPAIRED and run.method.scheme == scheme and i < len(runs) - 3:
            shown = f"α = {run.method.alpha:g}"
            claim = f"{run.method.name}'s average regret goes to 0: below a tenth of 2/C at T"
            _judge_units(study, claim, run, end[i], end[i] < 0.1, shown)
    for i in (-2, -1):
        shown = f"constant α, α* = {runs[i].method.final_lr:g} (Adam: {end[-3]:.3g})"
        claim = "With a constant step AdaBound does better than Adam"
        _judge_units(study, claim, runs[i], end[i], end[i] < end[-3], shown)

    shown_runs = [i for i in range(len(runs) - 3) if runs[i].method.name != "Adam" or runs[i].method.alpha == alpha]
    study.data.update(
        t=at,
        units={runs[i].method.name: units[i] for i in shown_runs},
        x={runs[i].method.name: runs[i].x[:, 0] for i in shown_runs},
        adam_units_by_alpha={f"{a:g}": units[i] for i, a in enumerate(alphas)},
        constant_step=[dict(name=run.method.name, final_lr=run.method.final_lr, units=unit)
                       for run, unit in zip(runs[-3:], units[-3:], strict=True)],
    )  # fmt: skip
    return study


def _tuned(name: str, alpha: float, numbers: dict[str, Any]) -> Method:
    return make(name, **{**numbers, "alpha": AMSGRAD_FACTOR * alpha if name == "AMSGrad" else alpha})


def _judge_units(study: Study, claim: str, run: Run, units: float, holds: bool, shown: str) -> None:
    study.judge(claim, f"{units:.3g} × 2/C, ends at x = {run.last[0]:.3f}", holds, shown)


def theorem_3(
    *,
    alpha: float = 0.1,
    beta1: float = 0.0,
    beta2: float = 0.5,
    C: int = 20,  # noqa: N803
    steps: int = 10_000,
    seeds: int = 20,
    scheme: str = "sqrt",
    final_lr: float = 0.1,
    gamma: float | None = None,
    delta: float = 1.0,
    progress: Progress | None = None,
) -> Study:
    """With random losses Adam drifts to the worst point of all."""
    problems.require(seeds >= 1, "seeds", seeds, "at least 1")
    gamma = 1 - beta2 if gamma is None else gamma
    numbers: dict[str, Any] = dict(beta1=beta1, beta2=beta2, final_lr=final_lr, gamma=gamma, scheme=scheme)
    study = Study(
        "theorem-3",
        "Theorem 3: in expectation Adam walks the wrong way",
        dict(alpha=alpha, alpha_amsgrad=AMSGRAD_FACTOR * alpha, C=C, delta=delta, steps=steps, seeds=seeds, **numbers),
    )
    at = spread(steps)
    lines = [problems.theorem_3(C, steps, seed, delta) for seed in range(seeds)]
    names = ("Adam", *REPAIRED)
    runs = race([(line, _tuned(name, alpha, numbers)) for name in names for line in lines], steps, at, progress)
    last = {name: np.array([run.last[0] for run in runs if run.method.name == name]) for name in names}
    claim = "Adam does not converge to x* = −1: it ends beyond +0.9 in every run"
    study.judge(claim, f"lowest end {last['Adam'].min():+.3f} of {seeds} seeds", last["Adam"].min() > 0.9)
    for name in REPAIRED:
        claim = f"{name} converges to x* = −1: it ends below −0.9 in every run"
        study.judge(claim, f"highest end {last[name].max():+.3f} of {seeds} seeds", last[name].max() < -0.9)

    def constant(period: int, rate: float) -> None:
        # A constant step never stops shaking: α*·C is how far one rare gradient throws x.
        changed = {**numbers, "scheme": "constant", "final_lr": rate, "alpha": alpha}
        lanes = [(problems.theorem_3(period, steps, seed, delta), Method("AdaBound", **changed)) for seed in range(seeds)]
        means = [float(run.x[run.at > steps // 2, 0].mean()) for run in race(lanes, steps, spread(steps, 1000))]
        shown = f"constant α, C = {period}, α* = {rate:g}"
        claim = "With a constant step AdaBound stays below −0.8 on average"
        study.judge(claim, f"highest mean x over the second half {max(means):+.3f}", max(means) < -0.8, shown)

    for rate in (final_lr, 3e-3 * final_lr):
        constant(50, rate)
    study.data.update(t=at, x={n: [run.x[:, 0] for run in runs if run.method.name == n] for n in names}, last=last)
    return study
