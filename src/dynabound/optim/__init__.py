"""The optimizers. The functional form is :func:`dynabound.optim.adabound.adabound`."""

from dynabound.optim._fused import KernelStatus, kernel_status
from dynabound.optim._scalars import CurrentBounds
from dynabound.optim.adabound import AdaBound, AdaBoundW, AMSBound
from dynabound.optim.training import param_groups, step_in_backward

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "CurrentBounds", "KernelStatus", "kernel_status", "param_groups",
           "step_in_backward"]  # fmt: skip
