"""The rule in docs/explore.html gives the numbers of the Python package, to 1e-12."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

import dynabound
from dynabound import AdaBound, AMSBound, bounds
from dynabound.theory import problems
from dynabound.theory.fast import simulate
from dynabound.theory.framework import Box, Method
from dynabound.theory.problems import Line
from dynabound.theory.regret import regret, rho, rho_bound, theorem_4

CLOSE = dict(rtol=1e-12, atol=0)
NAMES = ("SGD", "SGDM", "Adam", "AMSGrad", "AdaBound", "AMSBound")
SHOW = "() => ({ ...%s, slopes: [...%s.slopes] })"
PLAY = """(name, numbers, steps) => {
  const run = rule.play(%s, name, numbers, steps);
  return [run.x, run.regret, run.rate].map(each => [...each]).concat(run.last);
}"""


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
def test_bounds(call, family):
    cases = [(gamma, t) for gamma in (1e-7, 1e-3, 0.3, 1.0, 7.0) for t in (1, 2, 9, 10, 1000, 10**6, 10**9)]
    found = call("(family, cases) => cases.map(each => rule.bounds(family, ...each))", family, cases)
    np.testing.assert_allclose(found, [bounds.evaluate(family, gamma, t) for gamma, t in cases], **CLOSE)


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
@pytest.mark.parametrize("gamma", [1e-5, 1e-3, 0.07, 1.0])
def test_close_to_sgd_from_the_first_step_on(call, family, gamma):
    first = call("rule.closeToSgd", family, gamma, 0.1)
    assert bounds.evaluate(family, gamma, first)[1] <= 1.1 * (1 + 1e-12)
    assert first == 1 or bounds.evaluate(family, gamma, first - 1)[1] > 1.1


def as_line(game):
    """The page's game as a problem of the package; its slopes come from the page."""
    ends = dict(left=game["left"], right=game["right"]) if game["left"] is not None else {}
    plateaus = tuple(map(float, game["plateaus"]))
    return Line(Box(game["low"], game["high"]), np.array(game["slopes"]), game["x1"], **ends, plateaus=plateaus)


