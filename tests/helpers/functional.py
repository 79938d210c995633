"""From an optimizer to the arguments of the functional form."""

import inspect

from dynabound.optim.adabound import adabound


def arguments(optimizer):
    """The hyper-parameters of the first param group."""
    group = dict(optimizer.param_groups[0])
    group["beta1"], group["beta2"] = group["betas"]
    return {name: group[name] for name in inspect.signature(adabound).parameters if name in group and name != "params"}
