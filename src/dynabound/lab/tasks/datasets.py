"""Loading data sets: where they are searched for, how they are read and checked.

The embedded ones are always available: scikit-learn's digits and the language reference in CPython's ``pydoc_data``.
The others are searched for in ``data_dir`` (or the variable DYNABOUND_DATA), then in the download folder.

>>> data = load("digits")
>>> data.train[0].shape, data.test[0].shape, data.classes
(torch.Size([1437, 1, 8, 8]), torch.Size([360, 1, 8, 8]), 10)
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from dynabound._extras import need
from dynabound.lab.errors import LabError
from dynabound.lab.tasks.catalog import SOURCES, TASKS, folder_of

CIFAR_FOLDER = "cifar-10-batches-bin"
"""The folder in CIFAR-10's archive."""


class DataError(LabError):
    """A data set is missing or damaged."""


@dataclass(frozen=True)
class Images:
    """Labelled images: (uint8 of shape N×C×H×W, int64 labels) for training and for testing."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int = 10
    augment: bool = False
    """Whether training crops and flips at random."""


@dataclass(frozen=True)
class Text:
    """Three streams of word numbers below ``vocabulary``."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int


Data: TypeAlias = "Images | Text"


def load(name: str, data_dir: str | Path | None = None) -> Data:
    """The data set ``name``, complete and verified; DataError otherwise."""
    if name not in TASKS:
        raise DataError(f"data set {name!r}: must be one of {', '.join(TASKS)}")
    if name not in SOURCES:
        return _pydoc() if TASKS[name].text else _digits(TASKS[name].test_images)
    folder = locate(name, data_dir)
    if folder is None:
        places = ", ".join(map(str, search_path(name, data_dir)))
        raise DataError(
            f"{name}: {SOURCES[name].files[0]} not found in {places}; "
            f"run: dynabound data fetch {name}, or give --data-dir"
        )
    data = _READERS[SOURCES[name].kind](name, folder)
    number, side = TASKS[name].test_images, TASKS[name].averaged
    if number and isinstance(data, Images):
        data = replace(data, test=(data.test[0][:number], data.test[1][:number]))
    if side > 1 and isinstance(data, Images):
        (x, y), (u, v) = data.train, data.test
        data = replace(data, train=(average_pixels(x, side), y), test=(average_pixels(u, side), v))
    return data


def average_pixels(images: Tensor, side: int) -> Tensor:
    """The rounded means of squares of ``side`` × ``side`` pixels.

    >>> average_pixels(torch.tensor([[[[1, 2], [4, 4]]]], dtype=torch.uint8), 2)
    tensor([[[[3]]]], dtype=torch.uint8)
    """
    return torch.cat([F.avg_pool2d(part.float(), side).round().to(torch.uint8) for part in torch.split(images, 10_000)])


def data_home(data_dir: str | Path | None = None) -> Path:
    """Where data sets are downloaded to: ``data_dir``, or DYNABOUND_DATA, or the user's cache."""
    chosen = data_dir or os.environ.get("DYNABOUND_DATA")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynabound")


def search_path(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which a data set is searched for, in this order."""
    homes = dict.fromkeys([data_home(data_dir), data_home()])
    inner = [folder_of(name), "."]
    if SOURCES[name].kind == "cifar":
        inner = [f"{inner[0]}/{CIFAR_FOLDER}", CIFAR_FOLDER, "."]
    return [home / folder for home in homes for folder in inner] + [Path(folder) for folder in SOURCES[name].folders]


def locate(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The first folder that has a file of the data set, damaged or not; None if there is none."""
    first = SOURCES[name].files[0]
    for folder in search_path(name, data_dir):
        if (folder / f"{first}.gz").is_file() or (folder / first).is_file():
            return folder
    return None


def fingerprint(data: Data) -> str:
    """A digest of the whole data set: a run is never resumed on other data."""
    digest = hashlib.sha256()
    tensors = (*data.train, *data.test) if isinstance(data, Images) else (data.train, data.valid, data.test)
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data.cast("B"))
    return digest.hexdigest()[:16]


def _read(name: str, folder: Path, file: str) -> tuple[Path, bytes]:
    """A file's path and its uncompressed contents; DataError if they do not match the catalog."""
    path = folder / f"{file}.gz"
    if not path.is_file():
        path = folder / file
    try:
        contents = path.read_bytes()
        if path.suffix == ".gz":
            contents = gzip.decompress(contents)
    except FileNotFoundError:
        raise _damaged(name, path, "is missing", "the whole data set") from None
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, path, f"cannot be read ({error})", "a whole file") from None
    digest = hashlib.sha256(contents).hexdigest()
    expected = SOURCES[name].contents.get(file, digest)
    if digest != expected:
        raise _damaged(name, path, f"holds {len(contents)} bytes of SHA-256 {digest}", f"SHA-256 {expected}")
    return path, contents


