"""Load checkpoints of dynabound, ``adabound``, ``torch_optimizer``, ``pytorch_optimizer`` and ``torch.optim.Adam``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynabound._dtensor import is_dtensor, shard_like
from dynabound._rule import DEFAULTS
from dynabound.optim._state import eightbit, new_moment, state_dtypes, step_device
from dynabound.optim._state.rounding import noise
from dynabound.optim._validate import normalize

# The loading optimizer chooses the backend: the checkpoint may come from another machine.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
# Names of other packages' hyper-parameters, translated to ours.
_FOREIGN = ("amsgrad", "ams_bound", "weight_decouple", "fixed_decay", "adam_debias", "step")
# What the loading optimizer was asked to save; where it was not asked, the checkpoint chooses.
_MEMORY = ("state_dtype", "rounding", "release")
_NEEDED = frozenset({"step", "exp_avg", "exp_avg_sq"})
_MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})


def translate(state_dict: dict[str, Any], own_groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A checkpoint of any known format, translated to ours; missing values are taken from ``own_groups``.

    Raises ValueError for an unknown format, and for an update rule that AdaBound does not have.
    """
    absent = [name for name in ("state", "param_groups") if name not in state_dict]
    if absent:
        raise ValueError(f"state_dict without {', '.join(absent)}: must be the state_dict() of an optimizer")
    groups = state_dict["param_groups"]
    sizes, own_sizes = ([len(group["params"]) for group in some] for some in (groups, own_groups))
    if sizes != own_sizes:
        raise ValueError(
            f"the checkpoint has param groups of {sizes} parameters, this optimizer of {own_sizes}: "
            "construct it with the same groups before loading"
        )
    translated = [_translate_group(saved, own) for saved, own in zip(groups, own_groups, strict=True)]
    state = dict(state_dict["state"])
    for saved in groups:
        for key in saved["params"]:
            if state.get(key):
                state[key] = _translate_entry(key, state[key], saved)
    return {**state_dict, "state": state, "param_groups": translated}


def _is_own(saved: dict[str, Any]) -> bool:
    return "base_lr" in saved and "bounds" in saved


def _translate_group(saved: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in own.items() if key != "params"}
    if _is_own(saved):
        changes = {"bounds": _bounds(saved["bounds"], own["bounds"])}
    elif "final_lr" in saved and "amsbound" in saved:  # adabound, torch_optimizer
        changes = {"base_lr": _initial_lr(saved, own["base_lr"])}
    elif "final_lr" in saved and "ams_bound" in saved:
        changes = {"base_lr": _initial_lr(saved, own["base_lr"]), **_from_pytorch_optimizer(saved)}
    elif "amsgrad" in saved:  # torch.optim.Adam, AdamW
        peak = float(saved["max_lr"]) if "max_lr" in saved else _initial_lr(saved, float(saved["lr"]))
        changes = {"base_lr": peak, "amsbound": saved["amsgrad"] or own["amsbound"]}
    else:
        raise ValueError(
            f"not a checkpoint that AdaBound can resume from: its groups have {sorted(saved)}; supported are those of "
            "dynabound, adabound, torch_optimizer.AdaBound, pytorch_optimizer.AdaBound and torch.optim.Adam/AdamW"
        )
    saved = {key: value for key, value in saved.items() if key not in _IMPLEMENTATION + _FOREIGN}
    changes |= {name: own[name] for name in _MEMORY if own[name] != DEFAULTS[name]}
    group = {**own, **saved, **changes}
    return {**group, **normalize(group), "base_lr": float(group["base_lr"])}


