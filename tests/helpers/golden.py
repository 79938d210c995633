"""Files that version 0.1 wrote."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def load(name):
    return json.loads((GOLDEN / name).read_text())


def has_keys(value, golden):
    """Whether ``value`` has all keys of ``golden``, in nested objects and in every element of lists."""
    if isinstance(golden, list):
        return all(has_keys(item, golden[0]) for item in value)
    return golden is None or (golden.keys() <= value.keys() and all(has_keys(value[k], v) for k, v in golden.items()))
