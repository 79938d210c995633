"""The search for learning rates, on losses that are known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.search import GRIDS, search_lr


def valley(best, betas=None):
    def loss(spec):
        wrong = betas is not None and spec.options.get("betas") != betas
        return abs(math.log10(spec.lr / best)) + wrong

    return loss


def tried(result):
    return [spec.lr for spec, _ in result.tried]


def test_the_grids_are_the_papers():
    assert sorted(GRIDS["sgdm"].lrs) == [0.01, 0.1, 1, 10, 100]
    assert sorted(GRIDS["adagrad"].lrs) == [5e-4, 1e-3, 5e-3, 1e-2, 5e-2]
    assert sorted(GRIDS["adam"].lrs) == [1e-4, 5e-4, 1e-3, 5e-3, 1e-2]
    assert {o["betas"] for o in GRIDS["amsgrad"].options} == {(a, b) for a in (0.9, 0.99) for b in (0.99, 0.999)}
    assert "adabound" not in GRIDS
    assert "amsbound" not in GRIDS


def test_a_method_without_a_grid_keeps_its_values():
    spec = RunSpec("digits", optimizer="adabound", lr=0.002)
    result = search_lr(spec, lambda _: pytest.fail("nothing is to be run"))
    assert (result.best, result.wanted, result.tried) == (spec, (), ())


def test_all_five_are_wanted_at_once_and_nothing_twice():
    spec = RunSpec("digits", optimizer="adagrad")
    first = search_lr(spec, lambda _: None)
    assert [run.lr for run in first.wanted] == [5e-4, 1e-3, 5e-3, 1e-2, 5e-2]
    assert first.best is None
    done = {first.wanted[1].name: 1.0}
    assert search_lr(spec, lambda run: done.get(run.name)).wanted == (first.wanted[0], *first.wanted[2:])


@pytest.mark.parametrize(
    ("optimizer", "best", "added"),
    [
        ("adagrad", 0.4, [0.1, 0.5, 1.0]),
        ("adagrad", 1e-4, [1e-4, 5e-5]),
        ("adagrad", 5e-3, []),
        ("sgd", 1e-3, [1e-3, 1e-4, 2e-4, 5e-4, 2e-3, 5e-3]),
    ],
)
def test_points_are_added_until_the_best_is_inside(optimizer, best, added):
    result = search_lr(RunSpec("digits", optimizer=optimizer), valley(best))
    assert tried(result) == [*GRIDS[optimizer].lrs, *added]
    assert not result.wanted
    assert result.best.lr == min(tried(result), key=lambda lr: abs(math.log10(lr / best)))


def test_betas_are_searched_and_only_the_best_row_grows():
    result = search_lr(RunSpec("digits", optimizer="adam"), valley(0.06, betas=(0.99, 0.99)))
    assert (result.best.lr, result.best.options["betas"]) == (0.05, (0.99, 0.99))
    assert len(result.tried) == 20 + 2


def test_diverged_runs_are_worst_and_all_diverged_has_no_winner():
    spec = RunSpec("digits", optimizer="sgdm")
    result = search_lr(spec, lambda run: math.inf if run.lr > 0.15 else -run.lr)
    assert result.best.lr == 0.1
    assert search_lr(spec, lambda run: math.inf).best is None
    assert search_lr(spec, lambda run: math.nan).best is None


def test_a_loss_that_falls_for_ever_ends_the_search():
    result = search_lr(RunSpec("digits", optimizer="adagrad"), lambda run: -run.lr)
    assert len(result.tried) == 5 + 8
    assert not result.wanted


@given(st.floats(-6, 2), st.sampled_from(sorted(GRIDS)))
def test_the_winner_is_the_best_of_a_fine_grid_around_it(exponent, optimizer):
    """No point that the grid's own spacing would add next to the winner is better than it."""
    loss = valley(10**exponent)
    best = search_lr(RunSpec("digits", optimizer=optimizer), loss).best
    spacing = 10 if optimizer in ("sgd", "sgdm") else 5
    assert loss(best) <= math.log10(spacing) / 2 + 1e-6
