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

from dynabound import AdaBound, AMSBound, bounds
from dynabound.tuning import SuggestError, Suggestion, Trial, decide, suggest
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
def test_sgd_s_rate_follows_the_curvature_of_a_quadratic(curvature: float) -> None:
    """On L/2·|x|² averaged momentum is stable below 2(1+β)/(1−β)/L; slower than 1/(100 L) it learns nothing."""

    def loss(model: Point, scale: Tensor) -> Tensor:
        return scale * 0.5 * curvature * model.x.square().sum()

    batches = torch.linspace(0.9, 1.1, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best rate may lie at the end of the few that were tried
        found = suggest(Point(), loss, batches, steps=600, finish="sgd")
    assert 0.01 / curvature < found.final_lr < 2 * 1.9 / 0.1 / curvature
    assert found.gamma * 600 == pytest.approx(1, rel=5e-3)


@pytest.mark.parametrize("finish", ["adam", "auto"])
def test_bounds_follow_from_the_mean_of_adam_s_rates(finish: str) -> None:
    """With gradients ±1 and ±100 the mean of √v is 50.5; SGD, which would take steps of 1 to 100, does not keep up."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.full((2,), 12.0))

    def loss(model: Steep, sign: Tensor) -> Tensor:
        return (torch.tensor([1.0, 100.0]) * model.x.abs()).sum() + 0 * sign

    found = suggest(Steep(), loss, torch.ones(50), steps=600, finish=finish)
    speed, share = {"adam": (0.01, 101), "auto": (0.1, (50 / 600) ** (1 / 3))}[finish]
    assert found.gamma * 600 == pytest.approx(speed, rel=5e-3)
    _, upper = bounds.evaluate("harmonic", found.gamma, 600)
    assert found.final_lr * upper == pytest.approx(share * found.lr / 50.5, rel=1e-2)


def test_the_bound_falls_further_in_a_longer_run(found: Suggestion) -> None:
    model, batches = regression()
    longer = suggest(model, mse, batches, steps=8 * 280, budget=int(1.4 * 280))
    assert longer.trials[0] == found.trials[0]
    assert longer.lr == found.lr
    assert longer.final_lr == pytest.approx(found.final_lr / 2, rel=0.01)


def test_bounds_close_where_sgd_ends_lower() -> None:
    """The minimum is 1000 away: too far for Adam, whose steps are at most lr, and SGD's are in proportion."""

    class Far(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.full((2,), 1000.0))

    def loss(model: Far, shift: Tensor) -> Tensor:
        return 0.5 * (model.x - shift).square().sum()

    noise = list(torch.randn(60, 2, generator=torch.Generator().manual_seed(0)))
    with pytest.warns(UserWarning, match="lr: the best rate, 9.49, was the largest"):
        found = suggest(Far(), loss, noise, steps=500, lr=3.0)
    assert found.trials[-1].kind == "closing"
    assert found.gamma * 500 == pytest.approx(10, rel=5e-3)
    assert "AdaBound has an advantage over Adam here" in str(found)
    with pytest.warns(UserWarning, match="lr: the best rate"):
        assert suggest(Far(), loss, noise, steps=500, lr=3.0, finish="adam").trials[-1].kind == "wide"


def test_bounds_stay_wide_where_one_bound_would_hold_most_elements_back() -> None:
    """Ten gradients of 10 and 10,000 of 0.005: the mean of √v is three times the median, and SGD moves only the ten."""
    slopes = torch.cat([torch.full((10,), 10.0), torch.full((10_000,), 0.005)])

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.full((10_010,), 12.0))

    def loss(model: Uneven, sign: Tensor) -> Tensor:
        return (slopes * model.x.abs()).sum() + 0 * sign

    found = suggest(Uneven(), loss, torch.ones(50), steps=600)
    falling, steady = found.trials[-2:]
    assert (falling.kind, steady.kind) == ("falling", "steady")
    assert decide.score(steady) < decide.score(falling)
    assert found.gamma * 600 == pytest.approx(0.001, rel=5e-3)
    assert found.final_lr == pytest.approx(found.lr / slopes.mean().item(), rel=1e-2)
    scaled = decide.smallest_rate(found.scores("lr"), found.start[0]) * (50 / 600) ** (1 / 3)
    assert found.lr == pytest.approx(scaled, rel=5e-3)
    assert "ended clearly higher than Adam" in found.reasons["final_lr"]


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


