"""AdaBound and AMSBound for PyTorch, Optax and Keras, and the laboratory that shows what they do.

The names below are PyTorch's and load torch when first used; ``dynabound.optax`` and ``dynabound.keras`` are modules
of their own. ``import dynabound`` loads no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dynabound._version import __version__

if TYPE_CHECKING:
    from dynabound.optim import AdaBound, AdaBoundW, AMSBound, param_groups, step_in_backward
    from dynabound.tuning import Suggestion, final_lr_from_adam, final_lr_from_sgd, suggest

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "Suggestion", "__version__", "final_lr_from_adam", "final_lr_from_sgd",
           "param_groups", "step_in_backward", "suggest"]  # fmt: skip

_MODULE_OF = {
    **dict.fromkeys(("AMSBound", "AdaBound", "AdaBoundW", "param_groups", "step_in_backward"), "optim"),
    **dict.fromkeys(("Suggestion", "final_lr_from_adam", "final_lr_from_sgd", "suggest"), "tuning"),
}
_SUBMODULES = ("bounds", "optim")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"dynabound.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dynabound' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"dynabound.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"dynabound.{name} needs torch: pip install 'dynabound[torch]'. "
            "For JAX: pip install 'dynabound[optax]' and import dynabound.optax; "
            "for Keras: pip install 'dynabound[keras]' and import dynabound.keras",
            name="torch",
        ) from error
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
