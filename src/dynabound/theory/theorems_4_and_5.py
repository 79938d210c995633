"""Theorems 4 and 5 and their lemmas, on random problems and on counterexamples; the guarantee that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dynabound import bounds as bound_functions
from dynabound.theory import problems
from dynabound.theory.demonstration import Demonstration, Statement, check_size, log_spaced
from dynabound.theory.fast import ProgressCallback, simulate
from dynabound.theory.framework import (
    Ball,
    Box,
    Floats,
    Method,
    Trajectory,
    bound_arrays,
    check_betas,
    coefficients,
    play,
)
from dynabound.theory.regret import corollary, decreases, regret, that_hold, theorem_4, theorem_b

# What the paper states.
THEOREM_4 = Statement("Theorem 4", 304, "theorem")
COROLLARY = Statement("Corollary 4.1", 311, "theorem")
THEOREM_5 = Statement("Theorem 5", 1052, "theorem")
LEMMA_1 = Statement("Lemma 1", 670, "theorem")
LEMMA_2 = Statement("Lemma 2", 701, "theorem")
LEMMA_3 = Statement("Lemma 3", 961, "theorem")
ON_RANDOM_PROBLEMS = {
    "AdaBound": Statement("Theorem 4 on random problems", 304),
    "AMSBound": Statement("Theorem 5 on random problems", 1052),
}
COROLLARY_ON_RANDOM_PROBLEMS = Statement("Corollary 4.1 on random problems", 311)
INVERSE_RATES_GROW = Statement("Proof of Theorem 4: 1/η_t never decreases", 1008)
SQRT_T = Statement("Theorem 4's bound is O(√T)", 316)
SQRT_T_FOR_ANY_BETA1 = Statement("Theorem 4's bound is O(√T) for every β₁ₜ", 1019)
SQRT_T_HARMONIC = Statement("Theorem 4's bound is O(√T) for β₁/t", 317)
PROOF_OF_LEMMA_1 = Statement("Proof of Lemma 1: first inequalities", 676)
JENSEN = Statement("Proof of Lemma 3: Jensen's inequality", 976)
LEMMA_2_IN_LEMMA_3 = Statement("Proof of Lemma 3: Lemma 2 for β₁ₜ", 984)

BOUNDED = ("AdaBound", "AMSBound")
THEOREMS = dict(zip(BOUNDED, (THEOREM_4, THEOREM_5), strict=True))
SAVARESE = "Savarese 2019"
RANDOM = "random numbers, seed 0"
MOST_RANDOM_STEPS = 100_000
"""The most steps of all seeds together; each is made by up to 216 methods, at some 20,000 steps a second."""
MOST_RECORDED_STEPS = 10_000_000
MOMENTA: tuple[dict[str, Any], ...] = (
    dict(beta1=0.0),
    dict(beta1=0.9),
    dict(beta1=0.9, beta1_decay=0.99),
    dict(beta1=0.9, beta1_decay="harmonic"),
)


@dataclass(frozen=True)
class _Trial:
    """One random run: R_T over each right-hand side, and the share of (t, i) where 1/η decreases."""

    method: Method
    theorem: float
    corollary: float | None
    that_hold: dict[str, float]
    share: float


def _trial(problem: problems.Stream, best: float, method: Method, steps: int) -> _Trial:
    run = play(problem, method, steps)
    measured = float(run.loss[-1]) - best
    decaying = not isinstance(method.beta1_decay, str) and method.beta1_decay < 1
    return _Trial(
        method,
        measured / float(theorem_4(run)[-1]),
        measured / float(corollary(run)[-1]) if decaying else None,
        {name: measured / max(float(right[-1]), 1e-300) for name, right in that_hold(run).items()},
        float(decreases(run).mean()) if steps > 1 else 0.0,
    )


def regret_bounds(
    *,
    alpha: float | None = None,
    beta2: float | None = None,
    gamma: float | None = None,
    final_lr: float = 0.1,
    steps: int = 300,
    seeds: int = 4,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """Theorem 4's inequality against measured regret, and the step of its proof that fails."""
    check_size(steps, seeds, MOST_RANDOM_STEPS)
    check_betas(0.0, 0.0 if beta2 is None else beta2)
    alphas = (1e-3, 1e-2, 1e-1) if alpha is None else (alpha,)
    squares = (0.9, 0.99, 0.999) if beta2 is None else (beta2,)
    gammas = (0.001, 0.01, 0.1) if gamma is None else (gamma,)
    demo = Demonstration(
        "regret",
        "Theorems 4 and 5: measured regret against the promised bound, and the hole in the proof",
        dict(alpha=alphas, beta2=squares, gamma=gammas, final_lr=final_lr, steps=steps, seeds=seeds),
    )
    trials: list[_Trial] = []
    for i, (kind, seed) in enumerate(product(range(len(problems.KINDS)), range(seeds))):
        problem = problems.random_problem(problems.KINDS[kind], seed, steps)
        best = float(problem.best(np.array([steps]))[0])
        for name, a, b, g in product(BOUNDED, alphas, squares, gammas):
            # Every momentum schedule is used, however few seeds there are.
            momentum = MOMENTA[(kind + seed) % len(MOMENTA)]
            numbers = dict(alpha=a, beta2=b, gamma=g, final_lr=final_lr, **momentum)
            trials.append(_trial(problem, best, Method(name, **_with_admissible_beta1(numbers)), steps))
        if progress is not None:
            progress(i + 1, seeds * len(problems.KINDS))
    _judge_inequalities(demo, trials)
    _judge_proof(demo, trials, gammas)
    _judge_m(demo, gammas, final_lr)
    _judge_growth(demo, final_lr)
    _judge_lemmas(demo, min(steps, 300), final_lr)
    demo.data.update(
        ratio_theorem=[trial.theorem for trial in trials],
        ratio_theorem_a=[trial.that_hold["Theorem A"] for trial in trials],
        curves=_curves(steps, gammas[0], final_lr),
        crossing=crossing(BOUNDED[0], log_spaced(1000, 30)),
        funnel=_funnel(min(steps, 300), gammas[len(gammas) // 2], final_lr),
    )
    return demo


def _with_admissible_beta1(numbers: dict[str, Any]) -> dict[str, Any]:
    """``numbers`` with β₁ lowered where it is not below √β₂."""
    return {**numbers, "beta1": min(numbers["beta1"], 0.9 * numbers["beta2"] ** 0.5)}


def _judge_inequalities(demo: Demonstration, trials: list[_Trial]) -> None:
    def judge(claim: str, ratios: Sequence[float], **whose: Any) -> None:
        broken = sum(ratio > 1 for ratio in ratios)
        measured = f"broken in {broken} of {len(ratios)} runs, largest R_T/right-hand side {max(ratios):.3g}"
        demo.judge(claim, measured, broken == 0, "random convex problems", **whose)

    for name, statement in ON_RANDOM_PROBLEMS.items():
        ratios = [trial.theorem for trial in trials if trial.method.name == name]
        judge(f"{THEOREMS[name].name}'s inequality ({name})", ratios, of=statement)
    cases = [trial.corollary for trial in trials if trial.corollary is not None]
    judge("The corollary's inequality (β₁λ^(t−1))", cases, of=COROLLARY_ON_RANDOM_PROBLEMS)
    for name in sorted({name for trial in trials for name in trial.that_hold}):
        ratios = [trial.that_hold[name] for trial in trials if name in trial.that_hold]
        judge(f"{name} holds", ratios, source=SAVARESE if name == "Savarese's bound" else "ours")


def _judge_proof(demo: Demonstration, trials: list[_Trial], gammas: Sequence[float]) -> None:
    shares = {}
    for gamma in gammas:
        found = {name: [trial.share for trial in trials if (trial.method.name, trial.method.gamma) == (name, gamma)]
                 for name in BOUNDED}  # fmt: skip
        shares[f"{gamma:g}"] = {name: float(np.mean(values)) for name, values in found.items()}
        parts = [f"{np.mean(x):.1%} ({name}; single runs {min(x):.0%} to {max(x):.0%})" for name, x in found.items()]
        measured = f"decreases at {', '.join(parts)} of all (t, i)"
        never, claim = not any(map(any, found.values())), "1/η_t never decreases (the proof's last step)"
        demo.judge(claim, measured, never, f"γ = {gamma:g}", of=INVERSE_RATES_GROW)
    demo.data["share"] = shares
    threshold = demo.data["gamma_threshold"] = _threshold()
    measured = f"smallest such γ, by bisection: {threshold:.4f}"
    demo.judge("1/η_t cannot decrease, whatever the gradients, if γ ≥ 4", measured, _worst_step(4.0) >= 0)


def _worst_step(gamma: float, steps: int = 10_000) -> float:
    """The smallest √t/u(t) − √(t−1)/l(t−1): from the widest rate at t to the narrowest just before."""
    lower, upper = bound_arrays(Method("AdaBound", gamma=gamma, final_lr=1.0), steps)
    root = np.sqrt(np.arange(1.0, steps + 1))
    return float((root[1:] / upper[1:] - root[:-1] / lower[:-1]).min())


def _threshold() -> float:
    low, high = 1.0, 16.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _worst_step(middle) >= 0 else (middle, high)
    return high


def _judge_m(demo: Demonstration, gammas: Sequence[float], final_lr: float) -> None:
    for gamma in gammas:
        stated = (1 + 2 / gamma) / final_lr
        t = np.logspace(0, 8, 2000).round()
        with np.errstate(divide="ignore"):  # the upper bound at t = 0 is infinite
            lower, upper = (bound_functions.evaluate("harmonic", gamma, step)[i] for i, step in enumerate((t, t - 1)))
        largest = float((t / lower - (t - 1) / upper).max()) / final_lr
        measured = f"largest t/η_l(t) − (t−1)/η_u(t−1) up to t = 1e8: {largest:.6g}; (1 + 2/γ)/α* = {stated:.6g}"
        sharp = 0.999 * stated < largest < stated * (1 + 1e-6)
        demo.judge("The smallest M is (1 + 2/γ)/α*", measured, sharp, f"γ = {gamma:g}")


def _judge_growth(demo: Demonstration, final_lr: float) -> None:
    """Which power of T Theorem 4's own right-hand side grows like, for each momentum schedule."""
    problem = problems.random_problem("linear", 0, 4000)
    statements = (
        ("β₁ = 0", SQRT_T),
        ("β₁ₜ = β₁", SQRT_T_FOR_ANY_BETA1),
        ("β₁ₜ = β₁·0.99^(t−1)", SQRT_T),
        ("β₁ₜ = β₁/t", SQRT_T_HARMONIC),
    )
    for momentum, (shown, statement) in zip(MOMENTA, statements, strict=True):
        run = play(problem, Method("AdaBound", beta2=0.99, gamma=0.1, final_lr=final_lr, **momentum), 4000)
        right = theorem_4(run)
        power = float(np.log(right[3999] / right[999]) / np.log(4))
        measured = f"grows like T^{power:.2f} from T = 1,000 to 4,000"
        demo.judge("Theorem 4's right-hand side is O(√T)", measured, power < 0.75, shown, of=statement)


def _judge_lemmas(demo: Demonstration, steps: int, final_lr: float) -> None:
    streams = [problems.random_problem(kind, 0, steps) for kind in problems.KINDS]
    runs = [
        play(stream, Method(name, beta2=0.99, gamma=0.1, final_lr=final_lr, **momentum), steps)
        for stream, name, momentum in product(streams, BOUNDED, MOMENTA)
    ]
    _judge_lemma_1(demo)
    _judge_lemma_2(demo)
    _judge_lemma_3(demo, runs)


def _curves(steps: int, gamma: float, final_lr: float) -> dict[str, Any]:
    """R_T and both right-hand sides against T, on one random problem."""
    method = Method("AdaBound", alpha=0.01, beta2=0.9, gamma=gamma, final_lr=final_lr)
    run = play(problems.random_problem("least squares", 1, steps), method, steps)
    at = log_spaced(steps, 40)
    return dict(t=at, regret=regret(run, at), theorem=theorem_4(run)[at - 1], corrected=theorem_b(run)[at - 1])


def _funnel(steps: int, gamma: float, final_lr: float) -> dict[str, Any]:
    """√t·η_t between its bounds on Theorem 3's problem, whose rare gradients lower it, and where 1/η_t decreased."""
    method = Method("AdaBound", alpha=3 * final_lr, beta2=0.9, gamma=gamma, final_lr=final_lr)
    run = simulate([(problems.theorem_3(10, steps, seed=1), method)], steps)[0]
    lower, upper = bound_arrays(method, steps)
    fell = 1 + np.flatnonzero(decreases(run)[:, 0])
    return dict(t=run.at, rate=run.rate[:, 0] * np.sqrt(run.at), lower=lower, upper=upper, fell=run.at[fell])


def crossing(name: str, horizons: Any, alpha: float = 1e-6, beta2: float = 0.9) -> dict[str, list[float]]:
    """The smallest counterexample at every horizon T: its regret and both right-hand sides."""
    found: dict[str, list[float]] = dict(t=[], regret=[], theorem=[], corrected=[])
    for horizon in horizons:
        example = problems.smallest_counterexample(int(horizon), name, alpha, beta2)
        run = simulate([example], int(horizon))[0]
        values = int(horizon), regret(run)[-1], theorem_4(run)[-1], theorem_b(run)[-1]
        for key, value in zip(found, values, strict=True):
            found[key].append(float(value))
    return found


def counterexample(
    *,
    alpha: float | None = None,
    beta2: float | None = None,
    period: int = 10,
    steps: int = 10_000,
    seeds: int = 20,
    progress: ProgressCallback | None = None,
) -> Demonstration:
    """Two problems that meet every assumption of Theorem 4 and break its inequality."""
    check_size(steps, seeds, MOST_RECORDED_STEPS)
    check_betas(0.0, 0.0 if beta2 is None else beta2)
    problems.savarese(1, 0, period=period)  # checks C
    small: dict[str, Any] = dict(alpha=1e-6 if alpha is None else alpha, beta2=0.9 if beta2 is None else beta2)
    other = dict(alpha=0.266 if alpha is None else alpha, beta2=0.5 if beta2 is None else beta2)
    demo = Demonstration(
        "counterexample",
        "Theorems 4 and 5 against two counterexamples",
        dict(smallest=small, savarese=dict(period=period, steps=steps, seeds=seeds, **other)),
    )
    met = all(_meets(problems.smallest_counterexample(horizon)[1], horizon) for horizon in (4, 100))
    measured = "monotone, positive, equal limits, β₁ = 0" if met else "not met"
    demo.judge("The smallest counterexample meets Theorem 4's assumptions", measured, met)
    for name, theorem in THEOREMS.items():
        found = demo.data[f"smallest {name}"] = crossing(name, [*range(1, 31), 100], **small)
        for t, r, right, sure in zip(*found.values(), strict=True):
            if t in (4, 100):
                shown, measured = f"smallest, T = {t:g}, {name}", f"R_T = {r:.4f}, right-hand side {right:g}"
                demo.judge(f"{theorem.name}'s inequality", measured, r <= right, shown, of=theorem)
                measured = f"R_T = {r:.4f}, at most {sure:.3g}"
                demo.judge("Theorem B holds", measured, r <= sure, shown)
    _judge_corollary(demo, small)
    run = simulate([problems.smallest_counterexample(100, **small)], 100)[0]
    demo.data["path"] = dict(t=run.at, x=run.x[:, 0], rate=run.rate[:, 0] * np.sqrt(run.at))
    for name in BOUNDED:
        _judge_savarese(demo, name, progress)
    return demo


def _judge_corollary(demo: Demonstration, small: dict[str, Any]) -> None:
    """The smallest counterexample also breaks the corollary: with β₁ = 0, and with a β₁ > 0 that decays."""
    for beta1, decay in ((0.0, 0.5), (1e-9, 0.5)):
        run = simulate([problems.smallest_counterexample(4, beta1=beta1, beta1_decay=decay, **small)], 4)[0]
        r, right = float(regret(run)[-1]), float(corollary(run)[-1])
        measured = f"R_T = {r:.4f}, right-hand side {right:.4g}"
        shown = f"smallest, T = 4, β₁ = {beta1:g}, λ = {decay:g}"
        demo.judge("The corollary's inequality", measured, r <= right, shown, of=COROLLARY)


def _meets(method: Method, horizon: int) -> bool:
    found = bound_functions.certificate(method.bounds, method.gamma, method.final_lr, 2 * horizon)
    return found.meets_theorem_4


def _judge_savarese(demo: Demonstration, name: str, progress: ProgressCallback | None) -> None:
    numbers = dict(demo.settings["savarese"])
    steps, seeds = numbers.pop("steps"), numbers.pop("seeds")
    examples = [problems.savarese(steps, seed, name, **numbers) for seed in range(seeds)]
    met = _meets(examples[0][1], steps)
    shown = f"Savarese, T = {steps:,}, {seeds} seeds, {name}"
    demo.judge("Savarese's example meets Theorem 4's assumptions", "yes" if met else "no", met, shown, source=SAVARESE)
    runs = simulate(examples, steps, progress=progress)
    at = log_spaced(steps, 200)
    ratios = np.array([regret(run, at) / theorem_4(run)[at - 1] for run in runs])
    sure = max(float(regret(run)[-1] / right[-1]) for run in runs for right in that_hold(run).values())
    last = ratios[:, -1]
    measured = f"R_T/right-hand side {last.min():.3g} to {last.max():.3g}, mean {last.mean():.3g}"
    demo.judge(f"{THEOREMS[name].name}'s inequality", measured, last.max() <= 1, shown, of=THEOREMS[name])
    measured = f"R_T/right-hand side at most {sure:.3g}"
    demo.judge("All bounds hold that are said to", measured, sure <= 1, shown)
    demo.data[f"savarese {name}"] = dict(t=at, ratios=ratios)


def _judge_lemma_1(demo: Demonstration, trials: int = 2000) -> None:
    """Projections in the norm of diag(1/η) do not expand distances; the proof's first inequalities do not hold."""
    rng = np.random.default_rng(0)
    largest, broken = 0.0, 0
    for domain in (Box(-1, 1), Ball(1.0)):
        for _ in range(trials // 2):
            rate = 10 ** rng.uniform(-3, 3, 3)
            z1, z2 = 2 * rng.normal(size=(2, 3))
            u1, u2 = domain.project(z1, rate), domain.project(z2, rate)
            distance = float(((z1 - z2) ** 2 / rate).sum())
            largest = max(largest, float(((u1 - u2) ** 2 / rate).sum()) / distance)
            broken += bool((z1 - u1) @ ((z2 - z1) / rate) < 0 or (z2 - u2) @ ((z1 - z2) / rate) < 0)
    claim = "Lemma 1: ‖Q^(1/2)(u₁−u₂)‖ ≤ ‖Q^(1/2)(z₁−z₂)‖ for projections u of z"
    measured = f"largest ratio {largest**0.5:.4f} in {trials} pairs, on a box and a ball"
    demo.judge(claim, measured, largest <= 1 + 1e-9, RANDOM, of=LEMMA_1)
    claim = "The lemma's proof: ⟨z₁−u₁, Q(z₂−z₁)⟩ ≥ 0 and ⟨z₂−u₂, Q(z₁−z₂)⟩ ≥ 0"
    measured = f"broken for {broken} of {trials} pairs"
    demo.judge(claim, measured, broken == 0, RANDOM, of=PROOF_OF_LEMMA_1)


def _momentum(gradients: Floats, beta1: Floats) -> Floats:
    """m_t = β₁ₜm_{t−1} + (1−β₁ₜ)g_t, one row per step."""
    m = np.zeros(gradients.shape[1])
    rows = np.empty_like(gradients)
    for i, (g, beta) in enumerate(zip(gradients, beta1, strict=True)):
        rows[i] = m = beta * m + (1 - beta) * g
    return rows


def _judge_lemma_2(demo: Demonstration, trials: int = 200) -> None:
    """Σ‖m_t‖² ≤ Σ‖g_t‖² holds for a constant β₁, and not for every β₁ₜ ≤ β₁ that Theorem 4 admits."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for beta1 in rng.uniform(0, 1, trials):
        g = rng.normal(size=(50, 3)) * 10 ** rng.uniform(-2, 2, (50, 1))
        largest = max(largest, float((_momentum(g, np.full(50, beta1)) ** 2).sum() / (g**2).sum()))
    measured = f"largest ratio of the sums {largest:.4f} in {trials} sequences"
    demo.judge("Lemma 2: Σ‖m_t‖² ≤ Σ‖g_t‖²", measured, largest <= 1, RANDOM, of=LEMMA_2)
    # β₁ = 0.9 except at t = 2, the step of the only gradient: it enters m in full and then decays slowly.
    g, beta1s = np.zeros((50, 1)), np.full(50, 0.9)
    g[1], beta1s[1] = 1.0, 0.0
    ratio = float((_momentum(g, beta1s) ** 2).sum())
    claim = "Lemma 2 for β₁ₜ ≤ β₁, as the proof of Lemma 3 uses it"
    measured, shown = f"Σ‖m_t‖² = {ratio:.2f}·Σ‖g_t‖²", "β₁ₜ = 0.9 except β₁₂ = 0"
    demo.judge(claim, measured, ratio <= 1, shown, of=LEMMA_2_IN_LEMMA_3)


def _lemma_3_ratio(run: Trajectory) -> float:
    """The left-hand side of Lemma 3 over its right-hand side, for a run that recorded all its steps."""
    beta1, g2 = coefficients(run.method, run.steps).beta1, run.problem.gradient_bound
    gradients = np.array([run.problem.gradient(t, x) for t, x in zip(run.at.tolist(), run.x, strict=True)])
    m = _momentum(gradients, beta1)
    before = np.vstack([np.zeros_like(m[:1]), m[:-1]])
    terms = (run.rate * (m**2 + beta1[:, None] * before**2)).sum(1) / (2 * (1 - beta1))
    largest = coefficients(run.method, 1).upper[0]
    right = (2 * np.sqrt(run.steps) - 1) * largest * g2**2 / (1 - run.method.beta1)
    return float(terms.sum() / right) if right > 0 else 0.0


def _judge_lemma_3(demo: Demonstration, runs: list[Trajectory]) -> None:
    """Lemma 3 holds in all ``runs``, although its proof applies Jensen's inequality in the wrong direction."""
    largest = max(map(_lemma_3_ratio, runs))
    measured = f"largest ratio {largest:.3g} in {len(runs)} runs"
    claim = "Lemma 3: the terms with ‖m_t‖² add up to at most (2√T−1)·R∞G₂²/(1−β₁)"
    demo.judge(claim, measured, largest <= 1, "random convex problems", of=LEMMA_3)
    size = 10.0 ** np.random.default_rng(0).uniform(-1, 1, 100)
    root = np.arange(1.0, 101) ** 0.25
    left, right = float((size**2 / root**2).sum()), float((size / root).sum() ** 2 / 100)
    claim = "The lemma's proof: Σ‖m_t‖²/√t ≤ (Σ‖m_t‖·t^(−1/4))²/T, called Jensen's inequality"
    measured = f"{left:.3g} on the left, {right:.3g} on the right"
    demo.judge(claim, measured, left <= right, RANDOM, of=JENSEN)
