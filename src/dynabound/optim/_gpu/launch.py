"""Launch the kernels of ``kernels.py``: the tables that they read, when these are uploaded, and with which options.

The speed on a GPU has not been measured: ``dynabound bench --device cuda`` does that.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dynabound.optim import _fused
from dynabound.optim._scalars import Scalars, scalars
from dynabound.optim._state import Lists, LossScaling
from dynabound.optim._state.eightbit import GROUP

CHUNK = 8192
"""Elements of one program."""
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Without fusion a·b + c is rounded twice, as in the C kernel."""
_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "uint16",
    torch.uint8: "uint8",
}
"""Names in ``triton.language``; bfloat16 is converted by its bits."""
_Found = TypeVar("_Found")


def scan(capture: bool, *lists: list[Tensor]) -> tuple[list[tuple[int, Any] | None], bytes]:
    """The scan of the C kernel, of tensors on a GPU, too."""
    p, g, m, v, vmax, steps = lists
    return _fused._kernel.scan(p, g, m, v, vmax, steps, True, capture)


def computes_scalars(device: torch.device, group: Mapping[str, Any]) -> bool:
    """Whether :func:`update` can compute the scalars where the step counts are, on the GPU; in float64."""
    return device.type == "cuda" and not callable(group["bounds"])


def update(
    entries: bytes | None,
    lists: Lists,
    group: Mapping[str, Any],
    s: Scalars | None,
    dtype: torch.dtype,
    scaling: LossScaling,
) -> bool:
    """Update every parameter and its state in place, computing in ``dtype``; False if that fails, and nothing changed.

    Without ``entries`` the tensors are scanned again. Without ``s`` the scalars are computed on the GPU, from the step
    counts.
    """
    params, _, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps = lists
    device, capture = params[0].device, group["capturable"]
    entries = entries or scan(capture, *lists)[1]
    scales = [None if tensor is None else tensor.to(device) for tensor in scaling]
    released = exp_avg_sqs[0] is None
    types = [params[0].dtype, exp_avgs[0].dtype, (exp_avgs if released else exp_avg_sqs)[0].dtype]
    stochastic = group["rounding"] == "stochastic" and params[0].dtype == torch.bfloat16
    launched = 0
    try:
        kernels = importlib.import_module("dynabound.optim._gpu.kernels")
        constants = dict(
            types=(*[getattr(kernels.tl, _DTYPES[some]) for some in types], stochastic),
            ams=2 if released else bool(max_exp_avg_sqs),
            plain=not (group["maximize"] or group["weight_decay"] or group["box"]),
            capture=capture,
        )
        with torch.accelerator.device_index(device.index):
            table = _find(entries, lambda: _make_table(entries, types, device), device)
            rows = _stack(s, steps, dtype, device) if s else _compute(kernels, table.entries, group, dtype)
            for chunks, align in table.launches:
                kernels.update_chunk[(len(chunks),)](
                    table.entries, chunks, rows, *scales, **constants, align=align, **_OPTIONS
                )
                launched += 1
    except Exception as error:
        if launched:
            raise
        _fused.gpu_failure = f"the Triton kernel failed ({type(error).__name__}: {error}), and steps use foreach"
        warnings.warn(f"fused=True: {_fused.gpu_failure}", stacklevel=2)
        return False
    if not capture:
        torch._foreach_add_(steps, 1)
    increment_version(params)
    return True


# ---- tables on the GPU ----


class _Table(NamedTuple):
    entries: Tensor
    launches: list[tuple[Tensor, int]]
    """For each launch: (tensor, chunk) of every program, and the alignment of these tensors in bytes."""


_uploaded: dict[Any, Any] = {}
"""What is on the GPU, by its contents, device and stream; last used, last."""
_captured: list[Any] = []
"""What graphs read when they are replayed: kept for ever."""


