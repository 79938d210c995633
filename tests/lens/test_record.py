import gc
import math
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn, optim

from dynabound import AdaBound, AMSBound
from dynabound.lens import LearningRateLens, effective_lr
from helpers.lens_training import make_model, train

OPTIMIZERS = [
    *(optim.SGD, optim.ASGD, optim.Rprop, optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Adafactor, optim.Adam),
    *(optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, AdaBound, AMSBound),
]


@pytest.mark.parametrize("cls", OPTIMIZERS)
def test_training_is_bit_identical_with_and_without_a_lens(cls):
    def run(with_lens):
        model = make_model()
        optimizer = cls(model.parameters(), lr=0.01)
        lens = LearningRateLens(optimizer, model, every=1, sample=5) if with_lens else None
        losses = train(model, optimizer, 12, lens)
        return losses, [p.tolist() for p in model.parameters()], torch.get_rng_state().tolist()

    assert run(True) == run(False)


@pytest.mark.parametrize("cls", OPTIMIZERS)
def test_what_is_recorded_are_the_statistics_of_effective_lr(cls):
    model = make_model()
    optimizer = cls(model.parameters(), lr=0.01)
    lens = LearningRateLens(optimizer, model, every=3, extremes=(0.02, 0.05))
    train(model, optimizer, 7, lens)
    assert lens.steps == [1, 4, 7]
    for name, param in model.named_parameters():
        rates = effective_lr(optimizer, param).numpy()
        row = lens.latest()[name]
        assert row["min"] == rates.min()
        assert row["max"] == rates.max()
        for column, q in (("q5", 0.05), ("q25", 0.25), ("median", 0.5), ("q75", 0.75), ("q95", 0.95)):
            assert row[column] == np.quantile(rates, q, method="inverted_cdf")
        assert row["below"] == np.mean(rates < np.float32(0.02))
        assert row["above"] == np.mean(rates > np.float32(0.05))
        assert row["nan"] == row["inf"] == 0


def test_bounds_and_clipped_shares():
    model = make_model()
    optimizer = AdaBound(model.parameters(), lr=0.01, final_lr=0.1, gamma=0.1)
    adam = AdaBound(model.parameters(), bounds=("constant", 0.0, math.inf))
    lens = LearningRateLens(optimizer, model, every=1)
    train(model, optimizer, 10, lens)
    for name, param in model.named_parameters():
        # The rate that Adam would have taken, from the same state: 0.01·√(1−β₂ᵗ)/(1−β₁ᵗ)/(√v + ε).
        adam.state[param] = optimizer.state[param]
        adam.param_groups[0]["lr"] = 0.01
        free = effective_lr(adam, param).numpy()
        row = lens.latest()[name]
        assert (row["lower"], row["upper"]) == pytest.approx((0.05, 0.2))
        assert row["clipped_low"] == np.mean(free < np.float32(0.05))
        assert row["clipped_high"] == np.mean(free > np.float32(0.2))
    assert 0 < lens.summary()["all"]["clipped_low"] < 1
    assert lens.series("0.weight", "upper").tolist() == pytest.approx([0.1 * (1 + 10 / t) for t in range(1, 11)])


def test_sampled_quantiles_are_unbiased_and_the_ends_exact():
    model = nn.Linear(300, 100, bias=False)
    optimizer = optim.Adagrad(model.parameters(), lr=1.0, eps=0.0)
    model.weight.grad = 1 / torch.randperm(30_000, generator=torch.Generator().manual_seed(3)).add(1.0).view(100, 300)
    lenses = [LearningRateLens(optimizer, model, sample=100, seed=seed).attach() for seed in range(200)]
    optimizer.step()  # the rates are a permutation of 1 … 30,000
    for quantile, column in ((0.05, "q5"), (0.5, "median"), (0.95, "q95")):
        found = np.array([lens.series("weight", column).item() for lens in lenses]) / 30_000
        # 200 means of 100 draws: a standard error of √(q(1−q)/100/200); five of them.
        assert abs(found.mean() - quantile) < 5 * math.sqrt(quantile * (1 - quantile) / 20_000) + 0.005
        assert len(set(found)) > 50
    exact = effective_lr(optimizer, model.weight)
    assert {lens.series("weight", "min").item() for lens in lenses} == {exact.min().item()}
    assert {lens.series("weight", "max").item() for lens in lenses} == {exact.max().item()}
    again = LearningRateLens(optimizer, model, sample=100, seed=7).attach()
    optimizer.zero_grad()
    optimizer.step()
    assert again.series("weight", "median").item() == lenses[7].series("weight", "median").item()


