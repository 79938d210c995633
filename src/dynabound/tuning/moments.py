"""The first guess of ``final_lr`` from second moments that are NumPy arrays: for Optax and Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dynabound.tuning.search import SuggestError

__all__ = ["first_guess"]


def first_guess(moments: Iterable[Any], lr: float, eps: float) -> float:
    """α* = Σ α·v/(√v + ε) / Σ v, as in ``final_lr_from_adam``; ``moments`` without the bias of the first steps.

    >>> first_guess([np.array([4.0, 4.0])], lr=0.01, eps=0.0)      # SGD at 0.005 makes the same step: 0.005 · 2 = 0.01
    0.005
    """
    decrease = energy = 0.0
    for moment in moments:
        v = np.asarray(moment, np.float64)
        v = v[v > 0]
        decrease += lr * float((v / (np.sqrt(v) + eps)).sum())
        energy += float(v.sum())
    if not energy > 0:
        raise SuggestError("the loss does not depend on the parameters: all of their gradients are 0")
    return decrease / energy
