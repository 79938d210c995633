"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when it is complete; ``durable`` makes it survive a power cut.

    Whatever happens, ``path`` holds the old contents or the new ones.
    """
    # Processes on different machines may have the same ID, therefore the name is random.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, temporary, str(temporary)):  # the error of a full disk names no file
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, contents: bytes, durable: bool = True) -> None:
    """Replace ``path`` atomically by a file with ``contents``."""
    with replacing(path, durable) as file:
        file.write(contents)


def digest(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
