"""AdaBound's learning rates, found by short races before training: :func:`suggest`.

``suggest`` and the two recipes are torch's, and load it when first used; the rule itself needs no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dynabound.tuning.rule import Race
from dynabound.tuning.search import SuggestError
from dynabound.tuning.suggestion import Suggestion

if TYPE_CHECKING:
    from dynabound.tuning._suggest import suggest
    from dynabound.tuning.recipes import final_lr_from_adam, final_lr_from_sgd

__all__ = ["Race", "SuggestError", "Suggestion", "final_lr_from_adam", "final_lr_from_sgd", "suggest"]

_MODULE_OF = {"suggest": "_suggest", "final_lr_from_adam": "recipes", "final_lr_from_sgd": "recipes"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dynabound.tuning' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dynabound.tuning.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
