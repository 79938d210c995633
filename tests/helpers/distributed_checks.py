"""The checks of test_distributed.py: one function each; both processes run all of them."""

import copy
import os
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from dynabound import AdaBound, AdaBoundW, AMSBound, step_in_backward
from dynabound.lens import LearningRateLens, effective_lr

OPTIONS = dict(lr=1e-2, gamma=0.05, amsbound=True, weight_decay=0.01)


FSDP2_ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # not in torch 2.6
"""Whether FSDP2 runs without an accelerator."""


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


def batches(steps, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 6, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)]


def train(model, optimizer, data, sharded=True, scheduler=None):
    """One step per batch; with ``sharded`` each of the two ranks uses its half."""
    for x in data:
        optimizer.zero_grad()
        part = x.chunk(2)[dist.get_rank()] if sharded else x
        model(part).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def warm_up(optimizer):
    """From 0 to the full rate in eight steps, then constant."""
    return LambdaLR(optimizer, lambda step: min(1.0, step / 8))


def alone(steps_and_seeds, optimizer_class=AdaBound, options=OPTIONS, schedule=lambda _: None):
    """The parameters after training in one process on full batches."""
    model = network()
    optimizer = optimizer_class(model.parameters(), **options)
    scheduler = schedule(optimizer)
    for steps, seed in steps_and_seeds:
        train(model, optimizer, batches(steps, seed), sharded=False, scheduler=scheduler)
    return [p.detach() for p in model.parameters()]


def assert_close(params, expected, **tolerance):
    for p, q in zip(params, expected, strict=True):
        full = p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        torch.testing.assert_close(full, q, **(tolerance or dict(rtol=1e-10, atol=1e-12)))


def check_ddp(folder):
    model = DistributedDataParallel(network())
    train(model, AdaBound(model.parameters(), **OPTIONS), batches(10, 1))
    assert_close(model.parameters(), alone([(10, 1)]))


def check_zero_redundancy(folder):
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdaBound, **OPTIONS)
    train(model, optimizer, batches(5, 1))
    optimizer.consolidate_state_dict(to=0)
    state = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state)
    other = DistributedDataParallel(copy.deepcopy(model.module))
    resumed = ZeroRedundancyOptimizer(other.parameters(), AdaBound, **{**OPTIONS, "lr": 3.0})
    resumed.load_state_dict(state[0])
    train(other, resumed, batches(5, 2))
    assert_close(other.parameters(), alone([(5, 1), (5, 2)]))


def sharded(dtype=torch.float64, **options):
    mesh = init_device_mesh("cpu", (2,))
    model = network(dtype)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, **options)
    return model


def check_fsdp2(folder):
    options = dict(lr=1e-2, gamma=0.05, weight_decay=0.01)
    for optimizer_class in (AdaBound, AMSBound, AdaBoundW):
        for foreach in (None, False):
            model = sharded()
            train(model, optimizer_class(model.parameters(), foreach=foreach, **options), batches(10, 1))
            assert_close(model.parameters(), alone([(10, 1)], optimizer_class, options))


def check_fsdp2_low_memory_state(folder):
    """Every shard gets the bits of an optimizer that has only this shard; with a resume in the middle."""
    release = dict(release=0, bounds="linear", gamma=0.25)
    for options in (dict(state_dtype="8bit"), dict(state_dtype="8bit", amsbound=True), release):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 64))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        shards = [nn.Parameter(p.to_local().detach().clone()) for p in model.parameters()]
        optimizer, other = AdaBound(model.parameters(), **options), AdaBound(shards, **options)
        for step in range(8):
            if step in (2, 6):  # before and after the release
                state = get_optimizer_state_dict(model, optimizer)
                optimizer = AdaBound(model.parameters(), **options)
                set_optimizer_state_dict(model, optimizer, state)
            optimizer.zero_grad()
            model(torch.randn(8, 128)).square().sum().backward()
            for p, shard in zip(model.parameters(), shards, strict=True):
                shard.grad = p.grad.to_local().clone()
            optimizer.step()
            other.step()
            for p, shard in zip(model.parameters(), shards, strict=True):
                assert torch.equal(p.to_local(), shard)
                state, expected = optimizer.state[p], other.state[shard]
                assert state.keys() == expected.keys()
                assert all(torch.equal(state[k].to_local(), expected[k]) for k in state if k != "step")
        assert ("exp_avg_sq" in other.state[shards[0]]) == (options is not release)
        assert (other.state[shards[0]]["exp_avg"].dtype == torch.uint8) == (options is not release)


