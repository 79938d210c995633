"""The learning-rate lens: see the rate of every parameter, for any adaptive optimizer."""

from dynabound.lens.history import History, load
from dynabound.lens.rates import Rates, effective_lr, register
from dynabound.lens.record import LearningRateLens

__all__ = ["History", "LearningRateLens", "Rates", "effective_lr", "load", "register"]
