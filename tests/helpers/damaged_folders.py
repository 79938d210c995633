"""Random damage to a folder of runs: what disks and other programs do to files."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import dynabound

TEXTS = [b"", b"null", b"7", b"[]", b"{}", b"[" * 100_000, b"9" * 5000, b'{"state": "finished"}', b"\xff\xfe\x00",
         b"\x00" * 100, b'{"task": "digits", "lr": 1e999}', b"\x1b[2J\x1b]0;title\x07"]  # fmt: skip


def flip(choose: random.Random, path: Path) -> None:
    contents = bytearray(path.read_bytes())
    if contents:
        contents[choose.randrange(len(contents))] ^= 1 << choose.randrange(8)
    path.write_bytes(contents)


def truncate(choose: random.Random, path: Path) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[: choose.randrange(len(contents) + 1)])


def replace_text(choose: random.Random, path: Path) -> None:
    path.write_bytes(choose.choice(TEXTS))


def remove(choose: random.Random, path: Path) -> None:
    path.unlink()


def unreadable(choose: random.Random, path: Path) -> None:
    choose.choice([path, path, path.parent]).chmod(0)


def grow(choose: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes() + choose.choice([b"\n", b"{}", b"\x00" * 10, path.read_bytes()]))


DAMAGES: list[Callable[[random.Random, Path], None]] = [flip, truncate, replace_text, remove, unreadable, grow]


@contextlib.contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    """For root, who may read everything: become a user who owns the folder, if that user may read our templates."""
    if os.geteuid() != 0 or not all(parent.stat().st_mode & 0o1 for parent in Path(dynabound.__file__).parents):
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def damage(seed: int, out: Path, files: list[Path]) -> tuple[str, Path]:
    """Damage one of ``files`` in ``out`` in the way of that number; return how, and which."""
    choose = random.Random(seed)
    path, how = out / choose.choice(files), choose.choice(DAMAGES)
    how(choose, path)
    return how.__name__, path
