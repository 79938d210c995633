"""Hyper-parameters: their types, what is allowed, and the error messages."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast

import torch
from torch import Tensor

from dynabound import bounds
from dynabound._checks import check_number, check_numbers
from dynabound._rule import check
from dynabound.optim import _fused
from dynabound.optim._state import eightbit

_FLAGS = ("amsbound", "maximize", "capturable", "differentiable", "debias", "sqrt_decay")
PLAIN = (Tensor, torch.nn.Parameter)
"""The tensor types whose memory can be inspected; subclasses may have none of their own."""
_STATE_DTYPES = {"8bit", "bfloat16", "float32", "float64"}


StateDtype: TypeAlias = "torch.dtype | str | tuple[torch.dtype | str, torch.dtype | str] | None"


class Options(TypedDict, total=False):
    """The keyword-only arguments of :class:`AdaBound`, for its subclasses."""

    bounds: bounds.Bounds
    decoupled_weight_decay: bool | Literal["fully"]
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    debias: bool
    sqrt_decay: bool
    beta1_decay: float | str
    box: tuple[float, float] | None
    state_dtype: StateDtype
    rounding: str
    release: float | None


def normalize(group: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of ``group``, checked, as primitives that a checkpoint can hold.

    Raises TypeError for a wrong type and ValueError for a wrong value: name, value, what is allowed, what to do.
    """
    numbers = ("final_lr", "gamma", "eps", "weight_decay", "beta1_decay")
    checked: dict[str, Any] = {name: check(name, group[name]) for name in numbers}
    checked["lr"] = _lr(group["lr"])
    checked["betas"] = check_numbers("betas", group["betas"], _are_betas, "two numbers in [0, 1)")
    checked["box"] = group["box"]
    if checked["box"] is not None:
        allowed = "None, or two numbers (low, high) with low <= high"
        checked["box"] = check_numbers("box", group["box"], lambda x: len(x) == 2 and x[0] <= x[1], allowed)
    bounds.check(group["bounds"])
    checked["bounds"] = group["bounds"]
    if isinstance(group["bounds"], (tuple, list)):
        name, lower, upper = group["bounds"]
        checked["bounds"] = (name, float(lower), float(upper))
    checked["state_dtype"] = _state_dtype(group["state_dtype"])
    checked["decoupled_weight_decay"] = group["decoupled_weight_decay"]
    if checked["decoupled_weight_decay"] != "fully":
        _flag("decoupled_weight_decay", group["decoupled_weight_decay"], "True, False or 'fully'", bool)
    if group["rounding"] not in ("nearest", "stochastic"):
        raise ValueError(f"rounding={group['rounding']!r}: must be 'nearest' or 'stochastic'")
    checked["rounding"] = group["rounding"]
    for name in _FLAGS:
        checked[name] = _flag(name, group[name], "True or False", bool)
    for name in ("foreach", "fused"):
        checked[name] = _flag(name, group[name], "True, False or None", bool, type(None))
    checked["release"] = None if group["release"] is None else check("release", group["release"])
    _check_backends(checked)
    return checked


def scale_final_lr(group: Mapping[str, Any], default_lr: float | Tensor) -> float:
    """``final_lr`` in proportion to the group's ``lr``; unscaled if either rate is 0 and there is no proportion."""
    lr, default = float(group["lr"]), float(default_lr)
    if not (lr and default):
        return cast(float, group["final_lr"])
    return cast(float, check("final_lr", group["final_lr"] * (lr / default)))


def check_params(group: dict[str, Any]) -> None:
    """Raise if a parameter cannot be updated in place, or not by the fused kernel if that was asked for."""
    for index, param in enumerate(group["params"]):
        if param.is_neg() or param.is_conj():
            raise ValueError(
                f"parameter {index} is a lazily negated or conjugated view: use resolve_neg() or resolve_conj()"
            )
    if not group["fused"]:
        return
    if not _fused.AVAILABLE:
        raise RuntimeError(f"fused=True: there is no C kernel: {_fused.MISSING}; or leave fused=None")
    for index, param in enumerate(group["params"]):
        gpu = param.device.type in _fused.GPUS
        # A parameter on the meta device is to be given memory, and step() checks whether it was.
        place = gpu or param.is_cpu or param.is_meta
        if not (place and type(param) in PLAIN and param.dtype.to_real() in _fused.DTYPES):
            raise ValueError(
                f"fused=True: parameter {index} is a {type(param).__name__} of {param.dtype} on {param.device}; the "
                "kernels support plain float32, float64, bfloat16, float16 and complex tensors on the CPU, CUDA, ROCm "
                "and XPU; leave fused=None"
            )
        if gpu and _fused.gpu_missing():
            raise RuntimeError(f"fused=True: there is no Triton kernel: {_fused.gpu_missing()}; or leave fused=None")
        if group["capturable"] and param.is_cpu and not gpu:
            raise ValueError(
                "fused=True, capturable=True: the kernel of the CPU does not support capturable; set one of them"
            )


