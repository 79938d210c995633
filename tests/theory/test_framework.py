"""Algorithm 1 against torch's optimizers, ours and theirs, and the compiled loop against the readable one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dynabound import AdaBound, AMSBound
from dynabound.theory import fast
from dynabound.theory.fast import simulate
from dynabound.theory.framework import METHODS, Ball, Box, Method, play
from dynabound.theory.problems import Line, random_problem, theorem_1, theorem_3

STEPS = 60


def walk(problem, optimizer_class, options, method, steps=STEPS):
    """The path of a torch optimizer on the problem: learning rate by the method's scheme, clipped to the box."""
    x = torch.tensor(problem.start, requires_grad=True)
    optimizer = optimizer_class([x], lr=method.alpha, **options)
    path = []
    for t in range(1, steps + 1):
        path.append(x.detach().numpy().copy())
        x.grad = torch.tensor(problem.gradient(t, path[-1]))
        if "box" not in options:
            divides = method.scheme == "sqrt" and method.name != "AdaGrad"  # torch's Adagrad divides by √t itself
            optimizer.param_groups[0]["lr"] = method.alpha / math.sqrt(t) if divides else method.alpha
        optimizer.step()
        if "box" not in options:
            x.data.clamp_(problem.domain.low, problem.domain.high)
    return np.array(path)