def test_param_groups_frozen_parameters_and_parameters_from_elsewhere():
    model = make_model()
    model[0].bias.requires_grad_(False)
    extra = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": [*model[3].parameters(), extra]}], lr=0.2
    )
    lens = LearningRateLens(optimizer, model, every=1)
    train(model, optimizer, 2, lens)
    parameters = lens.summary()["parameters"]
    assert list(parameters) == ["0.weight", "0.bias", "3.weight", "3.bias", "param_groups[1][2]"]
    medians = [row["median"] for row in parameters.values()]
    assert medians == [pytest.approx(0.1), None, pytest.approx(0.2), pytest.approx(0.2), None]
    assert [row["updated"] for row in parameters.values()] == [True, False, True, True, False]
    assert lens.summary()["all"]["elements"] == 48 + 24 + 3


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_a_parameter_that_gets_gradients_late_or_stops_getting_them(cls):
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    model = nn.ParameterDict({"first": first, "second": second})
    optimizer = cls(model.parameters(), lr=0.1)
    with LearningRateLens(optimizer, model, every=1) as lens:
        for param in (first, second):
            optimizer.zero_grad()
            param.grad = torch.ones(2)
            optimizer.step()
    assert lens.series("second", "median").isnan().tolist() == [True, False]
    assert lens.series("first", "median").isnan().tolist() == [False, False]


def test_a_group_that_is_added_later():
    model = make_model()
    optimizer = optim.Adam(model[0].parameters(), lr=0.1)
    with LearningRateLens(optimizer, model, every=1) as lens:
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": model[3].parameters()})
        train(model, optimizer, 1)
    assert lens.values().shape == (3, 4, len(lens.columns))
    assert lens.series("3.weight", "max").isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_the_rate_is_the_one_before_the_scheduler_stepped(lr):
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    lens = LearningRateLens(optimizer, model, every=2)
    train(model, optimizer, 4, lens, scheduler)
    assert lens.steps == [1, 3, 4]  # the last one at detach
    assert lens.series("0.weight", "max").tolist() == pytest.approx([0.1, 0.025, 0.0125])


def test_the_betas_are_those_before_the_scheduler_stepped():
    model = make_model()
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)  # also cycles beta1
    with LearningRateLens(optimizer, model) as lens:
        for _ in range(4):
            train(model, optimizer, 1)
            used = effective_lr(optimizer, model[0].weight).max().item()
            scheduler.step()
    assert lens.steps == [1, 4]
    assert lens.latest()["0.weight"]["max"] == used != effective_lr(optimizer, model[0].weight).max().item()


def test_a_resumed_optimizer_continues_its_count():
    model = make_model()
    optimizer = AdaBound(model.parameters(), gamma=0.1)
    train(model, optimizer, 5)
    resumed = AdaBound(model.parameters(), gamma=0.1)
    lens = LearningRateLens(resumed, model, every=2).attach()
    resumed.load_state_dict(optimizer.state_dict())
    train(model, resumed, 3)
    assert lens.steps == [6, 8]
    assert lens.series("0.weight", "upper").tolist() == pytest.approx([0.1 * (1 + 10 / t) for t in (6, 8)])


def test_attach_and_detach_any_number_of_times():
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    lens = LearningRateLens(optimizer, model, every=1)
    lens.detach()
    assert lens.attach() is lens.attach()
    train(model, optimizer, 2)
    lens.detach()
    lens.detach()
    train(model, optimizer, 2)
    lens.attach()
    train(model, optimizer, 1)
    assert lens.steps == [1, 2, 3]  # plain SGD does not know of the steps that the lens did not see


def test_nothing_is_kept_alive_after_detach():
    model = make_model()
    optimizer = AdaBound(model.parameters())
    lens = LearningRateLens(optimizer, model, every=1)
    train(model, optimizer, 2, lens)
    watched = [weakref.ref(thing) for thing in (model, optimizer, *model.parameters())]
    watched += [weakref.ref(tensor) for state in optimizer.state.values() for tensor in state.values()]
    assert len(watched) == 2 + 4 + 12
    del model, optimizer
    gc.collect()
    assert [ref for ref in watched if ref() is not None] == []
    assert lens.summary()["step"] == 2
    with pytest.raises(RuntimeError, match="optimizer no longer exists"):
        lens.attach()


def test_the_patches_do_not_hold_on_to_whole_tensors():
    model = nn.Linear(100, 100)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with LearningRateLens(optimizer, model) as lens:
        model(torch.ones(100)).sum().backward()
        optimizer.step()
    assert {name: patch.untyped_storage().nbytes() for name, patch in lens.patches.items()} == {
        "weight": 36,
        "bias": 40,
    }


# A process of its own, left by os._exit: freeing a DDP model after its last all-reduce can deadlock in torch, which
# joins gloo's thread with the GIL held while that thread waits for the GIL.
DISTRIBUTED = """
import os, sys, torch
from dynabound.lens import LearningRateLens
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
inner = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.Adam(model.parameters())
with LearningRateLens(optimizer, torch.compile(model, backend="eager"), every=1) as lens:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
print(lens.steps, [name for name, row in lens.latest().items() if row is not None], flush=True)
os._exit(0)
"""


@pytest.mark.processes
def test_names_are_those_of_the_model_inside(tmp_path):
    command = [sys.executable, "-c", DISTRIBUTED, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.stdout == "[1, 2] ['0.weight', '0.bias', '1.weight', '1.bias']\n", result.stderr


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch.compile
def test_a_compiled_step_is_watched():
    torch.compiler.reset()
    model = make_model()
    optimizer = AdaBound(model.parameters())
    lens = LearningRateLens(optimizer, model, every=1).attach()
    model(torch.ones(1, 6)).sum().backward()
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        step()
    assert lens.steps == [1, 2, 3]