def _stream(device: torch.device) -> tuple[int, bool]:
    """The current stream, and whether a graph is being captured."""
    capturing = getattr(getattr(torch, device.type), "is_current_stream_capturing", bool)
    return torch.accelerator.current_stream(device).stream_id, capturing()


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in new memory, without waiting: what a launched kernel may still read is never overwritten."""
    pinned = tensor.pin_memory()
    if _stream(device)[1]:
        _captured.append(pinned)
    return pinned.to(device, non_blocking=True)


def _find(contents: Any, make: Callable[[], _Found], device: torch.device) -> _Found:
    """What ``make`` has uploaded for equal contents, or uploads now.

    The contents of a table are addresses, which every step reads again; so nothing else can make it obsolete.
    """
    stream, capturing = _stream(device)
    found = _uploaded.pop((contents, device, stream), None)
    if found is None and capturing:  # a copy would be captured, too: prefer that of the warm-up, on another stream
        found = next((other for key, other in _uploaded.items() if key[:2] == (contents, device)), None)
    if found is None:
        found = make()
    if capturing:
        _captured.append(found)
    else:
        _uploaded[contents, device, stream] = found
        if len(_uploaded) > 64:
            del _uploaded[next(iter(_uploaded))]
    return found  # type: ignore[no-any-return]


def _make_table(entries: bytes, types: list[torch.dtype], device: torch.device) -> _Table:
    rows = torch.frombuffer(bytearray(entries), dtype=torch.int64).view(-1, _fused._kernel.ENTRY_SIZE // 8)
    elements, whole = rows[:, 5], torch.ones(len(rows), dtype=torch.bool)
    if types[1] == torch.uint8:  # then there are programs for groups, of which the last of a row may be shorter
        length = rows[:, 7] & 0xFFFFFFFF
        elements, whole = elements // length * (-(-length // GROUP) * GROUP), length % GROUP == 0
    chunks = (-(-elements // CHUNK)).clamp(min=1)  # an empty tensor has a step count, too
    aligned = (rows[:, :5] % 16 == 0).all(1) & whole
    if _share_memory(rows, _bytes(rows[:, 5], elements, types)):
        parts = tuple(torch.arange(len(rows))[:, None])
    else:
        parts = (aligned.nonzero()[:, 0], (~aligned).nonzero()[:, 0])
    launches = []
    for part in [part for part in parts if len(part)]:
        counts = chunks[part]
        starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
        pairs = torch.stack([part.repeat_interleave(counts), torch.arange(len(starts)) - starts], dim=1)
        align = 16 if aligned[part[0]] else min(dtype.itemsize for dtype in types)
        launches.append((_upload(pairs.to(torch.int32), device), align))
    return _Table(_upload(rows, device), launches)


def _bytes(counts: Tensor, elements: Tensor, types: list[torch.dtype]) -> Tensor:
    """The bytes of p, m, v, vmax and g of every tensor; of ``elements`` with those that fill up groups."""
    p, m, v = [elements // GROUP * (GROUP + 4) if t == torch.uint8 else counts * t.itemsize for t in types]
    return torch.stack([p, m, v, v, p], dim=1)


def _share_memory(rows: Tensor, sizes: Tensor) -> bool:
    """Whether parameters share memory, also with a gradient or a state: they are then updated one after the other."""
    starts = rows[:, :5].flatten()
    ends = starts + sizes.flatten()
    used = (starts != 0) & (ends > starts)
    starts, order = starts[used].sort()
    return bool((ends[used][order][:-1] > starts[1:]).any())


# ---- scalars on the GPU ----


def _stack(s: Scalars, steps: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The scalars as one row; with step counts on the GPU, as a row per tensor."""
    values = [*s[:11], 1 - s.beta1, 1 - s.beta2, 0.0]
    if steps[0].device.type == "cpu" and not any([isinstance(value, Tensor) for value in values]):
        rows = torch.tensor([values], dtype=dtype)
    else:
        columns = [
            torch.as_tensor(value, dtype=dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=dtype, device=device)
            for value in values
        ]
        rows = torch.stack([column.to(device, dtype).expand(len(steps)) for column in columns], dim=1)
    if dtype == torch.float32:
        rows.view(torch.int32)[:, -1] = torch.stack(steps[: len(rows)]) + 1
    return _upload(rows, device) if rows.is_cpu else rows


def _compute(kernels: Any, entries: Tensor, group: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """A row of scalars for every tensor, from the step counts on the GPU."""
    contents = _numbers(group, dtype)
    numbers = _find(
        contents, lambda: _upload(torch.tensor(contents, dtype=torch.float64), entries.device), entries.device
    )
    lr, bounds, decay = group["lr"], group["bounds"], group["beta1_decay"]
    rows = torch.empty(len(entries), 14, dtype=dtype, device=entries.device)
    kernels.compute_scalars[(-(-len(entries) // 128),)](
        entries,
        len(entries),
        numbers,
        lr.to(entries.device) if isinstance(lr, Tensor) else numbers[-1:],
        rows,
        bounds=bounds if isinstance(bounds, str) else "constant",
        beta1_decay=decay if isinstance(decay, str) else "constant" if decay == 1 else "geometric",
        debias=group["debias"],
        sqrt_decay=group["sqrt_decay"],
        **_OPTIONS,
    )
    return rows


def _numbers(group: Mapping[str, Any], dtype: torch.dtype) -> tuple[float, ...]:
    """What ``compute_scalars`` reads, in its order."""
    decay, bounds, (beta1, beta2) = group["beta1_decay"], group["bounds"], group["betas"]
    lr = group["base_lr"] if isinstance(group["lr"], Tensor) else group["lr"]
    s = scalars(group, lr, 1, dtype)  # for what does not change from step to step
    decay_by = group["decoupled_weight_decay"]
    return (
        group["base_lr"],
        group["final_lr"],
        group["gamma"],
        beta1,
        *[math.log(beta) if beta else -math.inf for beta in (beta1, beta2)],
        torch.finfo(dtype).max,
        0.0 if isinstance(decay, str) else math.log(decay),
        *((0.0, 0.0) if isinstance(bounds, str) else bounds[1:]),
        group["weight_decay"] if decay_by is True else 0.0,
        *(s.beta2, s.eps, s.l2, s.sign, s.low, s.high),
        group["weight_decay"] if decay_by == "fully" else 0.0,
        lr,
    )
