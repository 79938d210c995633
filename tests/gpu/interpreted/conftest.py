"""Tensors on the CPU take the place of tensors on a GPU, and Triton's interpreter executes the kernel.

Everything else is what runs on a GPU: the scan, the choice of the backend, the tables, the launches.
"""

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from dynabound.optim import _fused
from dynabound.optim._gpu import launch

torch.set_num_threads(1)


class Patched:
    """The interpreter replaces the functions of triton.language around every call; here once, which is much faster."""

    scope = None

    @classmethod
    def patch(cls, fn, original=interpreter._patch_lang):
        if cls.scope is None:
            cls.scope = original(fn)
        return cls

    @staticmethod
    def restore():
        pass


@pytest.fixture(autouse=True)
def cpu_as_gpu(monkeypatch):
    monkeypatch.setattr(_fused, "GPUS", frozenset({"cpu"}))
    monkeypatch.setattr(_fused, "gpu_failure", None)
    monkeypatch.setattr(launch, "_stream", lambda device: (0, False))
    monkeypatch.setattr(launch, "_upload", lambda tensor, device: tensor.clone())
    monkeypatch.setattr(launch, "computes_scalars", lambda device, group: not callable(group["bounds"]))
    monkeypatch.setattr(interpreter, "_patch_lang", Patched.patch)
    launch._uploaded.clear()
    with np.errstate(all="ignore"):  # NumPy executes the kernel, and would warn of the infinities that a GPU computes
        yield
