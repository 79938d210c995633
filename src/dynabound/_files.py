"""Files that are written whole or not at all, and read only if they are regular files."""

from __future__ import annotations

import errno
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Never through a symbolic link that someone else put there, and without waiting for the other end of a FIFO.
SAFE_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when it is complete; ``durable`` makes it survive a power cut.

    Whatever happens, ``path`` holds the old contents or the new ones.
    """
    # A random name: processes on different machines may have the same ID, and the name must not be guessable.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_OPEN, 0o666)
        with open(handle, "wb") as file:
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


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of ``path``; OSError if it is a symbolic link, a FIFO, a device or a folder.

    For writing, also if the file has another name: what is written would replace someone else's file.
    """
    handle = os.open(path, flags | SAFE_OPEN, 0o666)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise OSError(0, "not a regular file", str(path))
    if flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, "a hard link", str(path))
    return handle


MAX_BYTES = 1 << 28
"""More than any file but a checkpoint has. A damaged one may claim to be larger than the memory."""


def read_regular(path: Path, most: float = MAX_BYTES) -> bytes:
    """The contents of ``path``, which must be a regular file of at most ``most`` bytes."""
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def total_memory() -> float:
    """The machine's memory in bytes; infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf
