"""What each of two processes does in test_distributed.py: a function per check, every rank runs them all."""

import copy
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dynabound import AdaBound

OPTIONS = dict(lr=1e-2, gamma=0.05, amsbound=True, weight_decay=0.01)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


def batches(steps, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 6, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)]


def train(model, optimizer, data, sharded=True):
    """One step per batch; a rank of two takes its half."""
    for x in data:
        optimizer.zero_grad()
        part = x.chunk(2)[dist.get_rank()] if sharded else x
        model(part).square().mean().backward()
        optimizer.step()


def alone(steps_and_seeds, dtype=torch.float64):
    """The parameters that one process gets to on whole batches."""
    model = network(dtype)
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    for steps, seed in steps_and_seeds:
        train(model, optimizer, batches(steps, seed, dtype), sharded=False)
    return [p.detach() for p in model.parameters()]


def assert_close(params, expected, **tolerance):
    for p, q in zip(params, expected, strict=True):
        whole = p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        torch.testing.assert_close(whole, q, **(tolerance or dict(rtol=1e-10, atol=1e-12)))


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


def sharded(dtype=torch.float64):
    mesh = init_device_mesh("cpu", (2,))
    model = network(dtype)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def check_fsdp2(folder):
    model = sharded()
    train(model, AdaBound(model.parameters(), **OPTIONS), batches(10, 1))
    assert_close(model.parameters(), alone([(10, 1)]))


def check_distributed_checkpoint(folder):
    """Sharded save to disk, load into a fresh optimizer with another lr, go on; the same through a full state dict."""
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


def main(rank, folder):
    """Run every check; an error is left in a file for the test to show."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    try:
        for name, check in sorted(globals().items()):
            if name.startswith("check_"):
                check(folder)
                if rank == 0:
                    print("passed", name, flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the other rank may be waiting in a collective: do not wait for it in turn
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch may hang on its way out: a freed model waits for gloo's thread, which waits for the interpreter


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
