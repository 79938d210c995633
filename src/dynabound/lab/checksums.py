"""JSON with a checksum in it, and JSON that may be damaged."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dynabound.lab.errors import DamagedError

__all__ = ["parse_json", "signed", "verified"]


def signed(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` and their checksum."""
    return {**fields, "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def verified(entry: Any, unsigned: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields of :func:`signed`; DamagedError if they changed, or have no checksum and keys beyond ``unsigned``."""
    if not isinstance(entry, dict):
        raise DamagedError(f"holds a {type(entry).__name__}, not a dict")
    fields = {key: value for key, value in entry.items() if key != "sha256"}
    if entry != signed(fields) if "sha256" in entry else not unsigned.issuperset(fields):
        raise DamagedError("its checksum does not match")
    return fields


def parse_json(contents: bytes, kind: type) -> Any:
    """JSON of the expected type; DamagedError for anything else, also for numbers and nesting beyond all reason."""
    try:
        value = json.loads(contents, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is not JSON ({str(error)[:80]})") from error
    if not isinstance(value, kind):
        raise DamagedError(f"holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")  # Python alone writes and reads NaN and Infinity
