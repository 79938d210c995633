"""What the lens records for one parameter: a row of statistics, and a patch of a few neighbouring rates."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynabound._checks import check_number, check_numbers
from dynabound._dtensor import full_tensor
from dynabound.lens.rules import Rates


def column_names(quantiles: Sequence[float]) -> tuple[str, ...]:
    """The names of the statistics in a row.

    >>> column_names((0.25, 0.5))
    ('min', 'q25', 'median', 'max', 'lower', 'upper', 'clipped_low', 'clipped_high', 'below', 'above', 'lost', 'nan',
    'inf')
    """
    names = ["median" if q == 0.5 else f"q{100 * q:g}" for q in quantiles]
    bounds = ("lower", "upper", "clipped_low", "clipped_high")
    return ("min", *names, "max", *bounds, "below", "above", "lost", "nan", "inf")


@dataclass(frozen=True)
class Measure:
    """The settings of a measurement, checked; see :class:`~dynabound.lens.LearningRateLens`."""

    extremes: tuple[float, float]
    quantiles: Sequence[float]
    """As a tuple in ascending order, with the median."""
    sample: int
    seed: int

    def __post_init__(self) -> None:
        sample = check_number("sample", self.sample, lambda x: x >= 1 and x.is_integer(), "an integer >= 1")
        allowed = "two numbers (low, high) with 0 <= low < high"
        extremes = check_numbers("extremes", self.extremes, lambda x: len(x) == 2 and 0 <= x[0] < x[1], allowed)
        allowed = "numbers between 0 and 1"
        shares = check_numbers("quantiles", self.quantiles, lambda x: all(0 < q < 1 for q in x), allowed)
        allowed = "an integer above -2**63 and below 2**63"
        check_number("seed", self.seed, lambda x: x.is_integer() and abs(x) < 2**63, allowed)
        settings = {"extremes": extremes, "quantiles": tuple(sorted({*shares, 0.5})), "sample": int(sample)}
        for name, value in {**settings, "seed": int(self.seed)}.items():
            object.__setattr__(self, name, value)

    def __call__(
        self, name: str, given: Rates, param: Tensor | None = None
    ) -> tuple[list[float], Tensor, tuple[int, ...]]:
        """The row of statistics (see :func:`column_names`), the patch, and the shape of all rates of a parameter.

        NaNs are counted, and left out of the order statistics. The name seeds the random choice of elements, so that
        it does not depend on the other parameters.
        """
        lost = _lost(given, param)
        given = Rates(full_tensor(given.unclipped), given.bounds)
        rates = given.clip(given.unclipped)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self.seed)
        patch = _patch(rates, generator)
        flat = rates.flatten()
        bounds = [math.nan] * 4
        if given.bounds is not None:
            low, high = given.bounds
            bounds = [low, high, _share(given.unclipped < low), _share(given.unclipped > high)]
        extreme = [_share(flat < self.extremes[0]), _share(flat > self.extremes[1])]
        nan = _count(flat.isnan())
        order = self._order_statistics(flat[~flat.isnan()] if nan else flat, generator)
        return [*order, *bounds, *extreme, lost, nan, _count(flat.isinf())], patch, tuple(rates.shape)

    def _order_statistics(self, rates: Tensor, generator: torch.Generator) -> list[float]:
        """Minimum, quantiles and maximum; the quantiles are those of a random sample of a large tensor."""
        if not rates.numel():
            return [math.nan] * (len(self.quantiles) + 2)
        low, high = torch.stack(rates.aminmax()).tolist()
        if rates.numel() > self.sample:
            rates = rates[torch.randint(rates.numel(), (self.sample,), generator=generator).to(rates.device)]
        # The smallest element with a share of at least q up to it. Interpolation would give NaN for ∞ − ∞.
        places = [math.ceil(q * rates.numel()) - 1 for q in self.quantiles]
        return [low, *rates.sort().values[places].tolist(), high]


def _lost(given: Rates, param: Tensor | None) -> float:
    """The share of elements that the last update, if it is made once more and rounded to nearest, does not change."""
    if given.direction is None or param is None:
        return math.nan
    update = given.clip(given.unclipped) * given.direction
    return _share(full_tensor(((param.to(update.dtype) - update).to(param.dtype) == param) & (update != 0)))


def _count(mask: Tensor) -> int:
    return int(mask.count_nonzero())


def _share(mask: Tensor) -> float:
    return _count(mask) / max(mask.numel(), 1)


def _patch(rates: Tensor, generator: torch.Generator) -> Tensor:
    """Neighbouring rates: at most 3×3 of one kernel or matrix, or the first ten of a vector; a copy on the CPU."""
    rates = rates.squeeze()
    if rates.ndim < 2 or not rates.numel():
        return rates.reshape(-1)[:10].cpu().clone()
    *leading, rows, columns = rates.shape
    place: list[Any] = [int(torch.randint(size, (), generator=generator)) for size in leading]
    for size in (rows, columns):
        start = int(torch.randint(max(1, size - 2), (), generator=generator))
        place.append(slice(start, start + 3))
    return rates[tuple(place)].cpu().clone()
