"""Packages that torch does not bring along."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str) -> Any:
    """Import ``module``, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error.name} is missing: pip install 'dynabound[lab]'", name=error.name) from error
