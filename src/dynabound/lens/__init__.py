"""The learning-rate lens: the effective learning rate of every parameter, for many optimizers."""

from dynabound.lens.history import History, load
from dynabound.lens.rates import effective_lr, register
from dynabound.lens.record import LearningRateLens
from dynabound.lens.rules import Rates

__all__ = ["History", "LearningRateLens", "Rates", "effective_lr", "load", "register"]
