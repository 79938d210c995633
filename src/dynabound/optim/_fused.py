"""The update rule in one pass over memory: the C kernel of ``_kernel.c``, loaded if it was built."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dynabound.optim._scalars import Scalars

AVAILABLE = False
LEVELS: tuple[str, ...] = ()
"""The instruction sets that the kernel was built for and this machine has, best last."""
try:
    from dynabound.optim import _kernel

    _kernel.connect(Tensor, torch.nn.Parameter, Tensor.__dlpack_c_exchange_api__)
except (ImportError, AttributeError):  # not built for want of a C compiler, or a torch that is too old
    pass
else:
    AVAILABLE = True
    LEVELS = _kernel.LEVELS
LEVEL = len(LEVELS) - 1
"""The instruction set in use."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""What parameters may be made of, or be complex numbers of. Their state: the same, or float32 for the short ones."""


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

    All that the kernel needs of the tensors is in ``entries``; the lists keep their memory alive. None: they have to be
    looked at again, for their memory may have moved.
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
    """For every parameter its kind and step count, if the kernel can update it, or None; and the kernel's entries.

    It can where parameter, gradient and state are plain CPU tensors of known dtypes in one dense memory order.
    """
    return _kernel.scan(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps)


def choose(entries: bytes, indices: Sequence[int]) -> bytes:
    """The entries of some parameters."""
    size = _kernel.ENTRY_SIZE
    return entries if len(indices) * size == len(entries) else b"".join([entries[i * size :][:size] for i in indices])
