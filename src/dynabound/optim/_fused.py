"""The update rule in one pass over memory: the C kernel of ``_kernel.c``, if it was built."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dynabound.optim._scalars import Scalars

AVAILABLE = False
LEVELS: tuple[str, ...] = ()
"""The instruction sets that both the kernel and this machine support, best last."""
try:
    from dynabound.optim import _kernel

    _kernel.connect(Tensor, torch.nn.Parameter, Tensor.__dlpack_c_exchange_api__)
except (ImportError, AttributeError):  # there was no C compiler, or torch is too old
    pass
else:
    AVAILABLE = True
    LEVELS = _kernel.LEVELS
LEVEL = len(LEVELS) - 1
"""The instruction set in use."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Supported dtypes, real or complex. The state has the same dtype, or float32 for the 16-bit ones."""


def update(
    entries: bytes | None,
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    s: Scalars,
    dtype: torch.dtype,
) -> None:
    """Update every parameter and its state in place.

    The kernel reads only ``entries``; the lists keep the tensors' memory alive. None: scan the tensors again, because
    their memory may have been replaced.
    """
    if entries is None:
        _, entries = scan(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps)
    _kernel.update(LEVEL, torch.get_num_threads(), entries, s)
    increment_version(params)  # so that autograd notices, as it does for torch's own in-place operations


def scan(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
) -> tuple[list[tuple[int, int] | None], bytes]:
    """(kind, step count) of every parameter that the kernel supports, None for the others; and the kernel's entries.

    The kernel supports plain CPU tensors of ``DTYPES`` where parameter, gradient and state have one dense memory order.
    """
    return _kernel.scan(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps)


def choose(entries: bytes, indices: Sequence[int]) -> bytes:
    """The entries of some parameters."""
    size = _kernel.ENTRY_SIZE
    if len(indices) * size == len(entries):
        return entries
    return b"".join([entries[i * size : (i + 1) * size] for i in indices])