def _translate_entry(key: Any, stored: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """The state of one parameter with an int64 step; other state is kept if the checkpoint is ours.

    A subclass or a wrapper such as Lookahead may have stored it there.
    """
    entry: dict[str, Any] = dict(stored)
    if "step" in saved:  # pytorch_optimizer counts once per group
        entry["step"] = saved["step"]
    own = _is_own(saved)
    if own and not entry.keys() & (_NEEDED | _MOMENTS):
        return entry
    needed = _NEEDED - {"exp_avg_sq"} if saved.get("release") is not None else _NEEDED
    missing, unknown = needed - entry.keys(), entry.keys() - _NEEDED - _MOMENTS
    if missing or (unknown and not own):
        what = f"no {', '.join(sorted(missing))}" if missing else f"also {', '.join(sorted(unknown))}"
        raise ValueError(f"the checkpoint's state of parameter {key!r} has {what}: it is not Adam's or AdaBound's")
    return {**entry, "step": torch.tensor(int(entry["step"]))}


def _bounds(saved: Any, own: Any) -> Any:
    """A bound function is code and is not saved: it must be passed to the constructor again."""
    if saved is None and not callable(own):
        raise ValueError(
            f"the checkpoint was made with a callable as bounds, this optimizer with bounds={own!r}: "
            "construct it with that callable before loading"
        )
    return own if saved is None else saved


def _initial_lr(saved: dict[str, Any], otherwise: float) -> float:
    """The base rate of other packages' bounds: not in their checkpoints, but most schedulers store it as initial_lr.

    OneCycleLR overwrites ``initial_lr``, which its ``max_lr`` shows. CyclicLR overwrites it and stores nothing else.
    """
    return otherwise if "initial_lr" not in saved or "max_lr" in saved else float(saved["initial_lr"])


def _from_pytorch_optimizer(saved: dict[str, Any]) -> dict[str, Any]:
    if saved.get("adam_debias"):
        raise ValueError("the checkpoint uses pytorch_optimizer's adam_debias=True, which AdaBound does not have")
    fully = saved["weight_decouple"] and saved.get("fixed_decay")  # without the first, the second does nothing
    decoupled = "fully" if fully else saved["weight_decouple"]
    return {"amsbound": saved["ams_bound"], "decoupled_weight_decay": decoupled}


def restore(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """From each parameter to a copy of its state in a translated checkpoint; raises where the two do not match."""
    restored = {}
    for saved, own in zip(state_dict["param_groups"], groups, strict=True):
        for key, param in zip(saved["params"], own["params"], strict=True):
            entry = state_dict["state"].get(key) or {}
            for name in sorted(_MOMENTS & entry.keys()):
                _check_match(f"the checkpoint's {name} of parameter {key!r}", entry[name], param)
            if "step" in entry:
                restored[param] = _restore_entry(entry, param, saved)
    return restored


def _check_match(name: str, moment: Tensor, param: Tensor) -> None:
    packed = moment.dtype is torch.uint8 and param.dim() > 1
    if moment.shape != (eightbit.packed_shape(param.shape) if packed else param.shape):
        raise ValueError(
            f"{name} has shape {tuple(moment.shape)}, the parameter {tuple(param.shape)}: "
            "the checkpoint belongs to another model"
        )
    if moment.is_complex() != param.is_complex() or (moment.dtype is torch.uint8) != packed:
        raise ValueError(
            f"{name} has dtype {moment.dtype}, the parameter {param.dtype}: the checkpoint belongs to another model"
        )
    if moment.is_meta and not param.is_meta:
        raise ValueError(f"{name} is on the meta device: the checkpoint has no data; load it with map_location='cpu'")
    if is_dtensor(moment) and not is_dtensor(param):
        raise ValueError(
            f"{name} is a DTensor, but the parameter is not: save full tensors with torch.distributed.checkpoint."
            "state_dict.get_optimizer_state_dict and StateDictOptions(full_state_dict=True)"
        )


def _restore_entry(entry: dict[str, Any], param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
    """The step and moments of one parameter, copied from a checkpoint in full precision.

    torch's load_state_dict would round the moments to the parameter's dtype, share its tensors with the checkpoint,
    and turn the step into a float32, which stops counting at 2**24.
    """
    first, second = state_dtypes(group, param)
    restored = {"step": entry["step"].to(step_device(group, param), copy=True)}
    for name in sorted(_MOMENTS & entry.keys()):
        dtype = first if name == "exp_avg" else second
        moment = entry[name].to(param.device, copy=True)
        if dtype is not torch.uint8:
            moment = eightbit.unpack(moment, param, name != "exp_avg").to(dtype)
        moment = shard_like(moment, param)
        if dtype is torch.uint8 and moment.dtype is not dtype:
            moment = _pack(moment, param, name != "exp_avg", int(entry["step"]))
        if type(moment) is Tensor and dtype is not torch.uint8 and moment.stride() != param.stride():
            moment = torch.empty_like(param, dtype=dtype).copy_(moment)  # the memory order that the kernel needs
        restored[name] = moment
    return restored


def _pack(moment: Tensor, param: Tensor, second: bool, step: int) -> Tensor:
    packed = new_moment(param, torch.uint8)
    shards = [tensor.to_local() if is_dtensor(tensor) else tensor for tensor in (packed, moment, param)]  # type: ignore[attr-defined]
    eightbit.pack(shards[0], shards[1], second, noise(shards[2], step))
    return packed
