"""The optimizers. The functional form is ``dynabound.optim.adabound.adabound``."""

from dynabound.optim.adabound import AdaBound, AdaBoundW, AMSBound

__all__ = ["AMSBound", "AdaBound", "AdaBoundW"]