def _damaged(name: str, path: Path, problem: str, expected: str) -> DataError:
    """An error with the command that repairs the data set in its folder; a package's folder is not written to."""
    home = path.parent
    for inner in (CIFAR_FOLDER, folder_of(name)):
        home = home.parent if home.name == inner else home
    where = "" if str(path.parent) in SOURCES[name].folders else f" --data-dir {home}"
    return DataError(f"{path} {problem}; expected {expected}; repair it with: dynabound data fetch {name}{where}")


def _read_idx(name: str, folder: Path) -> Images:
    """Files of a header, which has the sizes, and one byte for each pixel or label."""
    train, test, *size = SOURCES[name].shape
    tensors = []
    for file, shape in zip(SOURCES[name].files, ((train, *size), (train,), (test, *size), (test,)), strict=True):
        _, contents = _read(name, folder, file)
        header = 4 + 4 * len(shape)
        tensors.append(torch.frombuffer(bytearray(contents), dtype=torch.uint8, offset=header).reshape(shape))
    x, y, u, v = tensors
    return Images((x.unsqueeze(1), y.long()), (u.unsqueeze(1), v.long()))


def _read_cifar(name: str, folder: Path) -> Images:
    """The binary layout: records of one label byte and 3×32×32 pixel bytes."""
    number, _, height, width = SOURCES[name].shape
    record = 1 + 3 * height * width
    batches = []
    for file in SOURCES[name].files:
        path, contents = _read(name, folder, file)
        if len(contents) != number * record:
            raise _damaged(name, path, f"holds {len(contents)} bytes", f"{number} records of {record} bytes")
        table = torch.frombuffer(bytearray(contents), dtype=torch.uint8).reshape(number, record)
        labels = table[:, 0].long()
        if int(labels.max()) > 9:
            raise _damaged(name, path, f"has a label {int(labels.max())}", "labels from 0 to 9")
        batches.append((table[:, 1:].reshape(number, 3, height, width), labels))
    images, targets = zip(*batches[:-1], strict=True)
    for part, labels in (("training", torch.cat(targets)), ("test", batches[-1][1])):
        # There is no one right file (the images also exist as JPEG copies), but every copy has balanced classes.
        counts = labels.bincount(minlength=10).tolist()
        if len(set(counts)) > 1:
            raise _damaged(name, folder, f"has {part} labels in the numbers {counts}", "equally many of each class")
    return Images((torch.cat(images), torch.cat(targets)), batches[-1], augment=True)


def _read_text(name: str, folder: Path) -> Text:
    texts = [_read(name, folder, file)[1].decode() for file in SOURCES[name].files]
    streams = [[word for line in text.splitlines() for word in (*line.split(), "<eos>")] for text in texts]
    return _number(streams, Counter(streams[0]))


_READERS: dict[str, Callable[[str, Path], Data]] = {"idx": _read_idx, "cifar": _read_cifar, "text": _read_text}


def _number(streams: list[list[str]], vocabulary: Iterable[str]) -> Text:
    """Words as numbers, by their place in ``vocabulary``; the others are <unk>."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(chain(vocabulary, ("<unk>",))))}
    unknown = numbers["<unk>"]
    train, valid, test = (torch.tensor([numbers.get(word, unknown) for word in stream]) for stream in streams)
    return Text(train, valid, test, len(numbers))


def _digits(test_images: int) -> Images:
    bunch = need("sklearn.datasets", "lab").load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:-test_images], order[-test_images:]
    return Images((images[train], labels[train]), (images[test], labels[test]))


def _pydoc() -> Text:
    """The language reference, in words; of every ten paragraphs one is for validation and one for testing.

    The text is that of the running Python: another version of Python has another data set.
    """
    from pydoc_data.topics import topics

    paragraphs = [p for name in sorted(topics) for p in topics[name].split("\n\n") if p.strip()]
    streams: list[list[str]] = [[], [], []]
    for index, paragraph in enumerate(paragraphs):
        stream = streams[{8: 1, 9: 2}.get(index % 10, 0)]
        stream.extend(re.findall(r"\w+|[^\w\s]", paragraph.lower()))
        stream.append("<eos>")
    return _number(streams, (word for word, count in Counter(streams[0]).items() if count > 2))
