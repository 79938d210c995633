"""AdaBound's learning rates, found by short races before training: :func:`suggest`."""

from dynabound.tuning._suggest import suggest
from dynabound.tuning.race import SuggestError
from dynabound.tuning.recipes import final_lr_from_adam, final_lr_from_sgd
from dynabound.tuning.rule import Race
from dynabound.tuning.suggestion import Suggestion

__all__ = ["Race", "SuggestError", "Suggestion", "final_lr_from_adam", "final_lr_from_sgd", "suggest"]
