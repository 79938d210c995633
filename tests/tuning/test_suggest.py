"""suggest: known answers, exact restoration, errors, and models that are not in the lab."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynabound import AdaBound, AMSBound
from dynabound.tuning import SuggestError, Suggestion, Trial, decide, suggest
from dynabound.tuning.torch import TorchRunner
from helpers.regression import examples, mse, regression


@pytest.fixture(scope="module")
def found() -> Suggestion:
    model, batches = regression()
    return suggest(model, mse, batches, steps=280)


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((4,), 3.0))


def slope(model: Point, scale: Tensor) -> Tensor:
    """It is below zero, and falls the faster the larger the rate."""
    return -scale * model.x.sum()


@pytest.fixture(scope="module")
def endless() -> Suggestion:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return suggest(Point(), slope, torch.linspace(0.9, 1.1, 50), steps=280)


# --- known answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", [0.01, 1.0, 100.0])
def test_final_lr_follows_the_curvature_of_a_quadratic(curvature: float) -> None:
    """On L/2·|x|² averaged momentum is stable below 2(1+β)/(1−β)/L; slower than 1/(100 L) it learns nothing."""

    def loss(model: Point, scale: Tensor) -> Tensor:
        return scale * 0.5 * curvature * model.x.square().sum()

    batches = torch.linspace(0.9, 1.1, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best rate may lie at the end of the few that 4 trials reach
        found = suggest(Point(), loss, batches, steps=600)
    assert 0.01 / curvature < found.final_lr < 2 * 1.9 / 0.1 / curvature


def test_rates_scale_as_they_must_with_the_loss() -> None:
    """A loss times 100 does not change Adam's rate (except for eps) and divides SGD's by 100."""
    model, batches = regression()
    plain = suggest(model, mse, batches, steps=280, eps=1e-30)
    scaled = suggest(model, lambda model, batch: 100 * mse(model, batch), batches, steps=280, eps=1e-30)
    assert scaled.lr == pytest.approx(plain.lr, rel=0.05)
    assert scaled.final_lr * 100 == pytest.approx(plain.final_lr, rel=0.05)


def test_cost_is_at_most_1_4_times_the_training_and_600_steps(found: Suggestion) -> None:
    assert found.cost == sum(len(trial.losses) for trial in found.trials) <= 1.4 * 280
    model, batches = regression()
    seen: list[tuple[int, int]] = []
    long = suggest(model, mse, batches, steps=50_000, progress=lambda done, most: seen.append((done, most)))
    assert long.cost <= 600
    assert seen == [(number, 600) for number in range(1, long.cost + 1)]


def test_all_trials_start_alike(found: Suggestion) -> None:
    """Same weights, batches and dropout: the first losses are equal, bit for bit."""
    assert {trial.losses[0] for trial in found.trials} == {found.start[0]}


def test_same_seed_same_answer() -> None:
    model, batches = regression()
    loader: Any = torch.utils.data.DataLoader(examples(batches), 32, shuffle=True)
    answers = [suggest(model, mse, loader, steps=100, seed=seed) for seed in (1, 1, 2)]
    assert answers[0] == answers[1]
    assert answers[0].start != answers[2].start


def with_losses(found: Suggestion, kind: str, losses: tuple[float, ...] | float) -> tuple[Trial, ...]:
    """The same trials, but with other losses in those of a kind."""
    return tuple(
        replace(trial, losses=losses if isinstance(losses, tuple) else (losses,) * len(trial.losses))
        if trial.kind == kind
        else trial
        for trial in found.trials
    )


def decision(found: Suggestion, **losses: float) -> decide.Decision:
    """The answer if all losses of the trials of a kind were these."""
    for kind, loss in losses.items():
        found = replace(found, trials=with_losses(found, kind, loss))
    return decide.decide(found.start, found.trials, found.steps)


def lowest(found: Suggestion, *kinds: str) -> tuple[float, ...]:
    """The losses of the trial that ended lowest."""
    return min((trial.losses for trial in found.trials if trial.kind in kinds), key=decide.score)


def test_bounds_are_slow_if_that_trial_ends_significantly_lower(found: Suggestion) -> None:
    """γ·steps is 10 at the best final rate, or ¼ around the mean of Adam's rates."""
    [adams_rate], [raised] = found.scores("slow"), found.scores("raised")
    fast, slow = decision(found, slow=1e9), decision(found, slow=0.0)
    longer = (found.length("final_lr") / 280) ** 0.25
    assert (fast.gamma, slow.gamma) == (10 / 280, 0.25 / 280)
    assert (slow.lr, slow.final_lr) == (pytest.approx(raised * longer, rel=0.01), pytest.approx(adams_rate * longer))
    centre = f"around {adams_rate:.3g}, the mean of Adam's rates lr/√v,"
    assert f"{centre} ended clearly lower, at 0. Chosen: {adams_rate:.3g}" in slow.reasons["final_lr"]
    assert f"{centre} did not end clearly lower, at 1e+09" in fast.reasons["final_lr"]
    assert f"Raised to {raised:.3g}, the rate of the trial with slow bounds" in slow.reasons["lr"]
    assert "a factor of 5 from their limit" in slow.reasons["gamma"]


