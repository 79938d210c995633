"""The lock of a run folder: held by the process that trains the run, visible to everyone who may read the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor

from dynabound.lab.errors import LockedError, StoreError, first_line

_ATTEMPTS, _PAUSE = 20, 0.05  # a process that checks the lock holds it for a moment


@contextlib.contextmanager
def hold(path: Path, name: str) -> Iterator[None]:
    """Hold the lock file ``path`` of run ``name``; the operating system releases it when the process dies."""
    handle = _lock(path, name)
    while not _is_at(handle, path):  # the run was removed while we waited, and this file with it
        os.close(handle)
        handle = _lock(path, name)
    try:
        _write_owner(handle)
        yield
    finally:
        os.close(handle)


def _lock(path: Path, name: str) -> int:
    """A locked descriptor of ``path``, or LockedError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({first_line(error)}); make the folder writable, or give another --out"
        ) from error
    try:
        if not _acquire(handle, path):
            raise LockedError(f"run {name} is being trained by {_owner(handle)}; wait for it, or stop that process")
    except StoreError:
        os.close(handle)
        raise
    return handle


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock. Needs read permission only; many processes can check at once."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _acquire_shared(handle)
    except OSError:  # the file system has no locks
        return False
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path) -> bool:
    try:
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            if lock_descriptor(handle, blocking=False):
                return True
    except OSError as error:
        raise StoreError(
            f"{path.parent}: this file system has no file locks ({first_line(error)}); "
            "give another --out, or mount it with flock"
        ) from error
    return False


def _acquire_shared(handle: int) -> bool:
    if sys.platform == "win32":
        return lock_descriptor(handle, blocking=False)
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _owner(handle: int) -> str:
    try:
        return os.read(handle, 200).decode(errors="replace") or "another process"
    except OSError:  # Windows locks the file against reading, too
        return "another process"


def _write_owner(handle: int) -> None:
    """Write who holds the lock, for error messages. If the disk is full, the run can still be read and resumed."""
    text = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, text.encode())
