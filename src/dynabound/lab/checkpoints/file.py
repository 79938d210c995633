"""A checkpoint in one file: what ``torch.save`` writes, with its SHA-256 in a second file beside it.

``torch.load(path, weights_only=True)`` reads it. Version 0.1 wrote the checksum as a line before the contents: such
files are still read.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dynabound._files import read_regular, total_memory, write_whole
from dynabound.lab.errors import DamagedError

__all__ = ["Loaded", "checksum_path", "read", "verify_readable", "write"]

_OLD_HEADER = b"dynabound checkpoint 1 sha256 "


class Loaded(NamedTuple):
    """A checkpoint's state, on the CPU, and the digest of its bytes."""

    state: dict[str, Any]
    digest: str


def checksum_path(path: Path) -> Path:
    """Where the SHA-256 of ``path`` is kept."""
    return path.with_name(f"{path.name}.sha256")


def write(path: Path, state: dict[str, Any]) -> None:
    """Write ``state``, tensors and primitives, to ``path``.

    The checksum is written first: a checkpoint without a checksum would count as damaged.
    """
    contents = _encode(state)
    write_whole(checksum_path(path), f"{hashlib.sha256(contents).hexdigest()}  {path.name}\n".encode())
    write_whole(path, contents)


def read(path: Path) -> Loaded:
    """The state in ``path``; DamagedError if a bit has changed, or if reading it would run code."""
    try:
        contents = read_regular(path, most=total_memory())
    except MemoryError:
        raise DamagedError("it is larger than the memory") from None
    if contents.startswith(_OLD_HEADER):
        header, contents = contents[: len(_OLD_HEADER) + 65], contents[len(_OLD_HEADER) + 65 :]
        expected = header[len(_OLD_HEADER) :].decode(errors="replace").strip()
    else:
        try:
            expected = read_regular(checksum_path(path)).decode(errors="replace").partition(" ")[0]
        except FileNotFoundError:
            raise DamagedError("its checksum is missing") from None
    digest = hashlib.sha256(contents).hexdigest()
    if digest != expected:
        raise DamagedError("its checksum does not match")
    return Loaded(_decode(contents), digest)


def verify_readable(state: dict[str, Any]) -> None:
    """Raise DamagedError if ``state`` cannot be read back: the optimizer of another package may store other objects."""
    _decode(_encode(state))


def _encode(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _decode(contents: bytes) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(contents), map_location="cpu", weights_only=True)
    except Exception as error:  # a crafted file can make the unpickler raise anything
        raise DamagedError(str(error).partition("\n")[0]) from error
    if not isinstance(state, dict):
        raise DamagedError(f"it holds a {type(state).__name__}, not a state")
    return state
