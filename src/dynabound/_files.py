"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all is written; ``durable`` makes it survive a power cut.

    Whatever happens, ``path`` holds the old contents or the new ones.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was renamed in ``folder`` survive a power cut."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, contents: bytes, durable: bool = True) -> None:
    """Replace ``path`` by a file of ``contents``, at one instant."""
    with replacing(path, durable) as file:
        file.write(contents)
