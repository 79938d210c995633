"""The learning-rate lens: the effective learning rate of every parameter, for many optimizers."""

from dynabound.lens.history import History, load
from dynabound.lens.rates import Rates, effective_lr, register
from dynabound.lens.record import LearningRateLens

__all__ = ["History", "LearningRateLens", "Rates", "effective_lr", "load", "register"]
