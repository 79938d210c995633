"""A checkpoint as bytes: a line with their checksum, then what ``torch.save`` makes of tensors and primitives."""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any

import torch

__all__ = ["DamagedError", "decode", "encode"]

_MAGIC = b"dynabound checkpoint 1 sha256 "


class DamagedError(Exception):
    """The bytes are not what was written."""


def encode(state: dict[str, Any]) -> bytes:
    """``state`` as bytes.

    >>> decode(encode({"step": 3}))
    {'step': 3}
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    return b"".join((_MAGIC, hashlib.sha256(payload).hexdigest().encode(), b"\n", payload))


def decode(contents: bytes) -> dict[str, Any]:
    """The state of :func:`encode`, on the CPU; DamagedError if a bit is not as it was, or if it would run code."""
    header, payload = contents[: len(_MAGIC) + 65], memoryview(contents)[len(_MAGIC) + 65 :]
    if not header.startswith(_MAGIC):
        raise DamagedError("it does not begin as a checkpoint does")
    if header[len(_MAGIC) :] != hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise DamagedError("its checksum does not fit")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise DamagedError(str(error).splitlines()[0]) from error
    return state
