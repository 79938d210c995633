"""From recorded learning rates to the torch lens's record. Imported only by ``history``, because it needs torch."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from dynabound.lens.history import History
from dynabound.lens.measure import Measure
from dynabound.lens.rates import Rates
from dynabound.optax._rates import LearningRates

__all__ = ["build"]


def build(
    records: list[LearningRates], extremes: tuple[float, float], quantiles: Sequence[float], sample: int
) -> History:
    """The records as a History."""
    measure = Measure(extremes, quantiles, sample, seed=0)
    history = History("AdaBound", 1, measure.extremes, tuple(measure.quantiles))
    for rates in records:
        _add(history, measure, rates)
    return history


def _add(history: History, measure: Measure, rates: LearningRates) -> None:
    bounds = float(rates.lower), float(rates.upper)
    rows: dict[str, list[float]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(rates.unclipped)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        rows[name], history.patches[name], history.shapes[name] = measure(name, Rates(torch.tensor(leaf), bounds))
    history.add(int(rates.step), rows)
