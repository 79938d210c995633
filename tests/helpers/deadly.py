"""Optimizers that fail, for specs that name them as ``helpers.deadly:Class``, and a process that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch


class DiesOnce(torch.optim.SGD):
    """Kills its process at the first step, and leaves a file so that it happens only once."""

    def __init__(self, params, lr: float, mark: str) -> None:
        super().__init__(params, lr)
        self._mark = Path(mark)

    def step(self, closure=None):
        if not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


class Dies(torch.optim.SGD):
    """Kills its process at every step."""

    def step(self, closure=None):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesLater(torch.optim.SGD):
    """Kills its process at the second step."""

    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


class Raises(torch.optim.SGD):
    """Raises at every step."""

    def step(self, closure=None):
        raise RuntimeError("<b>no</b> & never")


class RaisesLater(torch.optim.SGD):
    """Raises at its second step."""

    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2:
            raise RuntimeError("<b>no</b> & never")
        return super().step(closure)


class RankDies(torch.optim.SGD):
    """Kills its process at the first step if that is rank 1."""

    def step(self, closure=None):
        if torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


class RankRaises(torch.optim.SGD):
    """Raises at the first step on rank 1 alone."""

    def step(self, closure=None):
        if torch.distributed.get_rank() == 1:
            raise RuntimeError("rank 1 will not")
        return super().step(closure)


def write_or_die(path: Path):
    """Write the file; the first call in a folder that exists, and every call in any other, dies."""
    died = path.parent / "died"
    if not died.exists():
        if died.parent.exists():
            died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    path.touch()
