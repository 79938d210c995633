"""The right-hand sides against the formulas written out as loops, the counterexamples, and the guarantee that holds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynabound import bounds
from dynabound.theory import problems
from dynabound.theory.fast import simulate
from dynabound.theory.framework import Ball, Box, Method, play
from dynabound.theory.problems import Line
from dynabound.theory.regret import (
    corollary,
    correction,
    decreases,
    regret,
    rho_bound,
    savarese_bound,
    theorem_4,
    theorem_a,
    theorem_b,
    theorem_c,
)


def beta1_at(method, t):
    return method.beta1 / t if method.beta1_decay == "harmonic" else method.beta1 * method.beta1_decay ** (t - 1)


@pytest.mark.parametrize("decay", [1.0, 0.95, "harmonic"])
@pytest.mark.parametrize("name", ["AdaBound", "AMSBound"])
def test_right_hand_sides_are_the_formulas(name, decay):
    steps, gamma, final_lr = 40, 0.1, 0.2
    method = Method(name, beta1=0.8, beta2=0.9, beta1_decay=decay, gamma=gamma, final_lr=final_lr)
    problem = problems.random_problem("logistic", 5, steps, dimension=3, domain=Ball(2.0))
    run = play(problem, method, steps)
    diameter, g2 = 4.0, problem.gradient_bound
    smallest, largest = final_lr * (1 - 1 / (gamma + 1)), final_lr * (1 + 1 / gamma)
    m = (1 + 2 / gamma) / final_lr
    weight, noise = diameter**2 / (2 * 0.2), largest * g2**2 / 0.2
    for t in (1, 7, steps):
        clipped = [run.rate[t - 1, i] * math.sqrt(t) for i in range(3)]
        momentum = sum(beta1_at(method, s) / run.rate[s - 1, i] for s in range(1, t + 1) for i in range(3))
        first = math.sqrt(t) * sum(1 / rate for rate in clipped)
        tail = (2 * math.sqrt(t) - 1) * noise
        assert theorem_4(run)[t - 1] == pytest.approx(weight * (first + momentum) + tail)
        starting = sum(1 / run.rate[0, i] for i in range(3))
        growth = 2 * 3 * m * (math.sqrt(t) - 1)
        assert savarese_bound(run)[t - 1] == pytest.approx(weight * (growth + starting + momentum) + tail)
        if decay == 0.95:
            middle = 0.8 * 3 / ((1 - 0.95) ** 2 * smallest)
            assert corollary(run)[t - 1] == pytest.approx(weight * (first + middle) + tail)
            assert corollary(run)[t - 1] >= theorem_4(run)[t - 1]


@pytest.mark.parametrize("name", ["AdaBound", "AMSBound"])
@pytest.mark.parametrize(("steps", "measured", "right"), [(4, 8, 7), (100, 200, 39)])
def test_the_smallest_counterexample(name, steps, measured, right):
    example = problems.smallest_counterexample(steps, name)
    run = play(*example, steps)
    assert regret(run)[-1] == pytest.approx(measured, abs=0.01)
    assert theorem_4(run)[-1] == pytest.approx(right)
    assert corollary(run)[-1] == pytest.approx(right)
    momentum = problems.smallest_counterexample(steps, name, beta1=1e-9, beta1_decay=0.5)
    run = play(*momentum, steps)
    assert corollary(run)[-1] == pytest.approx(right + 1e-9 * 2**2 / (2 * (1 - 0.5) ** 2 * 1e-6))  # L∞ = 1e-6
    assert regret(run)[-1] > corollary(run)[-1]
    assert regret(run)[-1] <= savarese_bound(run)[-1]
    assert bounds.certificate(example[1].bounds, final_lr=1.0, steps=2 * steps).meets_theorem_4


def test_savarese():
    ratios = []
    for seed in range(50):
        example = problems.savarese(10_000, seed)
        run = simulate([example], 10_000)[0]
        ratios.append(regret(run, np.array([10_000]))[0] / theorem_4(run)[-1])
    assert min(ratios) > 1.3
    assert np.mean(ratios) == pytest.approx(2.0, abs=0.1)
    assert bounds.certificate(example[1].bounds, final_lr=0.0266, steps=20_000).meets_theorem_4


methods = st.builds(
    Method,
    st.sampled_from(["AdaBound", "AMSBound"]),
    alpha=st.floats(-6, 2).map(lambda power: 10**power),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    beta2=st.sampled_from([0.9, 0.99, 0.999]),
    beta1_decay=st.sampled_from([1.0, 0.9, "harmonic"]),
    gamma=st.floats(-3, 1).map(lambda power: 10**power),
    final_lr=st.floats(-3, 1).map(lambda power: 10**power),
    bounds=st.sampled_from(["harmonic", "exponential", "linear", ("constant", 1.0, 1.0)]),
)


def right_hand_sides(run):
    """All that hold for the run, if the upper bound never rises."""
    found = [savarese_bound(run), theorem_b(run), theorem_4(run) + correction(run)]
    found += [theorem_a(run)] if isinstance(run.problem.domain, Box) else []
    return np.array(found + ([theorem_c(run)] if run.method.name == "AMSBound" else []))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(methods, st.sampled_from(problems.KINDS), st.integers(0, 10**6), st.booleans())
def test_what_holds_is_never_broken(method, kind, seed, ball):
    problem = problems.random_problem(kind, seed, 40, dimension=2, domain=Ball(1.0) if ball else None)
    run = play(problem, method, 40)
    at = np.array([1, 2, 10, 40])
    assert (regret(run, at) <= right_hand_sides(run)[:, at - 1] * (1 + 1e-9)).all()
    if not ball:
        found = bounds.certificate(method.bounds, method.gamma, method.final_lr)
        for t, measured in zip(at.tolist(), regret(run, at), strict=True):
            sizes = dict(diameter=2.0, gradient_bound=problem.gradient_bound, dimension=2, beta1=method.beta1)
            promised = found.regret(t, **sizes, amsbound=method.name == "AMSBound")
            assert measured <= promised.value * (1 + 1e-9), promised.name


@settings(derandomize=True, deadline=None, max_examples=150)
@given(methods, st.lists(st.floats(-100, 100), min_size=1, max_size=60), st.floats(-1, 1))
def test_not_even_by_an_adversary_on_a_line(method, slopes, start):
    run = simulate([(Line(Box(-1, 1), np.array(slopes), x1=start), method)], len(slopes))[0]
    assert (regret(run) <= right_hand_sides(run) * (1 + 1e-9) + 1e-12).all()


@settings(derandomize=True, deadline=None)
@given(
    st.floats(4, 50),
    st.floats(-6, 2),
    st.lists(st.sampled_from([-100.0, -1.0, 0.0, 0.01, 1.0, 100.0]), min_size=2, max_size=60),
)
def test_from_gamma_4_on_no_gradients_make_the_inverse_rate_decrease(gamma, power, slopes):
    for name in ("AdaBound", "AMSBound"):
        method = Method(name, alpha=10**power, gamma=gamma)
        run = simulate([(Line(Box(-1, 1), np.array(slopes)), method)], len(slopes))[0]
        assert not decreases(run).any()


def test_below_gamma_4_some_gradients_do():
    # At t = 10,000 the rate goes from the lower bound to the upper: a large gradient, then its decay to nothing.
    method = Method("AdaBound", alpha=0.1, beta2=0.0, gamma=3.9)
    slopes = np.where(np.arange(10_000) % 2, 1e-3, 1e3)
    run = simulate([(Line(Box(-1, 1), slopes), method)], 10_000)[0]
    assert decreases(run)[-100:].any()


def transcribed(t, rho, limit, diameter, g, d, beta1, sqrt_decay):
    """Theorem A as docs/theory.md states it, with all its sums."""
    s = [limit / math.sqrt(i) if sqrt_decay else limit for i in range(1, t + 1)]
    b = [beta / (1 - beta) for beta in beta1]
    p = math.sqrt(d) * diameter * g
    tails = [
        p * t0 + d * diameter**2 / (2 * s[-1]) + 2 * b[t0] * p
        + sum(p * rho[i] + g * g * s[i] * (1 + rho[i]) * ((1 + rho[i]) / 2 + b[i]) for i in range(t0, t))
        for t0 in range(t)
    ]  # fmt: skip
    return min([p * t, *tails])


def adversary(rng, x, best):
    """Random gradients; constant ones; ones that pull away from ``best`` rarely and towards it gently; saws."""
    towards = np.sign(x - best + 1e-12)
    kind, random = rng.integers(4), rng.random(x.shape)
    return (rng.normal(size=x.shape), -np.sign(best), np.where(random < 0.2, 1.0, -0.2) * towards, towards)[kind]


def random_game(rng, n=100, steps=40, amsbound=False):
    """``n`` linear games at once: their regrets and rates, shape (n, steps, …), and the arguments of Theorem A.

    The rates are AMSBound's between bounds that close, or any within 1 ± ρ_t times α*/√t or α*: fast when a step leads
    away from the best point, and slow when it leads back.
    """
    d, diameter, g2 = int(rng.integers(1, 4)), *10 ** rng.uniform(-1, 1, 2)
    limit = math.sqrt(d) * diameter / g2 * 10 ** rng.uniform(-1, 0.5)  # near the best one: the bound is not trivial
    t = np.arange(1.0, steps + 1)
    rho = 10 ** rng.uniform(-3, 0) * (t ** -rng.uniform(0, 1.5) if rng.random() < 0.7 else rng.random(steps))
    beta1 = rng.choice([0.0, 0.5, 0.9, 0.99]) * np.minimum.accumulate(rng.random(steps) ** rng.choice([0.0, 0.05, 1.0]))
    sqrt_decay = amsbound or bool(rng.integers(2))
    rho = np.minimum.accumulate(rho) if amsbound else rho
    beta2, alpha = rng.choice([0.0, 0.5, 0.9, 0.99]), g2 * 10 ** rng.uniform(-1, 1)
    best = diameter / 2 * rng.choice([-1.0, 1.0], (n, d))
    x = rng.choice([-1.0, 0.0, 1.0], (n, d)) * diameter / 2
    m = v = top = total = np.zeros((n, d))
    paid, regrets, rates = np.zeros(n), np.empty((n, steps)), np.empty((n, steps, d))
    for i in range(steps):
        g = adversary(rng, x, best)
        g = g * g2 / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1)
        m = beta1[i] * m + (1 - beta1[i]) * g
        paid, total = paid + (g * x).sum(1), total + g
        regrets[:, i] = paid + diameter / 2 * np.abs(total).sum(1)
        factor = np.where(m * (best - x) > 0, 1 + rho[i], np.maximum(1 - rho[i], 0))
        if rng.random() < 0.2:
            factor = rng.uniform(np.maximum(1 - rho[i], 0), 1 + rho[i], x.shape)
        if amsbound:
            v = beta2 * v + (1 - beta2) * g * g
            top = np.maximum(top, v)
            factor = np.clip(alpha / np.sqrt(top), 1 - rho[i], 1 + rho[i])
        rates[:, i] = (limit / math.sqrt(i + 1) if sqrt_decay else limit) * factor
        x = np.clip(x - rates[:, i] * m, -diameter / 2, diameter / 2)
    return regrets, rates, (rho, limit, diameter, g2, d, beta1, sqrt_decay)


def test_no_rates_within_rho_of_their_limit_break_theorem_a():
    """In 20,000 games; in many of them more than nine tenths of what it allows are lost."""
    rng, tight = np.random.default_rng(0), 0
    for _ in range(200):
        regrets, _, (rho, limit, diameter, g2, d, beta1, sqrt_decay) = random_game(rng)
        sizes = dict(limit=limit, diameter=diameter, gradient_bound=g2, dimension=d)
        right = rho_bound(rho, **sizes, beta1=beta1, sqrt_decay=sqrt_decay)
        for t in (1, 17, 40):
            assert right[t - 1] == pytest.approx(transcribed(t, rho, limit, diameter, g2, d, beta1, sqrt_decay))
        assert (regrets <= right * (1 + 1e-9)).all()
        trivial = math.sqrt(d) * diameter * g2 * np.arange(1, 41)
        tight += (regrets > 0.9 * right)[:, right < 0.99 * trivial].sum()
    assert tight > 0


@pytest.mark.parametrize("amsbound", [False, True])
def test_no_rates_break_theorem_b_nor_those_of_amsbound_theorem_c(amsbound):
    """In 20,000 games each; also Theorem 4 with the correction term."""
    rng, most = np.random.default_rng(1), 0.0
    for _ in range(200):
        regrets, rates, (_, _, diameter, g2, d, beta1, _) = random_game(rng, amsbound=amsbound)
        root, inverse = np.sqrt(np.arange(1.0, 41)), 1 / rates
        falls = np.maximum(-np.diff(inverse, axis=1, prepend=inverse[:, :1]), 0).cumsum(1)
        b, area = beta1[0] / (1 - beta1[0]), diameter**2 / 2
        noise = (2 * root - 1) * np.maximum.accumulate((rates.max(2) * root), 1) * g2**2
        rest = (0.5 + b) * noise + b * math.sqrt(d) * diameter * g2
        momentum = (beta1[:, None] * inverse).cumsum(1)
        bounds = [
            area * (inverse + falls).sum(2) + rest,
            (area * (inverse + falls + momentum).sum(2) + noise) / (1 - beta1[0]),
        ]
        if amsbound:
            least = np.minimum.accumulate(rates * root[:, None], 1)
            bounds.append(area * root * (1 / least).sum(2) + rest)
        ratios = np.max([regrets / bound for bound in bounds])
        most = max(most, ratios)
    assert 0.5 < most <= 1 + 1e-9


def rising(t):
    return (1.0, 1.0) if t == 1 else (100.0, 100.0)


def test_an_upper_bound_that_rises_needs_its_largest_value():
    """Alternating slopes of ±10 on [−.5, .5] cost 50,000; with R∞ = η_u(1) only 19,999.5 were "guaranteed"."""
    steps = 10_000
    slopes = np.where(np.arange(steps) % 2, -10.0, 10.0)
    run = simulate([(Line(Box(-0.5, 0.5), slopes, x1=0.5), Method("AdaBound", bounds=rising, final_lr=1.0))], steps)[0]
    measured = regret(run)[-1]
    assert measured > 49_000
    found = bounds.certificate(rising, final_lr=1.0, steps=steps)
    assert found.largest_upper == 100
    assert measured <= found.regret(steps, diameter=1.0, gradient_bound=10.0).value
    for right in (savarese_bound, theorem_a, theorem_b):
        assert (regret(run) <= right(run)).all()
    assert savarese_bound(run)[0] == pytest.approx(0.5 + 100)  # R∞ of only the first step is 1


@pytest.mark.parametrize(
    ("method", "function", "message"),
    [
        (Method("Adam"), theorem_4, "method='Adam': must be AdaBound or AMSBound"),
        (Method("AdaBound", scheme="constant"), savarese_bound, "scheme='constant': must be 'sqrt'"),
        (Method("AdaBound", beta1=0.5), corollary, "beta1_decay=1.0: must be a number λ < 1"),
    ],
)
def test_a_theorem_that_does_not_apply_says_so(method, function, message):
    run = play(problems.theorem_2(4), method, 8)
    with pytest.raises(ValueError, match=message):
        function(run)


def test_a_partial_record_is_refused():
    run = simulate([(problems.theorem_2(4), Method("AdaBound"))], 8, at=np.array([4, 8]))[0]
    with pytest.raises(ValueError, match="a record of all 8 steps"):
        theorem_4(run)
    with pytest.raises(ValueError, match="steps that the run has recorded"):
        regret(run, np.array([5]))
