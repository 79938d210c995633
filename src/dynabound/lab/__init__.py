"""The experiment lab: train, store, repeat and compare runs of the paper's models and data sets.

>>> from dynabound.lab import RunSpec
>>> RunSpec("mnist", optimizer="adam").lr
0.001
"""

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import Progress, Result, train

__all__ = ["LabError", "Progress", "Result", "RunSpec", "Store", "train"]
