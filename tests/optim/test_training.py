"""A step inside the backward pass, and param groups without decay for biases."""

import copy

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import dynabound
from dynabound import AdaBound, param_groups, step_in_backward
from dynabound.lens import LearningRateLens


class Tied(nn.Module):
    """The first and the last layer share a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def model(seed=0):
    torch.manual_seed(seed)
    return Tied()


def train(net, optimizer, scheduler, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 8, generator=generator)).square().sum().backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(amsbound=True, weight_decay=0.1),
        dict(foreach=True),
        dict(foreach=False),
        dict(capturable=True),
        dict(state_dtype=torch.bfloat16),
        dict(bounds="linear", gamma=0.1, release=0),
    ],
    ids=str,
)
def test_a_step_in_backward_is_the_usual_step_bit_for_bit(options):
    """With a schedule, a lens and a checkpoint in the middle; the tied weight is updated once per step."""
    results = []
    for in_backward in (False, True):
        net = model()
        optimizer = AdaBound(param_groups(net, 0.1), **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        handle = step_in_backward(optimizer) if in_backward else None
        with LearningRateLens(optimizer, net, every=3) as lens:
            train(net, optimizer, scheduler, 10)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            train(net, optimizer, scheduler, 10, seed=2)
        if handle:
            handle.remove()
        train(net, optimizer, scheduler, 5, seed=3)
        results.append((net.state_dict(), optimizer.state_dict()["state"], lens.records()))
    (weights, state, records), (usual_weights, usual_state, usual_records) = results
    torch.testing.assert_close(weights, usual_weights, rtol=0, atol=0)
    torch.testing.assert_close(state, usual_state, rtol=0, atol=0)
    assert records == usual_records
    assert {int(entry["step"]) for entry in state.values()} == {25}


class LiveBytes(TorchDispatchMode):
    """The largest number of bytes in live storages."""

    def __init__(self, tensors):
        super().__init__()
        self.storages, self.peak = {}, 0
        self.add(tensors)

    def add(self, tensors):
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.add(tree_iter(out))
        return out


def peak_of_training(in_backward, **options):
    """The peak of live tensors in bytes per parameter, over two steps of 16 layers."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(16)))
    optimizer = AdaBound(net.parameters(), **options)
    if in_backward:
        step_in_backward(optimizer)
    with LiveBytes(net.parameters()) as live:
        for _ in range(2):
            net(torch.ones(1, 128)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return live.peak / sum(p.numel() for p in net.parameters())


def test_the_peak_of_memory():
    """Parameters, two moments and one gradient of 16, in float32, and a few small tensors: 3 + 1/16 times 4 bytes."""
    assert 16 <= peak_of_training(in_backward=False) < 16.2  # the test sees all that is there
    assert 12 <= peak_of_training(in_backward=True) <= 12.8
    assert 8 <= peak_of_training(in_backward=True, state_dtype=torch.bfloat16) <= 8.8
    assert 10.25 <= peak_of_training(in_backward=False, state_dtype="8bit") <= 10.4
    assert 6.25 <= peak_of_training(in_backward=True, state_dtype="8bit") <= 6.8


def test_what_needs_all_gradients_raises():
    net = model()
    optimizer = AdaBound(net.parameters())
    step_in_backward(optimizer)
    scaler = torch.amp.GradScaler("cpu")

    def loss():
        return net(torch.ones(8)).sum()

    scaler.scale(loss()).backward()
    for use in (
        lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
        lambda: nn.utils.clip_grad_value_(net.parameters(), 1.0),
        lambda: loss().backward(),  # accumulation
        lambda: scaler.step(optimizer),
        lambda: net.norm.weight.grad + 1,
    ):
        with pytest.raises(RuntimeError, match=r"freed by step_in_backward.*remove\(\).*optimizer.step\(\)"):
            use()
    assert "freed" in repr(net.norm.weight.grad)
    assert {int(entry["step"]) for entry in optimizer.state.values()} == {1}
    optimizer.zero_grad()
    loss().backward()


def test_gradients_that_backward_did_not_use():
    """Parameters that were added or unfrozen later, and gradients that were set by hand, wait for step()."""
    net = model()
    net.norm.bias.requires_grad_(False)
    optimizer = AdaBound([net.first.weight, net.norm.bias])
    with step_in_backward(optimizer):
        optimizer.add_param_group({"params": [net.first.bias]})
        net.norm.bias.requires_grad_(True)
        net(torch.ones(8)).sum().backward()
        assert set(optimizer.state) == {net.first.weight}
        optimizer.step()
        assert {int(optimizer.state[p]["step"]) for p in (net.first.weight, net.norm.bias, net.first.bias)} == {1}
        optimizer.zero_grad()
        net.first.weight.grad = torch.ones(8, 8)
        optimizer.step()
        assert int(optimizer.state[net.first.weight]["step"]) == 2


def test_a_closure_of_step():
    nets = model(), model()
    optimizers = [AdaBound(net.parameters()) for net in nets]
    step_in_backward(optimizers[1])
    for net, optimizer in zip(nets, optimizers, strict=True):
        for _ in range(2):

            def closure(net=net, optimizer=optimizer):
                optimizer.zero_grad()
                loss = net(torch.ones(8)).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    torch.testing.assert_close(nets[0].state_dict(), nets[1].state_dict(), rtol=0, atol=0)


def test_an_error_names_the_parameter():
    net = nn.ModuleDict({"table": nn.Embedding(6, 4, sparse=True)})
    step_in_backward(AdaBound(net.named_parameters()))
    with pytest.raises(RuntimeError, match=r"parameter 'table.weight'.*sparse gradient"):
        net["table"](torch.tensor([1])).sum().backward()


def test_what_cannot_step_in_backward():
    x = nn.Parameter(torch.ones(1))
    with pytest.raises(TypeError, match="Adam: must be an AdaBound"):
        step_in_backward(torch.optim.Adam([x]))
    with pytest.raises(ValueError, match="differentiable=True"):
        step_in_backward(AdaBound([x], differentiable=True))
    optimizer = AdaBound([x])
    handle = step_in_backward(optimizer)
    with pytest.raises(RuntimeError, match="already steps in backward"):
        step_in_backward(optimizer)
    handle.remove()
    step_in_backward(optimizer)


def test_param_groups():
    net = nn.ModuleDict(
        {
            "embedding": nn.Embedding(5, 4),
            "attention": nn.MultiheadAttention(4, 2),
            "convolution": nn.Conv2d(3, 2, 3),
            "norm": nn.BatchNorm2d(2),
        }
    )
    net["position"] = nn.ParameterDict({name: nn.Parameter(torch.ones(3, 3)) for name in ("bias", "table")})
    net["tied"] = nn.Linear(4, 5, bias=False)
    net["tied"].weight = net["embedding"].weight
    names = {p: name for name, p in net.named_parameters()}
    decayed, others = param_groups(net, 0.1)
    assert [names[p] for p in decayed["params"]] == [
        "embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight", "convolution.weight",
        "position.table",
    ]  # fmt: skip
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    dynabound.AdaBoundW([decayed, others])
    with pytest.raises(ValueError, match=r"weight_decay=-1"):
        param_groups(net, -1)
