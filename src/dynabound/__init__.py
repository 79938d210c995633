"""AdaBound and AMSBound for PyTorch, and the laboratory that shows what they do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynabound._version import __version__

if TYPE_CHECKING:
    from dynabound.optim import AdaBound, AdaBoundW, AMSBound
    from dynabound.tuning import Suggestion, final_lr_from_adam, final_lr_from_sgd, suggest

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "Suggestion", "__version__", "final_lr_from_adam", "final_lr_from_sgd",
           "suggest"]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("AMSBound", "AdaBound", "AdaBoundW"), "optim"),
    **dict.fromkeys(("Suggestion", "final_lr_from_adam", "final_lr_from_sgd", "suggest"), "tuning"),
}


def __getattr__(name: str) -> Any:
    """Import a public name, and torch with it, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dynabound.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
