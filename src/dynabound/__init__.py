"""AdaBound and AMSBound for PyTorch, and the laboratory that shows what they do."""

from typing import TYPE_CHECKING, Any

from dynabound._version import __version__

if TYPE_CHECKING:
    from dynabound.optim import AdaBound, AdaBoundW, AMSBound

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the optimizers, and torch with them, when the first one is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dynabound import optim

    return getattr(optim, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
