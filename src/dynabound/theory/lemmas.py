"""The lemmas behind Theorems 4 and 5, and the steps of their proofs that do not hold, on random numbers."""

from __future__ import annotations

import numpy as np

from dynabound.theory import statements
from dynabound.theory.domains import Ball, Box, Floats
from dynabound.theory.framework import Trajectory
from dynabound.theory.methods import coefficients
from dynabound.theory.study import Demonstration

SETTINGS = "random numbers, seed 0"


def judge_lemma_1(demo: Demonstration, trials: int = 2000) -> None:
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
    demo.judge(claim, measured, largest <= 1 + 1e-9, SETTINGS, of=statements.LEMMA_1)
    claim = "The lemma's proof: ⟨z₁−u₁, Q(z₂−z₁)⟩ ≥ 0 and ⟨z₂−u₂, Q(z₁−z₂)⟩ ≥ 0"
    measured = f"broken for {broken} of {trials} pairs"
    demo.judge(claim, measured, broken == 0, SETTINGS, of=statements.PROOF_OF_LEMMA_1)


def momentum(gradients: Floats, beta1: Floats) -> Floats:
    """m_t = β₁ₜm_{t−1} + (1−β₁ₜ)g_t, one row per step."""
    m = np.zeros(gradients.shape[1])
    rows = np.empty_like(gradients)
    for i, (g, beta) in enumerate(zip(gradients, beta1, strict=True)):
        rows[i] = m = beta * m + (1 - beta) * g
    return rows


def judge_lemma_2(demo: Demonstration, trials: int = 200) -> None:
    """Σ‖m_t‖² ≤ Σ‖g_t‖² holds for a constant β₁, and not for every β₁ₜ ≤ β₁ that Theorem 4 admits."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for beta1 in rng.uniform(0, 1, trials):
        g = rng.normal(size=(50, 3)) * 10 ** rng.uniform(-2, 2, (50, 1))
        largest = max(largest, float((momentum(g, np.full(50, beta1)) ** 2).sum() / (g**2).sum()))
    measured = f"largest ratio of the sums {largest:.4f} in {trials} sequences"
    demo.judge("Lemma 2: Σ‖m_t‖² ≤ Σ‖g_t‖²", measured, largest <= 1, SETTINGS, of=statements.LEMMA_2)
    # β₁ = 0.9 except at t = 2, the step of the only gradient: it enters m in full and then decays slowly.
    g, beta1s = np.zeros((50, 1)), np.full(50, 0.9)
    g[1], beta1s[1] = 1.0, 0.0
    ratio = float((momentum(g, beta1s) ** 2).sum())
    claim = "Lemma 2 for β₁ₜ ≤ β₁, as the proof of Lemma 3 uses it"
    measured, shown = f"Σ‖m_t‖² = {ratio:.2f}·Σ‖g_t‖²", "β₁ₜ = 0.9 except β₁₂ = 0"
    demo.judge(claim, measured, ratio <= 1, shown, of=statements.LEMMA_2_IN_LEMMA_3)


def lemma_3_ratio(run: Trajectory) -> float:
    """The left-hand side of Lemma 3 over its right-hand side, for a run that recorded all its steps."""
    beta1, g2 = coefficients(run.method, run.steps).beta1, run.problem.gradient_bound
    gradients = np.array([run.problem.gradient(t, x) for t, x in zip(run.at.tolist(), run.x, strict=True)])
    m = momentum(gradients, beta1)
    before = np.vstack([np.zeros_like(m[:1]), m[:-1]])
    terms = (run.rate * (m**2 + beta1[:, None] * before**2)).sum(1) / (2 * (1 - beta1))
    largest = coefficients(run.method, 1).upper[0]
    right = (2 * np.sqrt(run.steps) - 1) * largest * g2**2 / (1 - run.method.beta1)
    return float(terms.sum() / right) if right > 0 else 0.0


def judge_lemma_3(demo: Demonstration, runs: list[Trajectory]) -> None:
    """Lemma 3 holds in all ``runs``, although its proof applies Jensen's inequality in the wrong direction."""
    largest = max(map(lemma_3_ratio, runs))
    measured = f"largest ratio {largest:.3g} in {len(runs)} runs"
    claim = "Lemma 3: the terms with ‖m_t‖² add up to at most (2√T−1)·R∞G₂²/(1−β₁)"
    demo.judge(claim, measured, largest <= 1, "random convex problems", of=statements.LEMMA_3)
    size = 10.0 ** np.random.default_rng(0).uniform(-1, 1, 100)
    root = np.arange(1.0, 101) ** 0.25
    left, right = float((size**2 / root**2).sum()), float((size / root).sum() ** 2 / 100)
    claim = "The lemma's proof: Σ‖m_t‖²/√t ≤ (Σ‖m_t‖·t^(−1/4))²/T, called Jensen's inequality"
    measured = f"{left:.3g} on the left, {right:.3g} on the right"
    demo.judge(claim, measured, left <= right, SETTINGS, of=statements.JENSEN)