def as_python(name, numbers):
    renamed = {"finalLr": "final_lr"}
    given = {renamed.get(key, key): value for key, value in numbers.items() if key != "sqrtDecay"}
    return Method(name, **given, scheme="sqrt" if numbers.get("sqrtDecay", True) else "constant")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("game", "numbers"),
    [
        ("rule.theorem1(50)", dict(alpha=0.1, beta2=0.9, gamma=0.2)),
        ("rule.theorem1(7)", dict(alpha=0.3, beta1=0.6, beta2=0.9, gamma=0.2, bounds="linear", sqrtDecay=False)),
        ("rule.theorem2(20)", dict(alpha=0.1, beta2=0.5, gamma=0.5)),
        ("rule.theorem2(6)", dict(alpha=1.0, beta1=0.5, beta2=0.99, gamma=0.01, bounds="exponential")),
        ("rule.theorem3(20, 3000, 5)", dict(alpha=0.1, beta2=0.5, gamma=0.5)),
        ("rule.theorem3(9, 3000, 6)", dict(alpha=0.01, beta1=0.3, beta2=0.9, finalLr=0.02, sqrtDecay=False)),
    ],
)
def test_games(call, name, game, numbers):
    *found, last = call(PLAY % game, name, numbers, 3000)
    (run,) = simulate([(as_line(call(SHOW % (game, game))), as_python(name, numbers))], 3000)
    for ours, theirs in zip(found, (run.x[:, 0], regret(run), run.rate[:, 0]), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    np.testing.assert_allclose(last, run.last[0], **CLOSE)


def test_the_games_are_those_of_the_theorems(call):
    for theorem, ours in (("theorem1(50)", problems.theorem_1(50)), ("theorem2(20)", problems.theorem_2(20))):
        page = as_line(call(SHOW % (f"rule.{theorem}", f"rule.{theorem}")))
        np.testing.assert_array_equal(page.slopes, ours.slopes)
        for x in np.linspace(ours.domain.low, ours.domain.high, 9):
            assert [page.loss(t, [x]) for t in (1, 2, 3)] == [ours.loss(t, [x]) for t in (1, 2, 3)]
    slopes = np.array(call("() => [...rule.theorem3(20, 100000, 1).slopes]"))
    assert set(slopes) == {20.0, -1.0}
    rare = (slopes == 20).mean()
    assert abs(rare - 2 / 21) < 4 * math.sqrt(2 / 21 / 100_000)  # four standard deviations


def test_the_conditions_of_the_theorems(call):
    betas = [(beta1, beta2) for beta1 in (0, 0.5, 0.9) for beta2 in (0.0, 0.5, 0.9, 0.99) if beta1 == 0 or beta2]
    grid = [(C, beta1, beta2) for C in (2, 4, 20, 50, 204, 730) for beta1, beta2 in betas]
    found = call(
        """grid => grid.map(([C, beta1, beta2]) =>
      [rule.condition1(C, beta2), rule.condition2(C, beta1, beta2), rule.condition3(C, beta1, beta2)])""",
        grid,
    )
    expected = [
        [problems.theorem_1_condition(C, beta2), problems.theorem_2_condition(C, beta1, beta2),
         problems.theorem_3_condition(C, beta1, beta2)]
        for C, beta1, beta2 in grid
    ]  # fmt: skip
    assert np.array_equal(np.array(found, bool), np.array(expected, bool))
    assert 0 < np.mean(expected) < 1


@pytest.mark.parametrize("steps", [1, 3, 4, 100, 1000])
def test_the_counterexample_and_both_sides(call, steps):
    found = call("""T => {
      const [game, numbers] = rule.counterexample(T), run = rule.play(game, "AdaBound", numbers, T);
      return [run.regret[T - 1], rule.theorem4(run, numbers, 2, 1), rule.corrected(numbers, T, 2, 1)];
    }""", steps)  # fmt: skip
    problem, method = problems.smallest_counterexample(steps)
    (run,) = simulate([(problem, method)], steps)
    expected = regret(run)[-1], theorem_4(run)[-1], corrected(method, steps, 2.0, 1.0)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
def test_the_corrected_bound(call, family):
    for gamma, steps in itertools.product((0.001, 0.03, 0.5), (1, 7, 500, 4000)):
        numbers = dict(bounds=family, gamma=gamma, finalLr=0.2)
        found = call("rule.corrected", numbers, steps, 2, 3)
        np.testing.assert_allclose(found, corrected(as_python("AdaBound", numbers), steps, 2.0, 3.0), **CLOSE)


def corrected(method, steps, diameter, gradient):
    """The corrected bound on R_T for T = ``steps``."""
    pairs = np.array([bounds.evaluate(method.bounds, method.gamma, t) for t in range(1, steps + 1)])
    distances, numbers = rho(*pairs.T, 1.0), dict(diameter=diameter, gradient_bound=gradient)
    return rho_bound(distances, limit=method.final_lr, **numbers)[-1]


SURFACES = {
    "quadratic": lambda x, y: (x**2 + 100 * y**2) / 2,
    "rosenbrock": lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
    "valley": lambda x, y: (0.1 * (x + y) ** 2 + 20 * (x - y) ** 2) / 2,
    "saddle": lambda x, y: x**2 / 2 - y**2 / 2 + y**4 / 4,
}


@pytest.mark.parametrize("surface", SURFACES)
def test_surfaces_and_their_gradients(call, surface):
    generator = random.Random(0)
    points = [[generator.uniform(-3, 3), generator.uniform(-3, 3)] for _ in range(50)]
    found = call("""(name, points) => {
      const { value, gradient } = rule.SURFACES[name];
      return points.map(point => [value(...point), ...gradient(...point)]);
    }""", surface, points)  # fmt: skip
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    value = SURFACES[surface](*x.unbind(1))
    value.sum().backward()
    expected = torch.cat([value.detach()[:, None], x.grad], 1).numpy()
    # Sums of numbers of either sign: to 1e-12 of their size.
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def optimizers():
    # What AdaBound becomes: SGD with the rate final_lr·(1 − β₁).
    closed = dict(bounds=("constant", 1.0, 1.0))
    yield "SGD", dict(alpha=0.01), lambda p: AdaBound(p, final_lr=0.01, betas=(0.0, 0.999), **closed)
    yield "SGDM", dict(alpha=0.01, beta1=0.9), lambda p: AdaBound(p, final_lr=0.1, **closed)
    common = dict(alpha=0.05, beta1=0.9, beta2=0.999)
    wide = dict(lr=0.05, bounds=("constant", 0.0, math.inf))
    yield "Adam", common, lambda p: AdaBound(p, **wide)
    yield "AMSGrad", common, lambda p: AMSBound(p, **wide)
    for family in ("harmonic", "exponential", "linear"):
        mine = dict(common, finalLr=0.03, gamma=0.02, bounds=family)
        theirs = dict(lr=0.05, final_lr=0.03, gamma=0.02, bounds=family)
        yield "AdaBound", mine, lambda p, theirs=theirs: AdaBound(p, **theirs)
        yield "AMSBound", dict(mine, sqrtDecay=True), lambda p, theirs=theirs: AMSBound(p, **theirs, sqrt_decay=True)


@pytest.mark.parametrize(("name", "numbers", "make"), list(optimizers()))
def test_paths_on_a_landscape(call, name, numbers, make):
    """The optimizers, given the page's gradients (with noise), go the page's way."""
    run = call("(name, numbers) => rule.descend('saddle', name, numbers, [-2, 0.01], 300, 0.5, 3)", name, numbers)
    x = torch.nn.Parameter(torch.tensor([-2.0, 0.01], dtype=torch.float64))
    optimizer = make([x])
    path = [x.detach().clone()]
    for gradient in run["gradients"]:
        x.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        path.append(x.detach().clone())
    # A coordinate passes through 0, where only the distance says how close two numbers are.
    np.testing.assert_allclose(run["path"], torch.stack(path).numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(run["loss"], [SURFACES["saddle"](*p).item() for p in path], rtol=1e-10, atol=1e-12)


def test_noise_is_normal(call):
    run = call("() => rule.descend('quadratic', 'SGD', { alpha: 0 }, [0, 0], 20000, 2, 1).gradients.flat()")
    assert abs(np.mean(run)) < 4 * 2 / 200  # four standard errors of 40,000 draws
    assert np.std(run) == pytest.approx(2, rel=0.02)


def test_the_call_to_copy_is_python(call):
    values = dict(family="linear", lr=2e-5, final_lr=30, gamma=0.7)
    names = {"dynabound": dynabound, "model": torch.nn.Linear(2, 1)}
    exec(call("values => PANELS.bounds.call(values)", values), names)
    (group,) = names["optimizer"].param_groups
    assert [group[name] for name in ("lr", "final_lr", "gamma", "bounds")] == [2e-5, 30.0, 0.7, "linear"]
