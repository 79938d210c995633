"""AdaBound's learning rates, found by short trials before training: :func:`suggest`.

``suggest`` is torch's, and loads it when first used; everything else needs no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynabound.tuning.decide import Trial
from dynabound.tuning.known_rates import final_lr_from_adam, final_lr_from_sgd
from dynabound.tuning.suggestion import Suggestion
from dynabound.tuning.trials import SuggestError

if TYPE_CHECKING:
    from dynabound.tuning.torch import suggest

__all__ = ["SuggestError", "Suggestion", "Trial", "final_lr_from_adam", "final_lr_from_sgd", "suggest"]


def __getattr__(name: str) -> Any:
    if name != "suggest":
        raise AttributeError(f"module 'dynabound.tuning' has no attribute {name!r}")
    from dynabound.tuning.torch import suggest

    return suggest
