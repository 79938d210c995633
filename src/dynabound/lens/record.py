"""LearningRateLens: when to look at the rates, and what to measure."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Self

from dynabound._dtensor import full_tensor
from dynabound.lens.history import History
from dynabound.lens.rates import Rates, last_rates, rule_of

__all__ = ["LearningRateLens"]


class LearningRateLens(History):
    """Watches the learning rate of every parameter that an optimizer updates.

    It looks after the optimizer's first step, every ``every`` steps from there, and when it is detached, and never
    changes training: not its numbers, not its random state. Of each parameter it keeps the smallest, some quantiles
    and the largest rate, the bounds, and the shares that the bounds moved and that are extreme. In a long run it
    keeps every second snapshot, then every fourth, and so on: at most 512.

    Of DTensors (FSDP2) it gathers the rates of one whole parameter at a time, so that all processes, each of which
    must have a lens, keep the same record.

    Args:
        optimizer: an optimizer that :func:`~dynabound.lens.effective_lr` knows. One lens watches one optimizer.
        model: what gives the parameters their names; a DistributedDataParallel or compiled model gives those of the
            model inside. A parameter of the optimizer that is not in it is named by its place, ``param_groups[0][3]``.
        every: the number of steps from one look to the next.
        sample: quantiles are those of so many elements of a parameter, drawn at random once and for all, or of all
            elements if they are not more. Everything else is exact.
        extremes: rates outside of (low, high) count as extreme; the default is the paper's.
        quantiles: which quantiles to keep; the median is always kept.
        seed: of the choice of elements.

    Example:
        >>> import torch
        >>> from dynabound.lens import LearningRateLens
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        >>> with LearningRateLens(optimizer, model, every=1) as lens:
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(3)).backward()
        ...         optimizer.step()
        >>> lens.steps
        [1, 2, 3, 4, 5]
        >>> lens.summary()["parameters"]["bias"]["median"]      # lr / |gradient| / (1 − β₁⁵)
        0.00244...
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        every: int = 100,
        sample: int = 4096,
        extremes: tuple[float, float] = (1e-2, 1e3),
        quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        seed: int = 0,
    ) -> None:
        rule_of(optimizer)
        for name, value in (("every", every), ("sample", sample)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: must be an integer >= 1")
        numbers = _numbers("extremes", extremes, "two numbers (low, high) with 0 <= low < high")
        if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:
            raise ValueError(f"extremes={extremes!r}: must be two numbers (low, high) with 0 <= low < high")
        shares = _numbers("quantiles", quantiles, "numbers between 0 and 1")
        if not all(0 < share < 1 for share in shares):
            raise ValueError(f"quantiles={quantiles!r}: must be numbers between 0 and 1, which are min and max")
        shares = tuple(sorted({*shares, 0.5}))
        super().__init__(type(optimizer).__name__, every, (numbers[0], numbers[1]), shares)
        self.sample, self.seed = sample, seed
        # Weak, so that a lens that is kept for its record does not keep the training's memory.
        self._optimizer, self._model = weakref.ref(optimizer), weakref.ref(_unwrap(model))
        self._handle: Any = None
        self._step = 0
        self._groups: list[dict[str, Any]] = []

    def attach(self) -> Self:
        """Begin to watch. The lens, so that ``lens = LearningRateLens(…).attach()`` works."""
        optimizer = self._optimizer()
        if optimizer is None:
            raise RuntimeError("the optimizer no longer exists: make a new lens")
        if self._handle is None:
            self._handle = optimizer.register_step_post_hook(self._on_step)
        return self

    def detach(self) -> None:
        """Look a last time, if there was a step since, and stop watching; the record stays."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        optimizer = self._optimizer()
        if optimizer is not None and self._groups and self.steps[-1:] != [self._step]:
            self._look(optimizer, self._groups)
        self._groups = []

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._step += 1
        if not self._groups:  # the first step since attach: a resumed optimizer has counted before
            counts = [int(state.get("step", 0)) for state in optimizer.state.values()]
            self._step = max(self._step, *counts, 0)
        # Schedulers change rates and betas before the last look, at detach; tensors even in place.
        self._groups = [
            {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in group.items()}
            for group in optimizer.param_groups
        ]
        if not self.steps or (self._step - self.steps[0]) % self.stride == 0:
            self._look(optimizer, self._groups)

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        model = self._model()
        names = {} if model is None else {param: name for name, param in model.named_parameters()}
        rows: dict[str, list[float] | None] = {}
        for i, group in enumerate(groups):
            for j, param in enumerate(group["params"]):
                name = names.get(param, f"param_groups[{i}][{j}]")
                rates = None
                # Without state, as in plain SGD, only the gradient tells whether there was an update.
                if param.grad is not None or optimizer.state.get(param) or name in self.patches:
                    rates = last_rates(optimizer, group, param)
                self.shapes.setdefault(name, tuple(param.shape))
                rows[name] = None if rates is None else self._measure(name, rates)
        self.add(self._step, rows)

    def _measure(self, name: str, given: Rates) -> list[float]:
        """The columns of one parameter; NaN is counted, and left out of the order statistics."""
        given = Rates(full_tensor(given.unclipped), given.bounds)
        rates = given.clip(given.unclipped)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self.seed)
        self.shapes[name], self.patches[name] = tuple(rates.shape), _patch(rates, generator)
        flat = rates.flatten()
        count = flat.numel()
        nan = _count(flat.isnan())
        valid = flat[~flat.isnan()] if nan else flat
        sample = valid
        if valid.numel() > self.sample:
            sample = valid[torch.randint(valid.numel(), (self.sample,), generator=generator).to(valid.device)]
        ends, order = [math.nan, math.nan], [math.nan] * len(self.quantiles)
        if valid.numel():
            ends = torch.stack(valid.aminmax()).tolist()
            # The smallest element with a share of at least q up to it: no mean of two, which would make NaN of ∞ − ∞.
            places = [math.ceil(q * sample.numel()) - 1 for q in self.quantiles]
            order = sample.sort().values[places].tolist()
        shares = [math.nan] * 4
        if given.bounds is not None:
            clipped = given.unclipped < given.bounds[0], given.unclipped > given.bounds[1]
            shares = [*given.bounds, *(_count(mask) / max(count, 1) for mask in clipped)]
        extreme = flat < self.extremes[0], flat > self.extremes[1]
        shares += [_count(mask) / max(count, 1) for mask in extreme]
        return [ends[0], *order, ends[1], *shares, nan, _count(flat.isinf())]


def _count(mask: Tensor) -> int:
    return int(mask.count_nonzero())


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


def _unwrap(model: nn.Module) -> nn.Module:
    """The model whose parameters have the names that the user gave them."""
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        return _unwrap(model.module)
    inner = getattr(model, "_orig_mod", None)  # torch.compile
    return model if inner is None else _unwrap(inner)


def _numbers(name: str, values: Any, allowed: str) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)) or any(isinstance(v, bool) or not isinstance(v, Real) for v in values):
        raise TypeError(f"{name}={values!r}: must be {allowed}")
    return tuple(map(float, values))