@pytest.mark.parametrize(("share", "is_better"), [(0.01, False), (0.015, True)])
def test_a_larger_lr_has_to_gain_an_eightieth_of_the_decrease(found: Suggestion, share: float, is_better: bool) -> None:
    """Every batch of its trial lower by the same share of the decrease."""
    best = lowest(found, "final_lr")
    gain = share * (decide.score(found.start[: len(best)]) - decide.score(best)) / (1 - share)
    trials = with_losses(found, "raised", tuple(loss - gain for loss in best))
    assert decide.is_better(found.start, trials, "raised", ("final_lr",)) == is_better


def test_bounds_are_not_slow_if_that_trial_ends_lower_by_chance(found: Suggestion) -> None:
    """One of its batches lower by much, all others higher by a little."""
    best = lowest(found, "final_lr", "raised")
    losses = [loss + 0.01 for loss in best]
    losses[-1] -= 0.02 * len(losses)
    assert decide.score(losses) < decide.score(best)
    assert decide.decide(found.start, with_losses(found, "slow", tuple(losses)), 280).gamma == 10 / 280


def test_bounds_are_fast_where_the_raised_trial_is_the_lowest(found: Suggestion) -> None:
    loss = min(found.scores("final_lr").values())
    both = decision(found, raised=0.8 * loss, slow=0.9 * loss)
    assert both.gamma == 10 / 280
    assert "Chosen: the minimum of the parabola" in both.reasons["final_lr"]


def test_lr_is_raised_if_adabound_ends_significantly_lower(found: Suggestion) -> None:
    [raised] = found.scores("raised")
    low, high = decision(found, slow=1e9, raised=1e9), decision(found, slow=1e9, raised=0.0)
    assert (low.lr, high.lr) == (pytest.approx(raised / math.sqrt(10), rel=0.01), pytest.approx(raised, rel=0.01))
    assert "not raised" in low.reasons["lr"]
    assert "raised to that" in high.reasons["lr"]


def test_repeats_that_disagree_about_the_speed_are_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(0.001, 1.0, 0.25 / 100, {"lr": "a"}), (0.004, 0.1, 0.1, {"lr": "b"}), (0.001, 0.4, 0.1, {"lr": "c"})]
    monkeypatch.setattr(decide, "decide", lambda untrained, trials, *rest: decide.Decision(*answers[trials[0].repeat]))
    model, batches = regression(number=84)
    found = suggest(model, mse, batches, steps=100, repeats=3)
    assert (found.lr, found.final_lr, found.gamma, found.reasons) == (0.002, 0.2, 0.1, {"lr": "b"})
    assert found.explanation.startswith("Geometric means over 3 repeats")


def test_repeats_use_other_batches() -> None:
    model, batches = regression(number=40)
    found = suggest(model, mse, batches, steps=100, repeats=2)
    assert {trial.repeat for trial in found.trials} == {0, 1}
    assert len(set(found.start)) == len(found.start) == 40
    assert found.cost <= 400