def check_fsdp2_steps_in_backward(folder):
    model = sharded()
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    with step_in_backward(optimizer):
        train(model, optimizer, batches(10, 1))
        assert_close(model.parameters(), alone([(10, 1)]))
        optimizer.zero_grad()
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
        assert all(int(state["step"]) == 11 for state in optimizer.state.values())  # before step()


def check_ddp_refuses_a_step_in_backward(folder):
    """Its gradients are not reduced yet when the hooks see them."""
    model = DistributedDataParallel(network())
    with step_in_backward(AdaBound(model.parameters())), pytest.raises(RuntimeError, match="freed by step_in_backward"):
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()


def check_gradients_with_other_placements(folder):
    """As tensor parallelism may produce them; the step must then redistribute them."""
    model, plain = sharded(), network()
    optimizers = [AdaBound(m.parameters(), **OPTIONS) for m in (model, plain)]
    for step in range(3):
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            q.grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(step), dtype=q.dtype)
            p.grad = distribute_tensor(q.grad, p.device_mesh, [Replicate()])
        for optimizer in optimizers:
            optimizer.step()
    assert_close(model.parameters(), [q.detach() for q in plain.parameters()])


def check_autograd_notices_the_step(folder):
    """A graph recorded before a step cannot be used after it, because the weights have changed."""
    for options in ({}, dict(fused=False)):
        param = torch.nn.Parameter(distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)]))
        loss = (param**3).sum()
        loss.backward(retain_graph=True)
        AdaBound([param], **options).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def check_state_dicts_in_the_middle_of_a_warm_up(folder):
    """Every option of torch: load into a new model and an optimizer with another lr, and continue."""
    expected = alone([(5, 1), (5, 2)], schedule=warm_up)
    kinds = [
        (StateDictOptions(), StateDictOptions()),
        (StateDictOptions(cpu_offload=True), StateDictOptions(cpu_offload=True)),
        (StateDictOptions(full_state_dict=True), StateDictOptions(full_state_dict=True)),
        (
            StateDictOptions(full_state_dict=True, cpu_offload=True),  # empty on all ranks but 0
            StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        ),
    ]
    for saving, loading in kinds:
        model = sharded()
        optimizer = AdaBound(model.parameters(), **OPTIONS)
        scheduler = warm_up(optimizer)
        train(model, optimizer, batches(5, 1), scheduler=scheduler)
        weights, state = get_state_dict(model, optimizer, options=saving)
        other = sharded()
        resumed = AdaBound(other.parameters(), **{**OPTIONS, "lr": 7.0, "gamma": 0.5, "weight_decay": 0.0})
        again = warm_up(resumed)
        if loading.broadcast_from_rank0:  # set_state_dict would ignore the empty dict of rank 1
            set_model_state_dict(other, weights, options=loading)
            set_optimizer_state_dict(other, resumed, state, options=loading)
        else:
            set_state_dict(other, resumed, model_state_dict=weights, optim_state_dict=state, options=loading)
        again.load_state_dict(scheduler.state_dict())
        assert resumed.param_groups[0]["base_lr"] == OPTIONS["lr"]
        assert resumed.param_groups[0]["lr"] == OPTIONS["lr"] * 5 / 8
        assert all(type(entry["step"]) is torch.Tensor and entry["step"] == 5 for entry in resumed.state.values())
        train(other, resumed, batches(5, 2), scheduler=again)
        assert_close(other.parameters(), expected)