def check_tensors(group: Mapping[str, Any], param: Tensor, grad: Tensor, *moments: Tensor) -> None:
    """Raise if a step cannot update ``param`` in place, before it updates anything."""
    problem = _problem(param, grad, moments)
    if group["fused"] and param.is_meta:
        problem = "has no data, which fused=True needs: give it memory before the first step, for example by to_empty()"
    if not (problem or group["differentiable"] or torch.compiler.is_compiling()):
        problem = _memory_problem(param, grad, moments)
    if problem:
        params = group.get("params", ())
        names = group.get("param_names", range(len(params)))
        name = next((repr(n) for n, other in zip(names, params, strict=True) if other is param), "?")
        raise RuntimeError(
            f"dynabound's {'AMSBound' if group['amsbound'] else 'AdaBound'}: parameter {name} "
            f"(shape {tuple(param.shape)}, {param.device}) {problem}; nothing was updated"
        )


def _problem(param: Tensor, grad: Tensor, moments: Sequence[Tensor]) -> str | None:
    if param.layout is not torch.strided:
        return f"has layout {param.layout}, must be torch.strided: convert it by to_dense()"
    if param.is_floating_point() and param.dtype.itemsize < 2:
        return (
            f"has dtype {param.dtype}, must be float16, bfloat16, float32, float64 or complex: keep it in bfloat16 and "
            "convert it where the model uses it"
        )
    if grad.layout is not torch.strided:
        return (
            f"has a sparse gradient ({grad.layout}), must be dense: use sparse=False in the embedding, "
            "or torch.optim.SparseAdam for this parameter"
        )
    if grad.shape != param.shape or grad.device != param.device:
        return f"has a gradient of shape {tuple(grad.shape)} on {grad.device}: shape and device must be the parameter's"
    if not (param.is_floating_point() or param.is_complex()):
        return f"has dtype {param.dtype}, must be floating-point or complex: set its gradient to None"
    if not _fits(grad, param):
        return f"({param.dtype}) has a gradient of dtype {grad.dtype}: convert it to the parameter's"
    for moment in moments:
        packed = moment.dtype is torch.uint8
        fits = _fits(moment, param) or (packed and param.dim() > 1)
        if moment.layout is not torch.strided or moment.device != param.device or not fits:
            return (
                f"({param.dtype}) has moments of dtype {moment.dtype} and layout {moment.layout} on {moment.device}: "
                "they cannot be updated; construct a new optimizer, or load its state_dict"
            )
        if packed and not (moment.is_contiguous() and moment.storage_offset() % 4 == 0):
            return (
                "has moments in 8 bits that are not contiguous, or not aligned to 4 bytes: they cannot be updated; use "
                "clone(memory_format=torch.contiguous_format)"
            )
        if moment.shape != (eightbit.packed_shape(param.shape) if packed else param.shape):
            return (
                f"has moments of shape {tuple(moment.shape)}: the parameter's shape has changed; "
                "construct a new optimizer"
            )
    return None


def _fits(tensor: Tensor, param: Tensor) -> bool:
    """Whether the dtype can be that of a gradient or moment."""
    return tensor.is_floating_point() or (tensor.is_complex() and param.is_complex())


def _memory_problem(param: Tensor, grad: Tensor, moments: Sequence[Tensor]) -> str | None:
    for name, tensor in (("it", param), ("its gradient", grad), *[("a moment of it", moment) for moment in moments]):
        if tensor is not grad and type(tensor) in PLAIN and torch._debug_has_internal_overlap(tensor) == 1:
            return f"cannot be updated, because {name} is an expanded tensor, whose elements share memory: use clone()"
        if is_emptied(tensor):
            return f"cannot be updated, because the storage of {name} was resized to 0"
    return None


