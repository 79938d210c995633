"""The problems against brute force: comparators, gradients, and the conditions on C."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynabound.theory import problems
from dynabound.theory.framework import Ball, Box
from dynabound.theory.problems import KINDS, Line, random_problem


def holds_2(c, b1, b2):
    """Theorem 2's three conditions, written out once more."""
    g = b1 / b2**0.5
    series = sum(g**i for i in range(c))
    return (
        (1 - b1) * b1 ** (c - 1) * c <= 1 - b1 ** (c - 1)
        and b2 ** ((c - 2) / 2) * c * c <= 1
        and 3 * (1 - b1) / (2 * (1 - b2) ** 0.5) * series + b1 ** (c / 2 - 1) / (1 - b1) < c / 3
    )


@pytest.mark.parametrize(("beta2", "period"), [(0.9, 50), (0.99, 730), (0.999, 9614)])
def test_theorem_1_period_is_the_smallest(beta2, period):
    assert problems.theorem_1_period(beta2) == period
    right = (1 - beta2) / (4 - beta2)
    assert 5 * beta2 ** (period - 2) <= right < 5 * beta2 ** (period - 3)


@pytest.mark.parametrize(
    ("betas", "period"),
    [((0.9, 0.999), 42622), ((0.9, 0.99), 3218), ((0.0, 0.9), 204), ((0.5, 0.9), 204), ((0.0, 0.5), 20)],
)
def test_theorem_2_period_is_the_smallest(betas, period):
    assert problems.theorem_2_period(*betas) == period
    if period < 1000:
        assert [c for c in range(2, period + 1, 2) if holds_2(c, *betas)] == [period]


def adams_expected_step(period, beta1, beta2, delta=1.0, draws=200_000):
    """E[−m/√v] of Adam under Theorem 3's random gradients, and its standard error, from ten plain simulations."""
    means = []
    for seed in range(10):
        rng = np.random.default_rng(100 + seed)
        gradients = np.where(rng.random(draws // 10) < (1 + delta) / (period + 1), float(period), -1.0)
        m = v = total = 0.0
        for g in gradients.tolist():
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            total -= m / math.sqrt(v)
        means.append(total / gradients.size)
    return np.mean(means), np.std(means) / 3


@pytest.mark.parametrize("betas", [(0.0, 0.5), (0.0, 0.9), (0.3, 0.5)])
def test_theorem_3_condition_is_sufficient(betas):
    """It is not necessary: Adam may drift away for a smaller C, too."""
    period = next(c for c in itertools.count(2) if problems.theorem_3_condition(c, *betas))
    for c in (period, 4 * period):
        assert problems.theorem_3_condition(c, *betas)
        mean, error = adams_expected_step(c, *betas)
        assert mean > 3 * error


def test_theorem_3_condition_refuses_a_small_c():
    mean, error = adams_expected_step(4, 0.0, 0.5)
    assert mean < -3 * error  # Adam's expected step leads to x*
    assert not problems.theorem_3_condition(4, 0.0, 0.5)


def test_line_comparator_is_the_minimum_over_a_fine_grid():
    rng = np.random.default_rng(0)
    plain = Line(Box(-1, 2), rng.normal(size=7))
    shelf = Line(Box(-2, 2), rng.normal(size=5), left=0.0, right=1.0, plateaus=(-0.3, 0.2))
    grid = np.linspace(-2, 2, 401)
    for problem in (plain, shelf):
        points = grid[(grid >= problem.domain.low) & (grid <= problem.domain.high)]
        losses = np.array([[problem.loss(t, np.array([x])) for x in points] for t in range(1, 31)])
        steps = np.arange(1, 31)
        np.testing.assert_allclose(problem.best(steps), np.cumsum(losses, 0).min(1), atol=1e-9)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.booleans())
def test_no_point_beats_the_comparator(kind, seed, ball):
    problem = random_problem(kind, seed, steps=30, dimension=3, domain=Ball(1.5) if ball else None)
    x = problem.comparator(30)
    np.testing.assert_allclose(problem.domain.project(x, np.ones(3)), x, atol=1e-12)

    def total(point):
        return sum(problem.loss(t, point) for t in range(1, 31))

    best = problem.best(np.array([30]))[0]
    assert total(x) == pytest.approx(best)
    rng = np.random.default_rng(seed)
    for spread in (1.0, 0.1, 1e-3):
        for _ in range(20):
            other = problem.domain.project(x + spread * rng.normal(size=3), np.ones(3))
            assert total(other) >= best - 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_derivatives_and_within_their_bound(kind):
    problem = random_problem(kind, seed=1, steps=20, dimension=4)
    rng = np.random.default_rng(2)
    for t in range(1, 21):
        x = rng.uniform(-1, 1, 4)
        h = 1e-6 * np.eye(4)
        numeric = [(problem.loss(t, x + e) - problem.loss(t, x - e)) / 2e-6 for e in h]
        np.testing.assert_allclose(problem.gradient(t, x), numeric, atol=1e-6)
        assert np.linalg.norm(problem.gradient(t, x)) <= problem.gradient_bound


@pytest.mark.parametrize("domain", [Box(-1, 2), Ball(1.5)])
def test_reach_is_attained_and_never_exceeded(domain):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(50, 3))
    points = np.array([domain.project(y, np.ones(3)) for y in 5 * rng.normal(size=(2000, 3))])
    seen = np.abs(rows @ points.T).max(1)
    assert (seen <= domain.reach(rows) + 1e-12).all()
    assert (seen >= 0.8 * domain.reach(rows)).all()


def test_theorem_3_draws_with_the_stated_probability():
    slopes = problems.theorem_3(20, 200_000, seed=0, delta=1.0).slopes
    assert set(slopes) == {20.0, -1.0}
    assert slopes.mean() == pytest.approx(1.0, abs=0.1)  # E f_t = δ·x
    np.testing.assert_array_equal(slopes, problems.theorem_3(20, 200_000, seed=0).slopes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problems.theorem_1(2), "C=2: must be an integer >= 3 and <= 10,000,000"),
        (lambda: problems.theorem_2(21), "C=21: must be an even integer >= 2 and"),
        (lambda: problems.theorem_2_period(0.8, 0.5), r"beta1=0.8: must be in \[0, sqrt\(beta2\)\)"),
        (lambda: problems.theorem_2(10**9), "C=1000000000: must be an even integer >= 2 and <= 10,000,000"),
        (lambda: problems.savarese(10, 0, period=0), "C=0: must be an integer >= 2"),
        (lambda: problems.savarese(10, 0, beta2=1.0), r"beta2=1.0: must be in \[0, 1\)"),
        (lambda: problems.theorem_1_period(0.999999999999), "beta2=0.999999999999: the theorem allows no C up to"),
        (lambda: problems.theorem_2_period(math.nextafter(0.5**0.5, 0), 0.5), "allows no C up to 10,000,000"),
        (lambda: problems.theorem_3(20, 0, 0), "steps=0: must be at least 1"),
        (lambda: problems.theorem_3(20, 10, 0, delta=20.0), r"delta=20.0: must be in \(0, C\)"),
        (lambda: problems.smallest_counterexample(0), "steps=0: must be at least 1"),
        (lambda: random_problem("cubic", 0, 10), "kind='cubic': must be one of linear"),
        (lambda: random_problem("linear", 0, 0), "steps=0"),
    ],
)
def test_bad_input_says_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