def test_sgd_has_to_gain_a_fiftieth_of_adam_s_decrease(found: Suggestion) -> None:
    """Every batch of the trial lower than Adam's by the same share of Adam's decrease."""
    adam = decide.best_of(found.trials, "lr")
    decrease, _ = decide.difference(decide.start_of(found.start, adam), adam.judged())
    for share, lower in ((0.008, False), (0.012, True)):
        other = replace(adam, kind="closing", losses=tuple(loss - share * decrease for loss in adam.losses))
        assert decide.is_lower(found.start, other, adam) == lower


def test_sgd_is_not_taken_if_it_ends_lower_by_chance(found: Suggestion) -> None:
    """One of its batches lower by much, all others higher by a little."""
    adam = decide.best_of(found.trials, "lr")
    losses = [loss + 0.01 for loss in adam.losses]
    losses[-1] -= 0.1 * len(losses)
    other = replace(adam, kind="closing", losses=tuple(losses))
    assert decide.score(other) < decide.score(adam)
    assert not decide.is_lower(found.start, other, adam)


def test_the_answer_follows_from_the_trials(found: Suggestion) -> None:
    again = decide.decide(found.start, found.trials, found.steps)
    assert again[:3] == pytest.approx((found.lr, found.final_lr, found.gamma), rel=5e-3), "three digits are kept"
    assert again.reasons == found.reasons


