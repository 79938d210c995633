"""From recorded learning rates to the torch lens's record. Imported only by ``history``, because it needs torch."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from dynabound.lens.history import History
from dynabound.lens.rates import Rates
from dynabound.lens.record import LearningRateLens
from dynabound.optax._rates import LearningRates

__all__ = ["build"]


class _Recorder(LearningRateLens):
    """A lens that is handed its rates, and measures them as for a torch optimizer."""

    def __init__(self, extremes: tuple[float, float], quantiles: Sequence[float], sample: int) -> None:
        shares = tuple(sorted({*quantiles, 0.5}))
        History.__init__(self, "AdaBound", 1, extremes, shares)
        self.sample, self.seed = sample, 0

    def record(self, rates: LearningRates) -> None:
        bounds = float(rates.lower), float(rates.upper)
        rows = {}
        for path, leaf in jax.tree_util.tree_flatten_with_path(rates.unclipped)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
            rows[name] = self._measure(name, Rates(torch.tensor(leaf), bounds))
        self.add(int(rates.step), rows)


def build(
    records: list[LearningRates], extremes: tuple[float, float], quantiles: Sequence[float], sample: int
) -> History:
    """The records as a History."""
    recorder = _Recorder(extremes, quantiles, sample)
    for rates in records:
        recorder.record(rates)
    return recorder
