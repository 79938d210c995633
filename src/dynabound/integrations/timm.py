"""AdaBound, AMSBound and AdaBoundW in timm's registry of optimizers."""

from __future__ import annotations

from dynabound import AdaBound, AdaBoundW, AMSBound

try:
    from timm.optim import OptimInfo
    from timm.optim._optim_factory import default_registry
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is not installed: pip install 'timm>=1.0.12'", name=error.name) from error

__all__ = ["register"]


def register() -> None:
    """Make ``adabound``, ``amsbound`` and ``adaboundw`` known to timm's ``create_optimizer_v2`` and ``--opt``.

    timm adds ``lookahead_`` by itself: ``create_optimizer_v2(model, "lookahead_adabound")``.
    """
    for cls, description in (
        (AdaBound, "Adam with bounds on the learning rate that converge to SGD"),
        (AMSBound, "AdaBound with the maximum of second moments, as AMSGrad"),
        (AdaBoundW, "AdaBound with decoupled weight decay"),
    ):
        name = cls.__name__.lower()
        if name not in default_registry.list_optimizers():
            default_registry.register(OptimInfo(name, cls, description, has_betas=True))
