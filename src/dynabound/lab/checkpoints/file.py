"""A checkpoint in one file: what ``torch.save`` writes, with its SHA-256 in a second file beside it.

``torch.load(path, weights_only=True)`` reads it.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from dynabound._files import write_whole
from dynabound.lab.errors import DamagedError, first_line


def checksum_path(path: Path) -> Path:
    """Where the SHA-256 of ``path`` is kept."""
    return path.with_name(f"{path.name}.sha256")


def write(path: Path, state: dict[str, Any], check: bool = False) -> None:
    """Write ``state``, tensors and primitives, to ``path``.

    With ``check``, raise DamagedError instead of writing a file that could not be read back: an optimizer of another
    package may store other objects. The checksum is written first: a checkpoint without one would count as damaged.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    contents = buffer.getvalue()
    if check:
        _decode(contents)
    write_whole(checksum_path(path), f"{hashlib.sha256(contents).hexdigest()}  {path.name}\n".encode())
    write_whole(path, contents)


def read(path: Path) -> dict[str, Any]:
    """The state in ``path``, on the CPU; DamagedError if a bit has changed, or if it contains code."""
    contents = path.read_bytes()
    try:
        expected = checksum_path(path).read_bytes()
    except FileNotFoundError:
        raise DamagedError("its checksum is missing") from None
    if hashlib.sha256(contents).hexdigest().encode() != expected.partition(b" ")[0]:
        raise DamagedError("its checksum does not match")
    return _decode(contents)


def _decode(contents: bytes) -> dict[str, Any]:
    import torch

    try:
        state: dict[str, Any] = torch.load(io.BytesIO(contents), map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler can raise anything
        raise DamagedError(first_line(error)) from error
    return state