def test_options_are_the_optimizer_s(found: Suggestion) -> None:
    model, batches = regression()
    ams = suggest(model, mse, batches, steps=100, amsbound=True, betas=(0.8, 0.99), weight_decay=0.1, eps=1e-6)
    group = AMSBound(model.parameters(), **ams.options).param_groups[0]
    assert (group["lr"], group["final_lr"], group["gamma"]) == (ams.lr, ams.final_lr, ams.gamma)
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.8, 0.99), 0.1, 1e-6)
    AdaBound(model.parameters(), **found.options)


# --- errors ------------------------------------------------------------------------------------------------------


def test_errors_are_clear() -> None:
    model, batches = regression()
    zero = torch.zeros((), requires_grad=True)
    cases: list[tuple[Any, type[Exception], str]] = [
        (dict(steps=95), ValueError, "steps=95: must be an integer >= 96"),
        (dict(budget=10), ValueError, "budget=10: must be an integer >= 96"),
        (dict(repeats=0), ValueError, "repeats=0"),
        (dict(steps=math.nan), ValueError, "steps=nan: must be an integer"),
        (dict(steps=400.5), ValueError, "steps=400.5: must be an integer"),
        (dict(steps=math.inf), ValueError, "steps=inf: must be an integer"),
        (dict(clip=-1.0), ValueError, "clip=-1.0: must be a finite number > 0"),
        (dict(clip=math.nan), ValueError, "clip=nan: must be a finite number > 0"),
        (dict(batches=batches[:4]), ValueError, "batches: has 4; must have at least 5"),
        (dict(learning_rate=1), TypeError, "learning_rate=1: suggest takes the options betas"),
        (dict(params=[{"params": model.parameters(), "lr": 1.0}]), ValueError, "a group sets lr=1.0"),
        (dict(params=[]), ValueError, "at least one parameter"),
        (dict(loss=lambda model, batch: model(batch[0])), TypeError, r"returned \(32, 1\)"),
        (dict(loss=lambda model, batch: 1.0), TypeError, "returned float"),
        (dict(loss=lambda model, batch: mse(model, batch) * math.nan), SuggestError, "loss=nan before training"),
        (dict(loss=lambda model, batch: batch[0].sum()), SuggestError, "does not depend on the parameters"),
        (dict(loss=lambda model, batch: zero + 1), SuggestError, "does not depend on params"),
    ]
    for changes, kind, message in cases:
        arguments = dict(loss=mse, batches=batches, steps=100) | changes
        with pytest.raises(kind, match=message):
            suggest(model, **arguments)


