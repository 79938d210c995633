"""Batches: which examples, in which order, how augmented: a pure function of the seed and the epoch.

Therefore a run that is resumed in the middle of an epoch, or by several processes, sees the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.tasks.datasets import Data, Images, Text

_PAD = 1 / 8
"""Black pixels around an image before it is cropped, as a share of its height: 4 of 32."""
_EVAL_IMAGES = 500
_EVAL_COLUMNS = 10


class Batch(NamedTuple):
    """A rank's part of a batch."""

    x: Tensor
    y: Tensor
    size: int
    """Targets in the whole batch, over all ranks."""


def make_batches(
    data: Data, spec: RunSpec, device: torch.device, rank: int = 0, ranks: int = 1
) -> ImageBatches | TextBatches:
    """The batches of a run, as seen by one of its ranks."""
    if ranks > spec.batch_size:
        raise LabError(f"batch_size={spec.batch_size}: must be at least the number of ranks, {ranks}")
    if isinstance(data, Images):
        return ImageBatches(data, spec, device, rank, ranks)
    return TextBatches(data, spec, device, rank, ranks)


class ImageBatches:
    """Shuffled images, normalised per channel; cropped and flipped at random if the data set asks for it.

    A last batch of fewer than two images per rank is left out: batch normalisation cannot use it.
    """

    splits = ("test",)

    def __init__(self, data: Images, spec: RunSpec, device: torch.device, rank: int, ranks: int) -> None:
        self._rank, self._ranks, self._seed, self._size = rank, ranks, spec.seed, spec.batch_size
        mean, scale = (value.to(device) for value in _statistics(data.train[0]))
        self._mean, self._scale, self._augment = mean, scale, data.augment
        self._pad = round(_PAD * data.train[0].shape[-1])
        x, y = data.train[0][: spec.examples].to(device), data.train[1][: spec.examples].to(device)
        # Without augmentation an image is the same in every epoch: normalise it once.
        self._x, self._y = (x if data.augment else self._normalize(x)), y
        self._test = data.test[0][rank::ranks].to(device), data.test[1][rank::ranks].to(device)
        self._test_batches = -(-len(data.test[1]) // (_EVAL_IMAGES * ranks))
        whole, rest = divmod(len(y), self._size)
        self.steps = whole + (rest >= 2 * ranks)
        if not self.steps:
            raise LabError(f"examples: {len(y)} training images are too few for {ranks} ranks")

    def _normalize(self, x: Tensor) -> Tensor:
        return (x.float() - self._mean) * self._scale

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training batches of ``epoch`` from number ``start`` on."""
        generator = torch.Generator().manual_seed(derive_seed(self._seed, epoch))
        number = len(self._y)
        order = torch.randperm(number, generator=generator).to(self._y.device)
        if self._augment:
            corners = torch.randint(2 * self._pad + 1, (number, 2), generator=generator).to(self._y.device)
            flips = torch.rand(number, generator=generator).to(self._y.device) < 0.5
        for index in range(start, self.steps):
            chosen = slice(index * self._size, min(number, (index + 1) * self._size))
            mine = slice(chosen.start + self._rank, chosen.stop, self._ranks)
            x, y = (tensor.index_select(0, order[mine]) for tensor in (self._x, self._y))
            if self._augment:
                x = self._normalize(crop_and_flip(x, corners[mine], flips[mine], self._pad))
            yield Batch(x, y, chosen.stop - chosen.start)

    def evaluation(self, split: str) -> Iterator[Batch]:
        """The test images, in order; the same number of batches for every rank, the last of which may be empty."""
        images, labels = self._test
        for index in range(self._test_batches):
            chosen = slice(index * _EVAL_IMAGES, (index + 1) * _EVAL_IMAGES)
            yield Batch(self._normalize(images[chosen]), labels[chosen], len(labels[chosen]))


class TextBatches:
    """A stream of words split into columns that are read in parallel, ``bptt`` rows at a time.

    The target of a word is the next one in its column, so that the state is carried from batch to batch.
    """

    splits = ("valid", "test")

    def __init__(self, data: Text, spec: RunSpec, device: torch.device, rank: int, ranks: int) -> None:
        self._rows = spec.bptt or 1
        columns, held_out = spec.batch_size, max(_EVAL_COLUMNS, ranks)
        streams = {"train": (data.train[: spec.examples], columns), "valid": (data.valid, held_out)}
        streams["test"] = (data.test, held_out)
        self._streams: dict[str, Tensor] = {}
        for name, (words, width) in streams.items():
            length = len(words) // width
            if length < 2:
                raise LabError(f"{len(words)} {name} words are too few for {width} columns; lower batch_size")
            self._streams[name] = (
                words[: length * width].view(width, length).t()[:, rank::ranks].contiguous().to(device)
            )
        self._widths = {name: width for name, (_, width) in streams.items()}
        self.steps = -(-(len(self._streams["train"]) - 1) // self._rows)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training batches from number ``start`` on; a text has only one order."""
        return self._read("train", start)

    def evaluation(self, split: str) -> Iterator[Batch]:
        """The batches of a held-out text."""
        return self._read(split, 0)

    def _read(self, split: str, start: int) -> Iterator[Batch]:
        stream = self._streams[split]
        for first in range(start * self._rows, len(stream) - 1, self._rows):
            y = stream[first + 1 : first + 1 + self._rows]
            yield Batch(stream[first : first + len(y)], y, len(y) * self._widths[split])


def redistribute(parts: list[Tensor], rank: int, ranks: int) -> Tensor:
    """A rank's columns (dimension 1) of a tensor whose columns were distributed over another number of ranks.

    >>> redistribute([torch.tensor([[0, 2]]), torch.tensor([[1]])], rank=0, ranks=1)
    tensor([[0, 1, 2]])
    """
    whole = parts[0].new_empty(len(parts[0]), sum(part.shape[1] for part in parts), *parts[0].shape[2:])
    for number, part in enumerate(parts):
        whole[:, number :: len(parts)] = part
    return whole[:, rank::ranks].contiguous()


def crop_and_flip(x: Tensor, corners: Tensor, flips: Tensor, pad: int = 4) -> Tensor:
    """Pad images by ``pad`` black pixels, crop the original size at ``corners``, and mirror where ``flips`` is true.

    >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> crop_and_flip(image, torch.tensor([[4, 4]]), torch.tensor([True]))
    tensor([[[[1., 0.],
              [3., 2.]]]])
    """
    height, width = x.shape[-2:]
    windows = F.pad(x, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    cut = windows[torch.arange(len(x), device=x.device), :, corners[:, 0], corners[:, 1]]
    return torch.where(flips.view(-1, 1, 1, 1), cut.flip(-1), cut)


def derive_seed(*numbers: int) -> int:
    """One seed from several numbers; neighbouring numbers give unrelated seeds."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each channel's mean and 1/deviation, from integer sums, which are exact in any order of summation."""
    values = torch.arange(256, dtype=torch.float64)
    moments = []
    for channel in range(x.shape[1]):
        counts = torch.bincount(x[:, channel].flatten(), minlength=256).double()
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        moments.append((mean, variance.clamp(min=1.0).rsqrt()))
    mean, scale = (torch.stack(value).float().view(1, -1, 1, 1) for value in zip(*moments, strict=True))
    return mean, scale
