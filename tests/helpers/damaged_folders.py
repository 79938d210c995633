"""Random damage to a folder of runs: what disks, other programs and other people do to files."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import dynabound
from dynabound.lab.checkpoints import file, rotation
from dynabound.lab.store import signed

ESCAPES = "\x1b[2J\x1b]0;title\x07"
LONG = 10**4000
VALUES = [None, True, -1, 0, 2**64, LONG, 1e308, "x", ESCAPES, "<script>", [], {}, [[]], {"a": 1}, ["x"] * 3, 0.5]
TEXTS = [b"", b"null", b"7", b'"x"', b"[]", b"{}", b"[1, 2]", b"NaN", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000,
         b'{"state": ' + b"9" * 5000 + b"}", b'{"state": "finished"}', b'{"state": "winning"}', b'{"state": 1e999}',
         b"\xff\xfe\x00", b"\x00" * 100, b'{"epoch": 1}', b'[{"torch": 1}]', b'{"task": "digits"}',
         b'{"task": "digits", "lr": 1e999}', b'{"task": ' + b"1" * 4000 + b"}", ESCAPES.encode()]  # fmt: skip


class Canary:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def flip(choose: random.Random, path: Path) -> None:
    contents = bytearray(path.read_bytes())
    for _ in range(choose.choice([1, 1, 1, 8])):
        if contents:
            contents[choose.randrange(len(contents))] ^= 1 << choose.randrange(8)
    path.write_bytes(contents)


def truncate(choose: random.Random, path: Path) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[: choose.randrange(len(contents) + 1)])


def replace_text(choose: random.Random, path: Path) -> None:
    path.write_bytes(choose.choice(TEXTS))


def _numbers(text: bytes) -> list:
    """The JSON values of a file, one per line in .jsonl; nothing if it is not JSON."""
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return []


def _mutate(choose: random.Random, value) -> None:
    """Change, remove or add an entry somewhere in ``value``, a dict or a list."""
    inner = [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, (dict, list))]
    if inner and choose.random() < 0.6:
        _mutate(choose, choose.choice(inner))
        return
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if keys and choose.random() < 0.3:
        del value[choose.choice(keys)]
    elif keys:
        value[choose.choice(keys)] = choose.choice(VALUES)
    elif isinstance(value, dict):
        value["x"] = choose.choice(VALUES)


def change_json(choose: random.Random, path: Path, signed: bool = False) -> None:
    """JSON of another shape; ``signed``: with the checksum that belongs to it."""
    values = _numbers(path.read_bytes())
    for value in values:
        if isinstance(value, (dict, list)):
            _mutate(choose, value)
    if signed:
        values = [_sign_all(value) for value in values]
    indent = None if path.suffix == ".jsonl" else 1
    path.write_text("".join(json.dumps(value, indent=indent) + "\n" for value in values))


def _sign_all(value):
    if isinstance(value, list):
        return [_sign_all(each) for each in value]
    return signed({k: v for k, v in value.items() if k != "sha256"}) if isinstance(value, dict) else value


def forge(choose: random.Random, path: Path) -> None:
    """Another shape with a checksum that is right: also a checkpoint's, and that of the metrics in the status."""
    if path.suffix == ".pt":
        forge_checkpoint(choose, path)
        return
    change_json(choose, path, signed=True)
    status = path.with_name("status.json")
    if path.name == "metrics.jsonl" and status.is_file():
        fields = json.loads(status.read_text())
        fields["metrics_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        status.write_text(json.dumps(_sign_all(fields)))


def forge_checkpoint(choose: random.Random, path: Path) -> None:
    state = file.read(path).state
    kind = choose.choice(["mutate", "mutate", "mutate", "list", "empty", "pickle", "zip", "transposed"])
    out = next(parent for parent in path.parents if parent.name == "out")
    if kind == "mutate":
        _mutate(choose, state)
    elif kind == "transposed":
        state["model"] = {name: value.t() if value.dim() == 2 else value for name, value in state["model"].items()}
    made = {"list": [1, 2], "empty": {}}.get(kind, state)
    buffer = io.BytesIO()
    torch.save(made, buffer)
    contents = buffer.getvalue()
    if kind == "pickle":
        contents = pickle.dumps({"step": Canary(out / "canary")})
    if kind == "zip":
        with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps(Canary(out / "canary")))
        contents = buffer.getvalue()
    path.write_bytes(contents)
    path.with_name(f"{path.name}.sha256").write_text(f"{hashlib.sha256(contents).hexdigest()}  {path.name}\n")


def exchange(choose: random.Random, path: Path) -> None:
    """The same file of another run."""
    others = [each for each in path.parent.parent.glob(f"*/{path.name}") if each != path and each.is_file()]
    if others:
        path.write_bytes(choose.choice(sorted(others)).read_bytes())


def exchange_all(choose: random.Random, path: Path) -> None:
    """All files of another run but its spec, or all of them."""
    others = [each for each in path.parent.parent.iterdir() if each.is_dir() and each != path.parent]
    other = choose.choice(sorted(others))
    without = choose.choice([("spec.json",), ()])
    for each in path.parent.iterdir():
        if each.name not in without:
            rotation.delete(each)
    for each in other.iterdir():
        if each.name not in without:
            (shutil.copytree if each.is_dir() else shutil.copy)(each, path.parent / each.name)


def remove(choose: random.Random, path: Path) -> None:
    path.unlink()


def fifo(choose: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(choose: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()
    if choose.random() < 0.5:
        (path / "file").write_text("")


def link(choose: random.Random, path: Path) -> None:
    """A symbolic link: to another file, to itself, to nothing, to a device that never ends."""
    contents = path.read_bytes()
    path.unlink()
    victim = path.parents[2] / "victim"
    victim.write_bytes(contents)
    path.symlink_to(choose.choice([victim, path, path.parent / "nothing", Path("/dev/zero"), path.parent]))


def unreadable(choose: random.Random, path: Path) -> None:
    choose.choice([path, path, path.parent]).chmod(0)


def grow(choose: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(choose.choice([b"\n", b"{}", b"\x00" * 10, path.read_bytes(), b"x" * 1_000_000]))


DAMAGES: dict[str, Callable[[random.Random, Path], None]] = {
    each.__name__: each
    for each in (flip, truncate, replace_text, change_json, forge, exchange, exchange_all, remove, fifo, directory,
                 link, unreadable, grow)
}  # fmt: skip
FORGED = ("forge",)
"""The damages that no checksum shows; all that is asked then is to survive them."""


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
    path = out / choose.choice(files)
    json_only = path.suffix in (".json", ".jsonl")
    names = [name for name in DAMAGES if json_only or name != "change_json"]
    if not (json_only or path.suffix == ".pt"):
        names.remove("forge")
    if path.parent.parent.name != "runs":
        names = [name for name in names if not name.startswith("exchange")]
    name = choose.choice(names)
    DAMAGES[name](choose, path)
    return name, path