@pytest.mark.parametrize("scheme", ["sqrt", "constant"])
@pytest.mark.parametrize("decay", [1.0, 0.9, "harmonic"])
@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize(("name", "optimizer"), [("AdaBound", AdaBound), ("AMSBound", AMSBound)])
def test_the_shipped_optimizers_walk_the_same_path(name, optimizer, debias, decay, scheme):
    problem = random_problem("least squares", seed=3, steps=STEPS)
    method = Method(
        name, alpha=0.02, beta1=0.9, beta2=0.99, beta1_decay=decay, scheme=scheme, gamma=0.05, debias=debias
    )
    options = dict(
        betas=(0.9, 0.99), final_lr=0.1, gamma=0.05, eps=0.0, debias=debias, sqrt_decay=scheme == "sqrt",
        beta1_decay=decay, box=(-1.0, 1.0),
    )  # fmt: skip
    run = play(problem, method, STEPS)
    assert np.ptp(run.x, axis=0).min() > 0.001  # something moves
    np.testing.assert_allclose(run.x, walk(problem, optimizer, options, method), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("method", "optimizer", "options"),
    [
        (Method("SGD"), torch.optim.SGD, {}),
        (Method("SGD", scheme="constant"), torch.optim.SGD, {}),
        (Method("SGDM", alpha=0.02, beta1=0.9, scheme="constant"), torch.optim.SGD, dict(momentum=0.9)),
        (Method("AdaGrad"), torch.optim.Adagrad, dict(eps=0.0)),
        (Method("RMSprop"), torch.optim.RMSprop, dict(alpha=0.9, eps=0.0)),
        (Method("RMSprop", scheme="constant", eps=0.01), torch.optim.RMSprop, dict(alpha=0.9, eps=0.01)),
        (Method("Adam", beta1=0.8, debias=True), torch.optim.Adam, dict(betas=(0.8, 0.9), eps=0.0)),
        (
            Method("Adam", beta1=0.8, debias=True, scheme="constant"),
            torch.optim.Adam,
            dict(betas=(0.8, 0.9), eps=0.0),
        ),
        (Method("AMSGrad", beta1=0.8, debias=True), torch.optim.Adam, dict(betas=(0.8, 0.9), eps=0.0, amsgrad=True)),
    ],
    ids=lambda value: f"{value.name}-{value.scheme}" if isinstance(value, Method) else "",
)
def test_torch_walks_the_same_path(method, optimizer, options):
    problem = random_problem("least squares", seed=4, steps=STEPS)
    run = play(problem, method, STEPS)
    np.testing.assert_allclose(run.x, walk(problem, optimizer, options, method), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scheme", ["sqrt", "constant"])
@pytest.mark.parametrize("name", METHODS)
def test_the_compiled_loop_walks_the_same_path(name, scheme):
    method = Method(name, beta1=0.8, beta1_decay=0.99, scheme=scheme, gamma=0.1, debias=True, eps=1e-3)
    for problem in (theorem_1(period=7), theorem_3(10, 200, seed=0), Line(Box(-1, 3), np.ones(1), x1=3.0)):
        slow, fast = play(problem, method, 200), simulate([(problem, method)], 200)[0]
        for field in ("x", "loss", "rate", "last", "lowest"):
            np.testing.assert_allclose(getattr(fast, field), getattr(slow, field), rtol=1e-13, err_msg=field)


def test_a_simulation_keeps_its_order_and_records_what_was_asked_for():
    problem = theorem_1(period=50)
    lanes = [(problem, Method("SGD", alpha=alpha)) for alpha in (0.1, 0.2, 0.3, 0.4)]
    done = []
    runs = simulate(lanes, 100, at=np.array([1, 2, 100]), progress=lambda *counts: done.append(counts))
    assert [float(run.x[1, 0]) for run in runs] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    full = simulate(lanes[:1], 100)[0]
    np.testing.assert_array_equal(runs[0].loss, full.loss[[0, 1, 99]])


def test_an_interrupt_stops_the_simulation():
    begun = []

    def interrupt(done, total):
        begun.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate([(theorem_1(50), Method("SGD"))] * 50, 1000, progress=interrupt)
    assert begun == [1]


def test_without_a_place_for_its_cache_the_loop_is_compiled_all_the_same(monkeypatch):
    def no_cache(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(fast.numba, "njit", no_cache)
    assert fast._compiled(len)("ab") == 2


def test_without_gradients_nothing_moves_and_nothing_is_nan():
    still = Line(Box(-1, 1), np.zeros(3), x1=0.5)
    for name in METHODS:
        run = simulate([(still, Method(name))], 20)[0]
        np.testing.assert_array_equal(run.x, 0.5)
        assert np.isfinite(run.rate).all()


finite = st.floats(-10, 10, allow_subnormal=False)


@settings(derandomize=True, deadline=None)
@given(
    arrays(np.float64, 4, elements=finite),
    arrays(np.float64, 4, elements=st.floats(-6, 6)),
    st.floats(0.01, 5),
)
def test_the_ball_projection_meets_the_optimality_conditions(y, log_rate, radius):
    rate = 10**log_rate
    x = Ball(radius).project(y, rate)
    norm = np.linalg.norm(x)
    assert norm <= radius * (1 + 1e-12)
    if np.linalg.norm(y) <= radius:
        np.testing.assert_array_equal(x, y)
        return
    assert norm == pytest.approx(radius, rel=1e-9)
    # Stationarity: (y − x)/rate = λx with one λ ≥ 0; compared where x has not vanished in rounding.
    seen = np.abs(y) > 1e-6
    multiplier = (y - x)[seen] / rate[seen] / x[seen]
    assert (multiplier >= -1e-9).all()
    predicted = y[seen] / (1 + np.median(multiplier) * rate[seen])
    np.testing.assert_allclose(predicted, x[seen], rtol=1e-4, atol=1e-7 * radius)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(arrays(np.float64, 3, elements=finite), st.integers(0, 1000))
def test_no_feasible_point_is_nearer_than_the_projection(y, seed):
    rng = np.random.default_rng(seed)
    rate = 10 ** rng.uniform(-3, 3, 3)
    for domain in (Ball(1.0), Box(-1, 1)):
        x = domain.project(y, rate)
        others = rng.normal(size=(500, 3))
        others *= rng.random((500, 1)) / np.linalg.norm(others, axis=1, keepdims=True)  # in the ball, so in the box
        others = np.concatenate([others, x + 0.1 * (others - x)])  # and close to x
        distance = ((x - y) ** 2 / rate).sum()
        assert (((others - y) ** 2 / rate).sum(1) >= distance * (1 - 1e-9) - 1e-12).all()


def test_a_coordinate_without_a_rate_does_not_move():
    x = Ball(1.0).project(np.array([0.6, 5.0]), np.array([0.0, 2.0]))
    np.testing.assert_allclose(x, [0.6, 0.8])
    np.testing.assert_allclose(Ball(1.0).project(np.array([1.0, 5.0]), np.array([0.0, 2.0])), [1.0, 0.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Method("Adamax"), "method='Adamax': must be one of SGD"),
        (lambda: Method("Adam", alpha=0.0), "alpha=0.0: must be a finite number > 0"),
        (lambda: Method("Adam", beta2=1.0), r"beta2=1.0: must be in \[0, 1\)"),
        (lambda: Method("Adam", beta1=0.5, beta2=0.25), r"beta1=0.5: must be in \[0, sqrt\(beta2\)\) = \[0, 0.5\)"),
        (lambda: Method("Adam", scheme="cosine"), "scheme='cosine': must be 'sqrt'"),
        (lambda: Method("Adam", beta1_decay=0.0), "beta1_decay=0.0: must be a number in"),
        (lambda: Method("Adam", eps=-1.0), "eps=-1.0: must be"),
        (lambda: Box(1, 1), r"box=\(1, 1\): must be finite, with low < high"),
        (lambda: Box(2, -2), "it is empty"),
        (lambda: Ball(0.0), "radius=0.0: must be"),
        (lambda: simulate([(theorem_1(50), Method("SGD"))], 0), "steps=0: must be at least 1"),
        (lambda: play(theorem_1(50), Method("SGD"), 0), "steps=0: must be at least 1"),
        (lambda: simulate([(theorem_1(50), Method("SGD"))], 5, at=np.array([6])), "steps between 1 and 5"),
    ],
)
def test_bad_input_says_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