def check_the_probe_step_of_get_state_dict_changes_nothing(folder):
    """To create the state, torch makes a step at lr = 0 and gradients of 0. Other steps at lr = 0 count."""
    for schedule in (lambda _: None, warm_up):
        model = sharded()
        optimizer = AdaBound(model.parameters(), box=(-0.1, 0.1), **OPTIONS)
        scheduler = schedule(optimizer)
        before = [p.full_tensor().clone() for p in model.parameters()]
        _, state = get_state_dict(model, optimizer)
        assert_close(model.parameters(), before, rtol=0, atol=0)
        for entry in state["state"].values():
            assert entry["step"] == 0
            assert not any(entry[name].full_tensor().any() for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
        train(model, optimizer, batches(5, 1), scheduler=scheduler)
        assert all(entry["step"] == 5 for entry in optimizer.state.values())
        expected = alone([(5, 1)], options={**OPTIONS, "box": (-0.1, 0.1)}, schedule=schedule)
        assert_close(model.parameters(), expected)


def check_a_plain_checkpoint_resumes_in_shards(folder):
    """The reverse raises: one process cannot gather the shards of the others."""
    plain, model = network(), sharded()
    optimizer, resumed = (AdaBound(m.parameters(), **OPTIONS) for m in (plain, model))
    train(plain, optimizer, batches(5, 1), sharded=False)
    set_model_state_dict(model, plain.state_dict(), options=StateDictOptions(full_state_dict=True))
    resumed.load_state_dict(optimizer.state_dict())
    train(model, resumed, batches(5, 2))
    assert_close(model.parameters(), alone([(5, 1), (5, 2)]))
    with pytest.raises(ValueError, match=r"is a DTensor, but the parameter is not: save full .*full_state_dict=True"):
        optimizer.load_state_dict(resumed.state_dict())


def check_mixed_precision(folder):
    """With computation in bfloat16, parameters, gradients and state stay in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(torch.float32, mp_policy=policy)
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        output = model(batches(1, 1, torch.float32)[0])
        assert output.dtype == torch.bfloat16
        losses.append(output.float().square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for p in model.parameters():
        assert p.dtype == p.grad.dtype == optimizer.state[p]["exp_avg"].dtype == torch.float32


def check_lens(folder):
    """The rates of shards are shards; a lens records all of them on every rank."""
    records = []
    for model, is_sharded in ((sharded(), True), (network(), False)):
        optimizer = AdaBound(model.parameters(), **OPTIONS)
        with LearningRateLens(optimizer, model, every=2) as lens:
            train(model, optimizer, batches(5, 1), sharded=is_sharded)
        records.append((lens, [effective_lr(optimizer, p) for p in model.parameters()]))
    (lens, rates), (other, expected) = records
    assert_close(rates, expected)
    assert [rate.to_local().shape for rate in rates] == [p.to_local().shape for p in rates]
    assert lens.steps == other.steps == [1, 3, 5]
    ours, theirs = lens.summary()["parameters"], other.summary()["parameters"]
    assert ours.keys() == theirs.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for name, row in ours.items():
        for key, value in row.items():
            torch.testing.assert_close(torch.tensor(value), torch.tensor(theirs[name][key]), equal_nan=True)


def check_distributed_checkpoint(folder):
    """Sharded save to disk, load into a new optimizer with another lr, continue; the same with a full state dict."""
    model = sharded()
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    train(model, optimizer, batches(5, 1))
    state = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=os.path.join(folder, "sharded"))
    for options in (None, StateDictOptions(full_state_dict=True), StateDictOptions(flatten_optimizer_state_dict=True)):
        other = sharded()
        resumed = AdaBound(other.parameters(), **{**OPTIONS, "lr": 2.0})
        if options:
            other.load_state_dict(model.state_dict())
            optim = get_optimizer_state_dict(model, optimizer, options=options)
        else:
            loaded = {"model": other.state_dict(), "optim": get_optimizer_state_dict(other, resumed)}
            dcp.load(loaded, checkpoint_id=os.path.join(folder, "sharded"))
            other.load_state_dict(loaded["model"])
            optim = loaded["optim"]
        set_optimizer_state_dict(other, resumed, optim, options=options)
        train(other, resumed, batches(5, 2))
        assert_close(other.parameters(), alone([(5, 1), (5, 2)]))


def check_low_precision_state_survives(folder):
    model = sharded(torch.bfloat16)
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    train(model, optimizer, batches(3, 1, torch.bfloat16))
    state = get_optimizer_state_dict(model, optimizer)
    resumed = AdaBound(model.parameters(), **OPTIONS)
    set_optimizer_state_dict(model, resumed, state)
    for p in model.parameters():
        for name, value in optimizer.state[p].items():
            again = resumed.state[p][name]
            assert again.dtype == value.dtype
            assert again.dtype == (torch.int64 if name == "step" else torch.float32)
            local, same = (v.to_local() if hasattr(v, "to_local") else v for v in (value, again))
            assert torch.equal(local, same)


def run_all(rank, folder):
    """Run every check; what is printed, errors too, goes to a file of the folder."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"  # some virtual machines report bfloat16 support that they lack
    sys.stdout = sys.stderr = open(f"{folder}/rank-{rank}.txt", "w")  # noqa: SIM115
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        for name, check in sorted(globals().items()):
            if name.startswith("check_"):
                word = "passed"
                if FSDP2_ON_CPU or "sharded" not in check.__code__.co_names:
                    check(folder)
                else:
                    word = "skipped"
                if rank == 0:
                    print(word, name, flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # do not wait for the other rank, which may be blocked in a collective
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch may deadlock at exit between a freed model, gloo's thread and the interpreter
