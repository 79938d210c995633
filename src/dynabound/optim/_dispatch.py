"""From tensors and a param group to backend calls: which backend updates which parameters, with which scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dynabound._dtensor import is_dtensor, same_placement
from dynabound.optim import _foreach, _fused, _loop
from dynabound.optim._gpu import launch
from dynabound.optim._scalars import Scalars, read_lr, scalars, to_float64
from dynabound.optim._state import UNSCALED, Lists, LossScaling
from dynabound.optim._state.release import close_bounds
from dynabound.optim._validate import PLAIN, check_tensors

_BACKENDS = {"loop": _loop, "foreach": _foreach}
_SMALL = 4096
"""The largest number of elements for which foreach is faster than the loop on the CPU."""
_FOREACH_DEVICES = frozenset({"cuda", "xpu", "mtia"})
BackendCall: TypeAlias = "tuple[Callable[..., None], tuple[Any, ...]]"


def dispatch(
    lists: Lists, group: Mapping[str, Any], rescan: bool, scaling: LossScaling = UNSCALED
) -> list[BackendCall]:
    """The backend calls that perform the step. Every error is raised here, before the first call.

    There are none if a scaled gradient is not finite.

    With ``rescan`` the kernel reads the tensors' addresses again in its call: a bound function, which is user code, may
    have replaced their memory.
    """
    if not lists[0]:
        return []
    sharded: list[Tensor] = []
    lr = read_lr(group)
    capture = group["capturable"] or torch.compiler.is_compiling()
    scan = _choose_scan(lists[0], group, capture)
    found, entries = scan(*lists)
    if None in found and any([is_dtensor(param) or param.is_complex() for param in lists[0]]):
        if not (capture or group["differentiable"]):
            sharded = [param for param in lists[0] if is_dtensor(param)]
        lists = _prepare(lists, group, bool(sharded))
        found, entries = scan(*lists)
    # The Triton kernel skips the step by itself; reading a number of the GPU would wait for the GPU.
    skips = capture and None not in found
    if scaling.found_inf is not None and not skips and scaling.found_inf.item():
        return []
    calls: list[BackendCall] = []
    for (backend, count, *_), part in _partition(found, lists, group, capture).items():
        dtype = _compute_dtype(lists, part[0])
        # foreach unpacks its tensors: those with moments in 8 bits one by one, to save memory.
        packed = torch.uint8 in [some[part[0]].dtype for some in lists[2:4] if some[part[0]] is not None]
        separate = backend == "foreach" and (packed or _lose_updates(part, lists[0], dtype))
        for some in [[index] for index in part] if separate else [part]:
            chosen = _choose(lists, some)
            some_entries = _fused.choose(entries, some) if entries and not rescan else None
            calls.append(_make_call(backend, count, chosen, some_entries, group, lr, dtype, scaling))
    if sharded:
        calls.append((increment_version, (sharded,)))  # the update itself increments the local shards' versions only
    return calls


def _choose_scan(params: list[Tensor], group: Mapping[str, Any], capture: bool) -> Callable[..., Any]:
    """The kernel's scan, for the kernels that may be used; the Triton kernel only if it was asked for."""
    unused = not _fused.AVAILABLE or torch.compiler.is_compiling() or group["foreach"] or _wants_loop(group)
    gpu = group["fused"] and not _fused.gpu_failure and any([param.device.type in _fused.GPUS for param in params])
    if unused or (capture and not gpu):
        return _find_none
    return partial(launch.scan, capture) if gpu else _fused._kernel.scan


def _make_call(
    backend: str,
    count: int | None,
    lists: Lists,
    entries: bytes | None,
    group: Mapping[str, Any],
    lr: float | Tensor,
    dtype: torch.dtype,
    scaling: LossScaling,
) -> BackendCall:
    if backend == "gpu" and count is None and launch.computes_scalars(lists[0][0].device, group):
        return _update_on_gpu, (entries, lists, group, None, dtype, scaling)
    released = lists[3][0] is None
    s = scalars(group, lr, _count(lists[5]) if count is None else count + 1, dtype)
    if released:
        s = close_bounds(s)
    if backend == "gpu":
        return _update_on_gpu, (entries, lists, group, s, dtype, scaling)
    if scaling.grad_scale is not None:
        s = s._replace(sign=s.sign / scaling.grad_scale.item())
    if backend == "fused":
        return _fused.update, (entries, lists, s)
    return _BACKENDS[backend].update, ((*lists[:3], [], [], lists[5]) if released else lists, s, dtype)


def _update_on_gpu(
    entries: bytes | None,
    lists: Lists,
    group: Mapping[str, Any],
    s: Scalars | None,
    dtype: torch.dtype,
    scaling: LossScaling,
) -> None:
    """With the Triton kernel; if that fails, now and from now on with foreach."""
    if not launch.update(entries, lists, group, s, dtype, scaling):
        for backend, arguments in dispatch(lists, group, rescan=False, scaling=scaling):
            backend(*arguments)


