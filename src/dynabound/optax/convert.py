"""Moments from torch to Optax and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynabound.optax.lens import find

__all__ = ["from_torch", "to_torch"]

Arrays = Sequence[np.ndarray[Any, Any]]


def from_torch(state: Any, state_dict: Mapping[str, Any], to_params: Callable[[Arrays], Any]) -> Any:
    """``state`` with the moments and the step count of a torch AdaBound.

    Hyper-parameters are not in an Optax state: construct the optimizer with the same, and with
    ``base_learning_rate=group["base_lr"]`` where a schedule is used.

    Args:
        state: a state of the Optax optimizer, as ``tx.init(params)`` returns it.
        state_dict: the state of ``dynabound.AdaBound``, or of an Adam, which has the same entries.
        to_params: your conversion of weights: from NumPy arrays in torch's order of parameters to the tree of Optax's
            parameters. The moments are converted by the same function, so that renamed and transposed weights fit.

    Example:
        ``state = from_torch(tx.init(params), optimizer.state_dict(), lambda w: {"kernel": w[0].T, "bias": w[1]})``
    """
    entries = [state_dict["state"].get(key, {}) for group in state_dict["param_groups"] for key in group["params"]]
    steps = {int(entry["step"]) if entry else 0 for entry in entries}
    if len(steps) != 1:
        raise ValueError(
            f"state_dict: its parameters have step counts {sorted(steps)}, but an Optax state has one count for all; "
            "convert optimizers whose parameters all had a gradient at every step"
        )
    ours = find(state)
    names = {"mu": "exp_avg", "nu": "exp_avg_sq"}
    if ours.nu_max is not None:  # a checkpoint without maxima warm-starts from the second moments, as in torch
        names["nu_max"] = "max_exp_avg_sq" if "max_exp_avg_sq" in entries[0] else "exp_avg_sq"
    elif "max_exp_avg_sq" in entries[0]:
        raise ValueError("state_dict: is that of AMSBound, but the Optax state is not: construct with amsbound=True")
    freed = sorted({key for entry in entries if entry for key in names.values() if key not in entry})
    if freed:
        release = [group.get("release") for group in state_dict["param_groups"]]
        raise ValueError(
            f"state_dict: has no {', '.join(freed)} of some parameters (release={release}); an Optax state needs all "
            "moments: convert a state_dict from before the release, or of an AdaBound with release=None"
        )
    moments = {}
    for name, key in names.items():
        like = getattr(ours, name)
        tree = to_params([_numpy(entry[key]) for entry in entries]) if entries[0] else like
        moments[name] = jax.tree.map(_fitting, like, tree)
    return optax.tree_utils.tree_set(state, count=jnp.asarray(steps.pop(), jnp.int32), **moments)


def to_torch(state: Any, state_dict: Mapping[str, Any], from_params: Callable[[Any], Arrays]) -> dict[str, Any]:
    """``state_dict`` with the moments and the step count of an Optax state, for ``load_state_dict``. Needs torch.

    Args:
        state: the state of the Optax optimizer.
        state_dict: the state of the torch optimizer that will continue; its param groups are kept.
        from_params: the inverse of :func:`from_torch`'s ``to_params``: from a tree like the parameters to NumPy arrays
            in torch's order.

    Example:
        ``optimizer.load_state_dict(to_torch(state, optimizer.state_dict(), lambda p: [p["kernel"].T, p["bias"]]))``
    """
    import torch

    ours = find(state)
    trees = {"exp_avg": ours.mu, "exp_avg_sq": ours.nu}
    if ours.nu_max is not None:
        trees["max_exp_avg_sq"] = ours.nu_max
    lists = {name: from_params(jax.tree.map(_wide, tree)) for name, tree in trees.items()}
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    for name, arrays in lists.items():
        if len(arrays) != len(keys):
            raise ValueError(
                f"from_params: returned {len(arrays)} arrays of {name}; the torch optimizer has {len(keys)} parameters"
            )
    entries = {
        key: {"step": torch.tensor(int(ours.count)), **{name: torch.tensor(lists[name][i]) for name in lists}}
        for i, key in enumerate(keys)
    }
    return {**state_dict, "state": entries}


def _numpy(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.uint8":
        raise ValueError(
            "state_dict: its moments are in 8 bits; load it into an AdaBound with state_dtype=torch.float32, and "
            "convert that optimizer's state_dict"
        )
    return np.asarray(tensor if tensor.dtype.itemsize >= 4 else tensor.float())  # NumPy has no bfloat16


def _wide(moment: Any) -> np.ndarray[Any, Any]:
    return np.asarray(moment, None if moment.dtype.itemsize >= 4 else np.float32)  # torch cannot read NumPy's bfloat16


def _fitting(like: Any, moment: Any) -> Any:
    if np.shape(moment) != like.shape:
        raise ValueError(f"to_params: returned a moment of shape {np.shape(moment)} for a parameter of {like.shape}")
    return jnp.asarray(moment, like.dtype)
