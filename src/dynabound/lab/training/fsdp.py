"""A sharded model (FSDP2): each process has a part of every parameter and of the optimizer's state."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from dynabound._dtensor import shard_like
from dynabound.lab.training import distributed


def shard(model: nn.Module, device: torch.device) -> DeviceMesh:
    """Shard every parameter among the processes, block by block: one block is gathered at a time."""
    # It warns about writing into the logits, which is not done here.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(device.type, (distributed.world_size(),))
    for block in getattr(model, "blocks", model.children()):
        if next(block.parameters(), None) is not None:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return mesh


def shard_states(
    model_state: dict[str, Any], optimizer_state: dict[str, Any], model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two states with every full tensor sharded like its parameter; all processes call this."""
    own = model.state_dict()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    entries = {
        index: {key: _shard(value, params[index]) for key, value in entry.items()}
        for index, entry in optimizer_state["state"].items()
    }
    tensors = {name: _shard(tensor, own[name]) for name, tensor in model_state.items()}
    return tensors, {**optimizer_state, "state": entries}


def _shard(value: Any, like: Tensor) -> Any:
    return shard_like(value.to(like.device), like) if isinstance(value, Tensor) and value.shape == like.shape else value