def test_validation_batches_decide() -> None:
    """The validation targets are the negative of the training targets: what learns least is the best."""
    model, batches = regression()
    opposed = [(x, -y) for x, y in batches[:6]]
    modes = set()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        modes.add((model.training, torch.is_grad_enabled()))
        return mse(model, batch)

    with pytest.raises(SuggestError, match="the loss never decreases"):
        suggest(model, loss, batches, steps=280, validation=opposed)
    assert modes == {(True, True), (False, False)}
    found = suggest(model, mse, batches, steps=280, validation=batches[:6])
    assert {len(trial.validation) for trial in found.trials} == {6} == {len(found.start)}
    assert Suggestion.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_fine_tuning_goes_down_to_rates_that_do_no_harm() -> None:
    """A perceptron trained on digits gets noisier images: Adam at 0.01 ends above where it started."""
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    x = x.float() / 16
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        noise = torch.randn(len(batch), 64, generator=torch.Generator().manual_seed(int(batch[0])))
        return nn.functional.cross_entropy(model(x[batch] + level * noise), y[batch])

    def train(optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        for batch in itertools.islice(batches, steps):
            optimizer.zero_grad()
            value = loss(model, batch)
            torch.autograd.backward(value)
            optimizer.step()
            losses.append(value.item())
        return losses

    batches = [torch.randint(1797, (64,), generator=generator) for _ in range(300)]
    level = 0.0
    train(torch.optim.Adam(model.parameters(), 1e-3), 300)
    level = 0.3
    found = suggest(model, loss, batches, steps=300, lr=0.1)
    assert found.scores("lr")[0.1] > sum(found.start) / len(found.start)
    assert found.lr < 0.01
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    ends = []
    for optimizer in (torch.optim.Adam(model.parameters(), 1e-3), AdaBound(model.parameters(), **found.options)):
        model.load_state_dict(kept)
        ends.append(sum(train(optimizer, 26)[-9:]))
    assert ends[1] < 1.02 * ends[0]


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
    assert len(set(found.start)) == len(found.start) == 2 * (140 // 12)
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
        (dict(steps=83), ValueError, "steps=83: must be an integer >= 84"),
        (dict(budget=10), ValueError, "budget=10: must be an integer >= 84"),
        (dict(repeats=0), ValueError, "repeats=0"),
        (dict(steps=math.nan), ValueError, "steps=nan: must be an integer"),
        (dict(steps=400.5), ValueError, "steps=400.5: must be an integer"),
        (dict(steps=math.inf), ValueError, "steps=inf: must be an integer"),
        (dict(clip=-1.0), ValueError, "clip=-1.0: must be a finite number > 0"),
        (dict(clip=math.nan), ValueError, "clip=nan: must be a finite number > 0"),
        (dict(batches=batches[:4]), ValueError, "batches: has 4; must have at least 5"),
        (dict(learning_rate=1), TypeError, "learning_rate=1: suggest takes the options betas"),
        (dict(lr=0.0), ValueError, r"lr=0.0: must be in \[1e-06, 10\]"),
        (dict(finish="sdg"), ValueError, "finish='sdg': must be one of auto, adam, sgd; did you mean sgd"),
        (dict(validation=batches[:4]), ValueError, "validation: has 4 batches; must have at least 5"),
        (dict(params=[{"params": model.parameters(), "gamma": 1.0}]), ValueError, "a group sets gamma=1.0"),
        (
            dict(params=[{"params": model[0].parameters(), "lr": 1.0}, {"params": model[4].parameters()}]),
            ValueError,
            "either all groups set lr",
        ),
        (
            dict(loss=nn.CrossEntropyLoss()),
            TypeError,
            r"loss=CrossEntropyLoss\(\): must be a function loss\(model, batch",
        ),
        (dict(loss=lambda model, batch: 0 * mse(model, batch)), SuggestError, "loss=0 on every batch before training"),
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


def test_a_decrease_that_may_be_chance_is_noted() -> None:
    """As above, but the first weights are a little off, and batches differ by much more."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, 0.2)
    nn.init.zeros_(model.bias)
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(50)]
    with pytest.warns(UserWarning, match=r"the loss decreases by [0-9.]+ ± [0-9.]+ only in trials"):
        suggest(model, mse, batches, steps=100)


def test_a_best_rate_at_the_end_of_the_trials_is_noted(endless: Suggestion) -> None:
    """A larger budget makes the trials longer, but tries no more rates: the note must not promise that."""
    with pytest.warns(UserWarning, match="was the largest that was tried; a better one may lie beyond$"):
        longer = suggest(Point(), slope, torch.linspace(0.9, 1.1, 50), steps=280, budget=1000, finish="adam")
    assert longer.scores("lr").keys() == endless.scores("lr").keys()
    assert max(endless.scores("lr")) == pytest.approx(10, rel=5e-3)
    assert endless.notes[0].startswith("lr: the best rate, 10, was the largest")


def test_rates_that_are_as_good_over_a_decade_are_noted() -> None:
    """The loss falls to 1 when x is 0.001, and stays there."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros(1))

    def loss(model: Step, scale: Tensor) -> Tensor:
        return scale * (1 + torch.relu(1 - 1000 * model.x).sum())

    with pytest.warns(UserWarning, match=r"lr: in 50 steps all rates from .* to 0.01 are as good, but for 1% of the"):
        suggest(Step(), loss, torch.linspace(0.9, 1.1, 50), steps=600, finish="adam")


def test_an_error_at_a_rate_that_is_too_large_is_a_failed_trial() -> None:
    """torch.distributions.Normal refuses NaN; an error in the first step has another cause."""
    model, batches = regression()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = mse(model, batch)
        if value.item() > 5 * limit:
            raise ValueError("scale must be positive")
        return value

    limit = mse(model, batches[0]).item()
    with pytest.warns(UserWarning, match="lr: the trial at .* failed: ValueError: scale must be positive"):
        found = suggest(model, loss, batches, steps=280, lr=10.0)
    assert 0 < found.lr < 1
    limit = 0.0
    with pytest.raises(ValueError, match="scale must be positive"):
        suggest(model, loss, batches, steps=280)


def test_second_moments_that_overflow_are_a_failed_trial() -> None:
    """The first step at 10 goes from x = 3 to −7: the loss, cosh 70, is a float32; the square of its slope is none."""

    def loss(model: Point, scale: Tensor) -> Tensor:
        return scale * (10 * model.x).cosh().mean()

    with pytest.warns(UserWarning, match="lr: the trial at 10 failed: OverflowError: Adam's second moments"):
        found = suggest(Point(), loss, torch.linspace(0.9, 1.1, 50), steps=280, lr=10.0)
    assert found.scores("lr")[10.0] == math.inf
    assert 0 < found.lr < 6


def test_a_fall_of_a_loss_with_a_large_offset_is_printed_with_enough_digits() -> None:
    model, batches = regression()
    reason = suggest(model, lambda model, batch: mse(model, batch) + 1e4, batches, steps=280).reasons["lr"]
    before, after = (word.rstrip(".") for word in reason.split("from ")[1].split(" Chosen")[0].split(" to "))
    assert float(before) - float(after) > 0.1


def test_steps_may_be_a_whole_float() -> None:
    model, batches = regression()
    assert suggest(model, mse, batches, steps=2e2).steps == 200  # type: ignore[arg-type]


def test_inside_autocast_the_rates_differ() -> None:
    """Autocast keeps its copies of the weights until its context ends."""
    model, batches = regression()
    with torch.autocast("cpu", torch.float16 if torch.backends.mps.is_available() else torch.bfloat16):
        found = suggest(model, lambda model, batch: mse(model, batch).float(), batches, steps=100, finish="adam")
    assert len(set(found.scores("lr").values())) == len(found.scores("lr"))


def test_steps_that_do_not_reach_the_model_are_recognised() -> None:
    model, batches = regression()
    kept = {name: param.detach().clone() for name, param in model.named_parameters()}

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = nn.functional.mse_loss(torch.func.functional_call(model, kept, (batch[0],)), batch[1])
        return value + sum((param - param.detach()).sum() for param in model.parameters())

    with pytest.raises(SuggestError, match="the losses are the same at all rates"):
        suggest(model, loss, batches, steps=100)


def test_lazy_modules_and_hooks_that_step_are_refused() -> None:
    model, batches = regression()
    with pytest.raises(ValueError, match="call it once on a batch"):
        suggest(nn.Sequential(nn.LazyLinear(1)), mse, batches, steps=100)
    handle = model[0].weight.register_post_accumulate_grad_hook(lambda param: None)
    with pytest.raises(ValueError, match="call suggest before registering it"):
        suggest(model, mse, batches, steps=100)
    handle.remove()


def test_a_recurrent_state_of_nan_is_an_error_that_names_reset() -> None:
    """A carried state that becomes NaN in one trial would make all later ones NaN."""
    model, batches = regression()
    carried, calls = 0.0, itertools.count()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal carried
        carried = math.nan if next(calls) == 50 else carried  # within the third trial
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
    groups = [{"params": [*model[4].parameters()], "weight_decay": 0.1}, {"params": model[1].weight}]
    assert suggest(model, mse, batches, steps=100, params=groups).lr > 0
    assert suggest(model, mse, batches, steps=100, params=model[4].named_parameters()).lr > 0


def test_ratios_of_learning_rates_are_kept(tmp_path: Any) -> None:
    """A group whose lr is 0 of the other's does not move; apply scales what AdaBound was made with."""
    model, batches = regression()
    before = model[0].weight.detach().clone()
    moved = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        moved.append(((model[0].weight - before).abs().max().item(), model[4].bias.item()))
        return mse(model, batch)

    groups = [{"params": [model[0].weight], "lr": 1e-9}, {"params": [*model[4].parameters()], "lr": 1e-3}]
    found = suggest(model, loss, batches, steps=100, params=groups)
    assert max(step for step, _ in moved) < 1e-4
    assert len({bias for _, bias in moved}) > 10
    optimizer = AdaBound([{**groups[0], "lr": 5e-4}, groups[1]])
    found.save(tmp_path / "suggestion.json")
    Suggestion.load(tmp_path / "suggestion.json").apply(optimizer)
    small, large = optimizer.param_groups
    assert (large["lr"], large["final_lr"], large["gamma"]) == (found.lr, found.final_lr, found.gamma)
    assert (small["lr"], small["base_lr"], small["final_lr"]) == (found.lr / 2, found.lr / 2, found.final_lr / 2)
    with pytest.raises(ValueError, match="optimizer=SGD: must be an AdaBound"):
        found.apply(torch.optim.SGD(model.parameters()))
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match=r"must be a file written by Suggestion\.save"):
        Suggestion.load(tmp_path / "other.json")


def test_a_tensor_lr_stays_a_tensor_and_the_bounds_follow_its_schedule(found: Suggestion) -> None:
    """As with a float; the checkpoint can be loaded."""
    (model, batches), lr = regression(), torch.tensor(1e-3)
    groups: list[dict[str, Any]] = [{"params": [*model[4].parameters()], "lr": torch.tensor(2e-3)}]
    assert suggest(model, mse, batches, steps=100, params=groups).lr > 0
    groups.insert(0, {"params": [*model[0].parameters()]})
    optimizer = AdaBound(groups, lr=lr)
    found.apply(optimizer)
    assert optimizer.param_groups[0]["lr"] is lr
    for group, part in zip(optimizer.param_groups, (0.5, 1.0), strict=True):
        assert float(group["lr"]) == group["base_lr"] == pytest.approx(part * found.lr)
        assert group["final_lr"] == pytest.approx(part * found.final_lr)
    lr.fill_(float(lr) / 10)
    assert optimizer.bounds_now()[0].final_lr == pytest.approx(0.05 * found.final_lr)
    AdaBound(groups).load_state_dict(optimizer.state_dict())


def test_apply_refuses_an_optimizer_whose_scheduler_would_undo_it(found: Suggestion) -> None:
    optimizer = AdaBound([nn.Parameter(torch.ones(2))], lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    with pytest.raises(ValueError, match="has a scheduler, which keeps its own rates; apply the suggestion before"):
        found.apply(optimizer)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["final_lr"]) == (1e-3, 0.1)


def test_a_loss_may_pop_the_labels_of_a_batch() -> None:
    model, batches = regression()
    named = [{"x": x, "y": y} for x, y in batches]
    found = suggest(model, lambda model, batch: mse(model, (batch["x"], batch.pop("y"))), named, steps=100)
    assert found.options == suggest(model, mse, batches, steps=100).options
    assert all(batch.keys() == {"x", "y"} for batch in named)


def test_sparse_gradients_are_refused_as_the_optimizer_refuses_them() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    with pytest.raises(RuntimeError, match="must be dense: use sparse=False in the embedding"):
        suggest(model, lambda model, words: model(words).square().mean(), list(torch.randint(10, (30, 8))), steps=100)


def test_gradients_are_clipped() -> None:
    """With a tiny norm SGD needs a larger rate."""
    model, batches = regression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free, clipped = (
            suggest(model, mse, batches, steps=280, clip=clip, eps=1e-30, finish="sgd") for clip in (None, 1e-3)
        )
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
    assert reasons[3] == f"AdaBound or Adam: {found.reasons['compared']}"
    assert f"Cost: {found.cost} training steps" in reasons[4]
    assert found._repr_html_().startswith(f"<table><tr><th>lr</th><td>{found.lr:.3g}</td></tr>")


def test_figure_marks_the_choices(found: Suggestion) -> None:
    pytest.importorskip("matplotlib")
    axes = found.figure().axes
    assert [one.get_xlabel() for one in axes] == ["lr", "final_lr"]
    for one, chosen in zip(axes, (found.lr, found.final_lr), strict=True):
        assert any(line.get_xdata()[0] == chosen for line in one.lines)


def test_figure_shows_every_trial(endless: Suggestion) -> None:
    """Also one that diverged, and losses below zero."""
    pytest.importorskip("matplotlib")
    broken = replace(endless, trials=(Trial("lr", 99.0, (1.0, math.inf)), *endless.trials))
    first, second = broken.figure().axes
    shown = {line.get_label(): sorted(line.get_xdata()) for axes in (first, second) for line in axes.lines}
    for kind in ("wide", "steady"):
        one = Trial(kind, 2.5, (1.0, 0.9, 0.8))
        drawn = replace(endless, trials=(*endless.trials, one)).figure().axes[1]
        assert any(list(line.get_xdata()) == [2.5] for line in drawn.lines)
    assert shown["Adam"] == sorted(broken.scores("lr"))
    assert shown["SGD"] == sorted(broken.scores("final_lr"))
    assert len(first.lines) + len(second.lines) == len({trial.kind for trial in broken.trials}) + 5