def _wants_loop(group: Mapping[str, Any]) -> bool:
    """As in torch, foreach=False or fused=False selects the loop."""
    return group["differentiable"] or (False in (group["foreach"], group["fused"]) and not group["fused"])


def _find_none(params: list[Tensor], *others: list[Tensor]) -> tuple[list[tuple[int, int] | None], bytes]:
    return [None] * len(params), b""


def _partition(
    found: list[tuple[int, Any] | None], lists: Lists, group: Mapping[str, Any], capture: bool
) -> dict[tuple[Any, ...], Sequence[int]]:
    """The indices of the parameters that one backend call can update together.

    A key starts with the backend and the step count; the rest is what else the parameters must have in common.
    """
    one_device = not group["fused"] or len({param.device for param in lists[0]}) == 1
    if found[0] is not None and found.count(found[0]) == len(found) and one_device:  # the usual case
        return {(_kernel_for(lists[0][0], group), found[0][1]): range(len(found))}
    parts: dict[tuple[Any, ...], list[int]] = {}
    for index, (param, fused) in enumerate(zip(lists[0], found, strict=True)):
        if fused is None:
            key = _key(index, lists, group, capture)
        else:
            key = _kernel_for(param, group), fused[1], fused[0], param.device
        parts.setdefault(key, []).append(index)
    return cast("dict[tuple[Any, ...], Sequence[int]]", parts)


def _kernel_for(param: Tensor, group: Mapping[str, Any]) -> str:
    return "gpu" if group["fused"] and not _fused.gpu_failure and param.device.type in _fused.GPUS else "fused"


def _key(index: int, lists: Lists, group: Mapping[str, Any], capture: bool) -> tuple[Any, ...]:
    param, exp_avg, exp_avg_sq, step = lists[0][index], lists[2][index], lists[3][index], lists[5][index]
    check_tensors(group, *[tensors[index] for tensors in lists[:5] if tensors and tensors[index] is not None])
    foreach = group["foreach"] or (not _wants_loop(group) and _prefers_foreach(param))
    count = None if capture else int(step.item())
    # A captured step count cannot be read: the loop then updates one parameter per call, foreach takes a vector.
    separate = index if capture and not foreach else None
    return (
        "foreach" if foreach else "loop",
        count,
        separate,
        (param.dtype, exp_avg.dtype, exp_avg_sq is not None and exp_avg_sq.dtype),
        param.device,
        type(param),
    )


def _lose_updates(part: Sequence[int], params: list[Tensor], dtype: torch.dtype) -> bool:
    """Whether one foreach call would lose updates: it computes on copies, of parameters that share memory."""
    if len(part) < 2 or params[part[0]].dtype == dtype or torch.compiler.is_compiling():
        return False
    ranges = []
    for param in [params[i] for i in part if type(params[i]) in PLAIN and params[i].numel()]:
        last = sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))
        ranges.append((param.data_ptr(), param.data_ptr() + (last + 1) * param.element_size()))
    ranges.sort()
    return any(after[0] < before[1] for before, after in pairwise(ranges))


def _prefers_foreach(param: Tensor) -> bool:
    if param.is_cpu:
        # Without the kernel, foreach is faster than the loop for small tensors only, and needs more memory.
        plain = type(param) in PLAIN and not torch.compiler.is_compiling()
        return _fused.AVAILABLE or not plain or param.numel() <= _SMALL
    return param.device.type in _FOREACH_DEVICES


def _compute_dtype(lists: Lists, index: int) -> torch.dtype:
    tensors = [some[index] for some in (lists[0], lists[2], lists[3])]
    return reduce(torch.promote_types, [t.dtype for t in tensors if t is not None], torch.float32)


def _choose(lists: Lists, indices: Sequence[int]) -> Lists:
    if len(indices) == len(lists[0]):
        return lists
    return cast("Lists", tuple([tensors[i] for i in indices] if tensors else [] for tensors in lists))


def _count(steps: list[Tensor]) -> Tensor:
    """The number of this step where it must be captured."""
    return to_float64(torch.stack(steps) if len(steps) > 1 else steps[0]) + 1


def _prepare(lists: Lists, group: Mapping[str, Any], local: bool) -> Lists:
    """With ``local`` the local shards of DTensors; complex tensors as real ones with a last dimension of 2.

    The update is elementwise, so it needs no communication. A parameter whose gradient or moments have other placements
    stays a DTensor, and torch redistributes them.
    """
    prepared: Lists = ([], [], [], [], [], lists[5])
    for index, param in enumerate(lists[0]):
        tensors: list[Any] = [some[index] for some in lists[:5] if some]
        released = lists[3][index] is None
        if released:
            tensors = tensors[:3]
        if is_dtensor(param) or param.is_complex():
            check_tensors(group, *tensors)  # here, where the error can name the parameter
        if local and same_placement(tensors):
            tensors = [tensor.to_local() for tensor in tensors]
        if param.is_complex():
            # A gradient may be lazily conjugated, and then has no real view.
            tensors = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
        if released:
            tensors += [None] * (1 + bool(lists[4]))
        for some, tensor in zip(prepared, tensors, strict=False):
            some.append(tensor)
    return prepared