def test_a_loss_that_never_decreases_is_an_error() -> None:
    """The targets are noise that the inputs say nothing about, and the model already predicts their mean."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(50)]
    with pytest.raises(SuggestError, match="the loss never decreases"):
        suggest(model, mse, batches, steps=100)


def test_a_best_rate_at_the_end_of_the_trials_is_noted(endless: Suggestion) -> None:
    """A larger budget makes the trials longer, but tries no more rates: the note must not promise that."""
    with pytest.warns(UserWarning, match="was the largest that was tried; a better one may lie beyond$"):
        longer = suggest(Point(), slope, torch.linspace(0.9, 1.1, 50), steps=280, budget=1000)
    assert longer.scores("lr").keys() == endless.scores("lr").keys()
    assert [note.split(":")[0] for note in endless.notes] == ["lr", "final_lr"]
    assert f"reached the lowest loss at {max(endless.scores('final_lr')):.3g}" in str(endless)
    assert "Chosen: that rate, times" in str(endless)


def test_final_rates_that_all_diverge_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TorchRunner.run
    monkeypatch.setattr(TorchRunner, "run", lambda *args: [*run(*args), *([math.nan] if args[-1].gamma else [])])
    model, batches = regression()
    with pytest.raises(SuggestError, match="AdaBound's loss is not finite at any final rate that was tried"):
        suggest(model, mse, batches, steps=100)


def test_a_recurrent_state_of_nan_is_an_error_that_names_reset() -> None:
    """A carried state that becomes NaN in one trial would make all later ones NaN."""
    model, batches = regression()
    carried, calls = 0.0, itertools.count()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal carried
        carried = math.nan if next(calls) == 56 else carried  # within the third trial
        return mse(model, batch) + carried

    def reset() -> None:
        nonlocal carried
        carried = 0.0

    with pytest.raises(SuggestError, match="pass reset="):
        suggest(model, loss, batches, steps=100)
    reset()
    calls = itertools.count()
    stopped = [
        trial for trial in suggest(model, loss, batches, steps=100, reset=reset).trials if math.isnan(trial.losses[-1])
    ]
    assert len(stopped) == 1


# --- kinds of parameters -----------------------------------------------------------------------------------------


def test_param_groups_frozen_and_named_parameters() -> None:
    model, batches = regression()
    model[0].weight.requires_grad_(False)
    groups = [{"params": model[4].parameters(), "weight_decay": 0.1}, {"params": model[1].weight}]
    assert suggest(model, mse, batches, steps=100, params=groups).lr > 0
    assert suggest(model, mse, batches, steps=100, params=model[4].named_parameters()).lr > 0


def test_sparse_gradients_are_refused_as_the_optimizer_refuses_them() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    with pytest.raises(RuntimeError, match="must be dense: use sparse=False in the embedding"):
        suggest(model, lambda model, words: model(words).square().mean(), list(torch.randint(10, (30, 8))), steps=100)


def test_gradients_are_clipped() -> None:
    """Adam and SGD of clipped gradients: with a tiny norm SGD needs a larger rate."""
    model, batches = regression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free, clipped = (suggest(model, mse, batches, steps=280, clip=clip, eps=1e-30) for clip in (None, 1e-3))
    assert clipped.final_lr > 10 * free.final_lr


# --- the result --------------------------------------------------------------------------------------------------


def test_json_round_trip(found: Suggestion) -> None:
    assert Suggestion.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    with pytest.raises(ValueError, match="fields"):
        Suggestion.from_dict({"lr": 1.0})


def test_suggestions_that_were_stored_with_races_still_load(found: Suggestion) -> None:
    stored = json.loads(json.dumps(found.to_dict()))
    del stored["reasons"]
    stored["races"] = [{"tests": trial.pop("kind"), **trial} for trial in stored.pop("trials")]
    assert Suggestion.from_dict(stored) == replace(found, reasons={})


def test_a_trial_that_diverged_survives_json(found: Suggestion) -> None:
    broken = replace(found, trials=(*found.trials, Trial("lr", 99.0, (1.0, math.inf))))
    again = Suggestion.from_dict(json.loads(json.dumps(broken.to_dict(), allow_nan=False)))
    assert again.scores("lr")[99.0] == math.inf


def test_the_text_has_the_three_numbers_first_and_then_the_reasons(found: Suggestion) -> None:
    lr, final_lr, gamma, _, *reasons = str(found).splitlines()
    assert lr == f"lr = {found.lr:.3g}"
    assert final_lr == f"final_lr = {found.final_lr:.3g}"
    assert gamma == f"gamma = {found.gamma:.3g}"
    assert reasons[:3] == [f"{name}: {found.reasons[name]}" for name in ("lr", "final_lr", "gamma")]
    assert f"Cost: {found.cost} training steps" in reasons[3]
    assert found._repr_html_().startswith(f"<table><tr><th>lr</th><td>{found.lr:.3g}</td></tr>")


def test_figure_marks_the_choices(found: Suggestion) -> None:
    pytest.importorskip("matplotlib")
    axes = found.figure().axes
    assert [one.get_xlabel() for one in axes] == ["lr", "final_lr"]
    for one, chosen in zip(axes, (found.lr, found.final_lr), strict=True):
        assert any(line.get_xdata()[0] == chosen for line in one.lines)


def test_figure_of_losses_below_zero(endless: Suggestion) -> None:
    pytest.importorskip("matplotlib")
    for axes, kind in zip(endless.figure().axes, ("lr", "final_lr"), strict=True):
        assert sorted(axes.lines[0].get_xdata()) == sorted(endless.scores(kind))
