"""The bound functions and their certificate against exact arithmetic."""

import json
import math
import re
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dynabound import bounds
from dynabound.cli import app

getcontext().prec = 60
ONE = Decimal(1)


def exact(family, gamma, t):
    """The definition, in sixty digits."""
    x = Decimal(gamma) * t
    if family == "harmonic":
        return ONE - ONE / (x + 1), ONE + ONE / x
    if family == "exponential":
        lower = ONE - (-x).exp()
        return lower, ONE / lower
    return min(ONE, x), max(ONE, ONE / x)


@settings(max_examples=300, derandomize=True)
@given(
    st.sampled_from(["harmonic", "exponential", "linear"]),
    st.floats(1e-12, 10),
    st.integers(1, 10**9),
)
def test_bounds_are_finite_and_correct(family, gamma, step):
    for computed, wanted in zip(bounds.evaluate(family, gamma, step), exact(family, gamma, step), strict=True):
        assert math.isfinite(computed)
        assert computed == pytest.approx(float(wanted), rel=1e-13)
    on_tensors = bounds.evaluate(family, gamma, torch.tensor(float(step), dtype=torch.float64))
    for computed, wanted in zip(on_tensors, exact(family, gamma, step), strict=True):
        assert computed.item() == pytest.approx(float(wanted), rel=1e-13)


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
@pytest.mark.parametrize("gamma", [1e-3, 0.01, 0.3, 0.4, 0.5, 0.7, 1.0, 1.7, 4.0, 10.0])
def test_certificate_is_the_supremum(family, gamma):
    """Against a search in exact arithmetic; the harmonic supremum is a limit, approached from below."""
    last = int(20 / gamma) + 20
    steps = [*range(1, 200), *range(200, last, max(1, last // 2000))]
    found = max(
        t / exact(family, gamma, t)[0] - ((t - 1) / exact(family, gamma, t - 1)[1] if t > 1 else 0) for t in steps
    )
    certificate = bounds.certificate(family, gamma, final_lr=0.5)
    assert certificate.meets_theorem_4
    assert certificate.guaranteed
    assert certificate.checked_until == math.inf
    assert certificate.m >= float(found) / 0.5 * (1 - 1e-12)
    slack = 1.06 if family == "harmonic" else 1 + 1e-4  # the search looks at every step only up to 200
    assert certificate.m <= float(found) / 0.5 * slack


def test_certificate_of_constant_bounds():
    sgd, adam, window = (bounds.certificate(("constant", *b), final_lr=0.1) for b in ((1, 1), (0, math.inf), (0.5, 2)))
    assert sgd.m == pytest.approx(10)
    assert sgd.meets_theorem_4
    assert not adam.lower_positive
    assert not adam.guaranteed
    assert adam.m == math.inf
    assert window.lower_positive
    assert not window.limits_agree
    assert not window.guaranteed


@pytest.mark.parametrize("gamma", [0.05, 0.5])
def test_certificate_of_a_callable_agrees_with_the_family(gamma):
    for family in ("harmonic", "exponential", "linear"):
        ours = bounds.certificate(family, gamma, final_lr=0.2)
        measured = bounds.certificate(lambda t, f=family: bounds.evaluate(f, gamma, t), final_lr=0.2, steps=20_000)
        assert measured.checked_until == 20_000
        assert measured.meets_theorem_4 == ours.meets_theorem_4
        assert measured.m == pytest.approx(ours.m, rel=2e-3)


def test_certificate_finds_what_is_wrong():
    def jump(t):  # meets all that Theorem 4 asks for, and has no useful M
        return (1e-6 if t < 100 else 1.0), 1.0

    found = bounds.certificate(jump, final_lr=1.0, steps=1000)
    assert found.meets_theorem_4
    assert found.m == pytest.approx(99e6 - 98, rel=1e-9)
    assert not bounds.certificate(lambda t: (1 / t, 1.0), steps=100).lower_never_decreases
    assert not bounds.certificate(lambda t: (0.5, 1.0 + t), steps=100).upper_never_increases
    assert not bounds.certificate(lambda t: (0.0, 1.0), steps=100).lower_positive
    assert not bounds.certificate(lambda t: (0.5, 1.0), steps=100).limits_agree


def test_an_infinite_upper_bound_gives_no_guarantee():
    found = bounds.certificate(lambda t: (1.0, math.inf), steps=100)
    assert not found.limits_agree
    assert not found.guaranteed
    assert found.largest_upper == math.inf
    assert found.useful_from() == math.inf


def test_largest_upper_is_the_largest_seen():
    assert (
        bounds.certificate(lambda t: (1.0, 1.0) if t != 7 else (1.0, 3.0), final_lr=0.5, steps=10).largest_upper == 1.5
    )
    for family in ("harmonic", "exponential", "linear"):
        assert bounds.certificate(family, 0.01, 0.5).largest_upper == 0.5 * float(bounds.evaluate(family, 0.01, 1)[1])
    assert bounds.certificate(("constant", 0.5, 2.0), final_lr=0.5).largest_upper == 1.0


@pytest.mark.parametrize("diameter", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_useful_from_is_where_the_guarantee_beats_the_trivial_bound(diameter, beta1):
    found = bounds.certificate("harmonic", gamma=0.1, final_lr=0.5)
    sizes = dict(diameter=diameter, gradient_bound=3.0, dimension=2, beta1=beta1)
    trivial = math.sqrt(2) * diameter * 3
    start = found.useful_from(**sizes)
    assert found.regret(start - 1, **sizes) == (pytest.approx(trivial * (start - 1)), "trivial")
    for steps in (start, 2 * start, 1e3 * start):
        assert found.regret(steps, **sizes).value < trivial * steps


@pytest.mark.parametrize("kappa", [0.0, 0.3, 20.0, 1000.0])
def test_theorem_a_is_at_least_the_sum_that_it_bounds(kappa):
    """Its sums are bounded by integrals, and one t₀ is chosen; here are the sums, for every t₀."""
    found = bounds.certificate(lambda t: (1 - min(1, kappa / t), 1 + kappa / t), final_lr=0.5, steps=5000)
    assert found.kappa == pytest.approx(kappa)
    promised = found.regret(5000, diameter=3.0, gradient_bound=2.0, dimension=2, beta1=0.5)
    most, t = math.sqrt(2) * 3 * 2, np.arange(1.0, 5001)
    costs = most * kappa / t + 4 * 0.5 / np.sqrt(t) * (1 + kappa / t) * ((1 + kappa / t) / 2 + 1)
    rest = costs[::-1].cumsum()[::-1]  # the costs from t₀ + 1 on
    exact = 2 * 9 * math.sqrt(5000) / (2 * 0.5) + min(most * np.arange(5000) + 2 * most + rest)
    assert promised.name == "Theorem A"
    assert exact <= promised.value <= 1.05 * exact


def test_the_best_bound_is_named():
    slow = bounds.certificate(lambda t: (1 + 9 * t**-0.1,) * 2, final_lr=0.1)  # SGD, with a rate that falls: κ grows
    assert slow.regret(100_000).name == "Savarese 2019"
    window = bounds.certificate(("constant", 0.5, 2.0), final_lr=0.1)
    assert window.regret(100_000).name == "trivial"
    assert window.regret(100_000, amsbound=True).name == "Theorem C"
    assert window.useful_from() == math.inf
    # Theorem C: D²√T/(2L∞) + (2√T−1)·R∞G²/2 = 40√T + (2√T−1)/10 against 2T.
    assert window.useful_from(amsbound=True) == 404
    with pytest.raises(ValueError, match="steps=0: must be at least 1 and at most 100000"):
        slow.regret(0)


def test_theorem_c_is_not_applied_to_bounds_that_are_not_monotone():
    """Rates that alternate between 0.1 and 1 cost 50,000, where Theorem C would allow 6,640."""

    def alternating(t):
        return (0.1, 0.1) if t % 2 else (1.0, 1.0)

    steps, x, paid = 100_000, 1.0, 0.0
    for t in range(1, steps + 1):
        slope = 1.0 if t % 2 else -0.5
        paid += slope * x
        x = min(1.0, max(-1.0, x - alternating(t)[0] / math.sqrt(t) * slope))
    promised = bounds.certificate(alternating, final_lr=1.0, steps=steps).regret(steps, amsbound=True)
    assert 50_000 < paid + steps / 4 <= promised.value
    closed_at_first = bounds.certificate(lambda t: (float(t > 1), 1.0), steps=100)  # η_l(1) = 0
    assert closed_at_first.regret(100, amsbound=True).name != "Theorem C"


def test_nothing_is_said_beyond_the_steps_that_were_checked():
    """κ of bounds that never close grows with the steps: from none of them a guarantee follows."""
    window = bounds.certificate(lambda t: (0.5, 2.0), steps=1000)
    assert not window.guaranteed
    assert window.guaranteed_amsbound  # Theorem C
    assert window.useful_from() == math.inf


@pytest.mark.parametrize(("gamma", "final_lr"), [(1e-320, 0.1), (1e-3, 1e308), (1e-3, 1e-307)])
@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
def test_bounds_that_overflow_are_refused(family, gamma, final_lr):
    with pytest.raises(ValueError, match=re.escape(f"gamma={gamma!r}, final_lr={final_lr!r}: the bounds overflow")):
        bounds.certificate(family, gamma, final_lr)


@pytest.mark.parametrize("pair", [(2.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (0.5, math.nan)])
def test_a_bound_function_that_returns_nonsense(pair):
    with pytest.raises(ValueError, match="must return 0 <= lower <= upper"):
        bounds.evaluate(lambda t: pair, 1e-3, 5)


@pytest.mark.parametrize(
    ("bad", "error"),
    [("cubic", ValueError), (None, TypeError), (("constant", 1.0), ValueError), (("linear", 0.5, 2.0), ValueError)],
)
def test_evaluate_refuses_unknown_families(bad, error):
    with pytest.raises(error, match=r"bounds=.*: must be 'harmonic', 'exponential', 'linear', \('constant', lower"):
        bounds.evaluate(bad, 1e-3, 5)


@pytest.mark.parametrize(("name", "value"), [("gamma", 0.0), ("gamma", math.nan), ("final_lr", -1.0), ("steps", 0)])
def test_certificate_refuses_bad_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        bounds.certificate(lambda t: (1.0, 1.0), **{name: value})


def command(*arguments):
    return CliRunner().invoke(app, ["bounds", *map(str, arguments)], terminal_width=200)


def test_the_command_says_what_the_guarantee_needs():
    text = command("--certificate").output
    assert "yes, with κ = 1000 (Theorem A) and M = 20010 (Savarese 2019), but only for\n  - convex" in text
    for needed in ("α/√t (sqrt_decay=True)", "bounded set", "β₁ₜ that never increases"):
        assert needed in text
    assert "better than the trivial bound D·G·T from T = 2,332 on, by Theorem A" in text
    found = json.loads(command("--json").output)["certificate"]
    assert found["guaranteed"] is True
    assert found["useful_from"] == 2332
    assert len(found["needs"]) == 3
    assert found["kappa"] == pytest.approx(1000)
    assert found["best_bound"] == "Theorem A"
    assert json.loads(command("--json", "--gamma", 1e-300).output)["certificate"]["useful_from"] is None
    assert "from T = inf on" in command("--certificate", "--gamma", 1e-300).output


class OldArray(np.ndarray):
    """An array as NumPy 1.26 has it, which does not name its functions."""

    @property
    def __array_namespace__(self):
        raise AttributeError


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
def test_arrays_of_numpy_before_2(family):
    steps = np.array([1.0, 7.0, 400.0])
    assert not hasattr(steps.view(OldArray), "__array_namespace__")
    for old, new in zip(*[bounds.evaluate(family, 0.01, x) for x in (steps.view(OldArray), steps)], strict=True):
        assert np.array_equal(old, new)
