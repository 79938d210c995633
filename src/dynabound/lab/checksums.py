"""JSON that contains its checksum, and checks of JSON and numbers that may be damaged."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from dynabound.lab.errors import DamagedError

__all__ = ["is_number", "parse_json", "signed", "verified"]


def signed(fields: dict[str, Any], run: str = "") -> dict[str, Any]:
    """``fields`` and their checksum, in which the name of their ``run`` is included."""
    return {**fields, "sha256": hashlib.sha256((json.dumps(fields, sort_keys=True) + run).encode()).hexdigest()}


def verified(entry: Any, unsigned: frozenset[str] = frozenset(), run: str = "") -> dict[str, Any]:
    """The fields of :func:`signed`; DamagedError if they changed, or have no checksum and keys beyond ``unsigned``.

    A checksum without the name of the ``run``, as version 0.2.0 wrote it, is accepted; that of another run is not.
    """
    if not isinstance(entry, dict):
        raise DamagedError(f"holds a {type(entry).__name__}, not a dict")
    fields = {key: value for key, value in entry.items() if key != "sha256"}
    if entry not in (signed(fields, run), signed(fields)) if "sha256" in entry else not unsigned.issuperset(fields):
        raise DamagedError("its checksum does not match")
    return fields


def parse_json(contents: bytes, kind: type) -> Any:
    """JSON of the expected type; DamagedError for anything else, including numbers or nesting that Python rejects."""
    try:
        value = json.loads(contents, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is not JSON ({str(error)[:80]})") from error
    if not isinstance(value, kind):
        raise DamagedError(f"holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite float, or an integer that fits into 64 bits."""
    return math.isfinite(value) if isinstance(value, float) else type(value) is int and abs(value) < 2**63


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")  # the JSON standard has neither NaN nor Infinity
