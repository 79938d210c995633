"""AdaBound and AMSBound for PyTorch, and the laboratory that shows what they do."""

from dynabound._version import __version__
from dynabound.optim import AdaBound, AdaBoundW, AMSBound

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "__version__"]
