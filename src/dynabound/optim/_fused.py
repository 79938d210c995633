"""The update rule in one pass over memory: the C kernel of ``_kernel.c``, if it was built."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dynabound._extras import rebuild_command
from dynabound.optim._scalars import Scalars
from dynabound.optim._state import Lists

if TYPE_CHECKING:
    from dynabound.optim import _kernel as _kernel  # for _dispatch, too


def _load() -> str | None:
    """Load the kernel; return why that is impossible, and what to do, or None."""
    global _kernel
    if find_spec("dynabound.optim._kernel") is None:
        return f"it was not built, because the installation found no C compiler; install one, then {rebuild_command()}"
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return f"torch {torch.__version__} has no DLPack exchange API; install torch >= 2.10"
    try:
        _kernel = importlib.import_module("dynabound.optim._kernel")
        _kernel.connect(Tensor, torch.nn.Parameter, Tensor.__dlpack_c_exchange_api__)
    except ImportError as error:
        return f"it cannot be loaded ({error}); {rebuild_command()}"
    return None


MISSING = _load()
"""Why there is no kernel, and what to do; None if there is one."""
AVAILABLE = MISSING is None
LEVELS: tuple[str, ...] = _kernel.LEVELS if AVAILABLE else ()
"""The instruction sets that both the kernel and this machine support, best last."""
LEVEL = len(LEVELS) - 1
"""The instruction set in use."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Supported dtypes of parameters, real or complex. ``_kernel.c`` lists the formats of state with each.

The kernel supports plain CPU tensors where parameter, gradient and state have one dense memory order. Its ``scan``
gives (kind, step count) of each parameter, None for those that are not supported, and the kernel's entries.
"""

GPUS = frozenset({"cuda", "xpu"})
"""Devices of the Triton kernel, which fused=True selects; a GPU of ROCm is "cuda", too."""
gpu_failure: str | None = None
"""Why a launch of the Triton kernel failed in this process; the steps since then use foreach."""


def gpu_missing() -> str | None:
    """Why there is no Triton kernel, and what to do; None if there is one."""
    if not AVAILABLE:
        return f"it needs the C kernel: {MISSING}"
    if find_spec("triton") is None:
        return "triton is not installed: pip install triton (torch for CUDA, ROCm or XPU on Linux comes with it)"
    return None


@dataclass(frozen=True)
class KernelStatus:
    """Whether the fused kernels are in use; see :func:`kernel_status`."""

    available: bool
    reason: str | None
    """Why there is no kernel, and what to do; None if there is one."""
    instruction_set: str | None
    """The one in use: "avx512", "avx2" or "baseline", which is the compiler's; None without a kernel."""
    threads: int
    """The largest number of threads of a step: ``torch.get_num_threads()``, or 1 if the kernel has no OpenMP."""
    gpu: bool
    """Whether ``fused=True`` uses the Triton kernel on this machine's GPUs."""
    gpu_reason: str | None
    """Why it does not: torch finds no GPU, Triton is missing, or a launch failed, since when steps use foreach."""


def kernel_status() -> KernelStatus:
    """Whether the fused kernels are available, the C kernel and the Triton kernel for GPUs, and if not, why.

    Without the C kernel AdaBound works, but steps on the CPU are several times slower.

    >>> from dynabound.optim import kernel_status
    >>> status = kernel_status()
    >>> status.available == (status.reason is None)
    True
    """
    reason = gpu_missing() or gpu_failure
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        reason = "torch finds no CUDA, ROCm or XPU device"
    gpu = (reason is None, reason)
    if not AVAILABLE:
        return KernelStatus(False, MISSING, None, torch.get_num_threads(), *gpu)
    return KernelStatus(True, None, LEVELS[LEVEL], torch.get_num_threads() if _kernel.OPENMP else 1, *gpu)


def update(entries: bytes | None, lists: Lists, s: Scalars) -> None:
    """Update every parameter and its state in place.

    The kernel reads only ``entries``; the lists keep the tensors' memory alive. None: scan the tensors again, because
    their memory may have been replaced.
    """
    if entries is None:
        _, entries = _kernel.scan(*lists)
    _kernel.update(LEVEL, torch.get_num_threads(), entries, s)
    increment_version(lists[0])  # so that autograd notices, as it does for torch's own in-place operations


def choose(entries: bytes, indices: Sequence[int]) -> bytes:
    """The entries of some parameters."""
    size = _kernel.ENTRY_SIZE
    if len(indices) * size == len(entries):
        return entries
    return b"".join([entries[i * size : (i + 1) * size] for i in indices])