def is_emptied(tensor: Tensor) -> bool:
    """Whether the storage of a tensor with elements was resized to 0: reading it would crash the process."""
    inspectable = type(tensor) in PLAIN and not (tensor.is_meta or tensor._is_zerotensor())
    return inspectable and tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0


def warn_about_schedules(param_groups: list[dict[str, Any]]) -> bool:
    """Warn if a scheduler that sets its own rates raises lr above base_lr, because the bounds scale with lr.

    OneCycleLR stores its highest rate in the group as max_lr, SWALR as swa_lr; CyclicLR overwrites initial_lr.
    """
    for group in param_groups:
        base_lr, final_lr = group["base_lr"], group["final_lr"]
        rates = [float(group[name]) for name in ("max_lr", "swa_lr") if name in group]
        if not rates and math.isclose(group.get("initial_lr", base_lr), base_lr, rel_tol=1e-6):
            continue
        if not isinstance(group["lr"], Tensor) or group["lr"].is_cpu:  # reading it on another device would wait for it
            rates.append(float(group["lr"]))
        peak = max(rates, default=0.0)
        if base_lr and peak > base_lr * (1 + 1e-6):
            warnings.warn(
                f"the scheduler raises lr to {peak:g}, {peak / base_lr:g} times the constructor's lr={base_lr:g}, "
                f"and the bounds scale with it: final_lr={final_lr:g} becomes {final_lr * peak / base_lr:g}. "
                "Construct the optimizer with lr = the scheduler's highest rate: final_lr then applies at that rate",
                stacklevel=5,  # the caller of step(), which torch's profiler hook and the scheduler wrap
            )
            return True
    return False


def _check_backends(group: dict[str, Any]) -> None:
    if group["fused"]:
        for other in ("foreach", "differentiable"):
            if group[other]:
                raise ValueError(f"fused=True, {other}=True: the kernel does not support {other}; set one of them")
    if group["differentiable"] and (
        group["rounding"] == "stochastic" or {"8bit", "bfloat16"} & _names(group["state_dtype"])
    ):
        raise ValueError(
            f"differentiable=True, rounding={group['rounding']!r}, state_dtype={group['state_dtype']!r}: "
            "rounding has no derivative; leave rounding='nearest' and state_dtype=None"
        )
    if group["release"] is not None and (group["capturable"] or callable(group["bounds"])):
        other = "capturable=True" if group["capturable"] else f"bounds={group['bounds']!r}"
        raise ValueError(
            f"release={group['release']!r}, {other}: memory cannot be freed in a graph, nor where it is unknown "
            "whether the bounds stay closed; leave release=None"
        )
    if group["foreach"] and group["differentiable"]:
        raise ValueError("foreach=True, differentiable=True: only the loop is differentiable; leave foreach=None")


def _names(state_dtype: str | tuple[str, str] | None) -> set[str]:
    """The names of a checked state_dtype."""
    return {state_dtype} if isinstance(state_dtype, str) else set(state_dtype or ())


def _lr(value: Any) -> float | Tensor:
    tensor = isinstance(value, Tensor)
    number = (value.item() if value.numel() == 1 else math.nan) if tensor else value
    allowed = "a finite number >= 0, or a tensor of one"
    checked = check_number("lr", number, lambda x: 0 <= x < math.inf, allowed, shown=value)
    return value if tensor else checked


def _are_betas(pair: tuple[float, ...]) -> bool:
    return len(pair) == 2 and all(0 <= beta < 1 for beta in pair)


def _flag(name: str, value: Any, allowed: str, *types: type) -> Any:
    if not isinstance(value, types):
        raise TypeError(f"{name}={value!r}: must be {allowed}")
    return value


def _state_dtype(value: Any) -> str | tuple[str, str] | None:
    """A name, or one for each of the moments."""
    if value is None:
        return None
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    names = [str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype for dtype in pair]
    message = (
        f"state_dtype={value!r}: must be None, '8bit', or a torch dtype among bfloat16, float32, float64, or a pair of "
        "them, for the first and for the second moments"
    )
    if not all([isinstance(name, str) for name in names]):
        raise TypeError(message)
    if "float16" in names:
        message += "; float16 cannot hold a second moment below 6e-8, use bfloat16"
    if len(names) != 2 or not _STATE_DTYPES.issuperset(names):
        raise ValueError(message)
    return (names[0], names[1]) if names[0] != names[1] else names[0]
