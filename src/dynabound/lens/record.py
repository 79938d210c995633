"""LearningRateLens: a hook on an optimizer that decides when to look at the rates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler: over a second
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Self

from dynabound._checks import check_number
from dynabound.lens.history import History, Record
from dynabound.lens.measure import Measure
from dynabound.lens.rates import last_rates, real_view, rule_of, unwrap


class LearningRateLens(History):
    """Record the learning rate of every parameter that an optimizer updates.

    The lens takes a snapshot after the optimizer's first step, every ``every`` steps from there, and when it is
    detached. It never changes training: not its numbers, not its random state. For each parameter it keeps the
    minimum, some quantiles and the maximum of the rates, the bounds, the shares of rates that the bounds clip, and
    the shares that are extreme. A long run keeps at most 512 snapshots: every second one is dropped when there are
    more, and the lens then looks half as often.

    With DTensors (FSDP2) it gathers the rates of one full parameter at a time. Every process must have a lens, and
    all of them keep the same record.

    Args:
        optimizer: an optimizer that :func:`~dynabound.lens.effective_lr` knows, or a wrapper around one. Use one lens
            for each optimizer.
        model: the module that gives the parameters their names. A compiled model and the wrappers of
            DistributedDataParallel and Lightning Fabric are unwrapped. A parameter that is not in the model is named
            by its position, ``param_groups[0][3]``.
        every: the number of steps from one snapshot to the next.
        sample: quantiles are computed from this number of randomly chosen elements of a larger parameter, the same
            ones each time. Everything else is exact.
        extremes: rates outside of (low, high) count as extreme; the defaults are the paper's.
        quantiles: the quantiles to keep; the median is always kept.
        seed: the seed of the random choice of elements.
        on_look: called after each snapshot with the step and its record: a dictionary of statistics for each
            parameter that has rates, by name. See :meth:`~dynabound.lens.History.records`.

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
        on_look: Callable[[int, Record], object] | None = None,
    ) -> None:
        optimizer = unwrap(optimizer)
        rule_of(optimizer)
        every = int(check_number("every", every, lambda x: x >= 1 and x.is_integer(), "an integer >= 1"))
        self._measure = Measure(extremes, quantiles, sample, seed)
        if on_look is not None and not callable(on_look):
            raise TypeError(f"on_look={on_look!r}: must be a callable (step, record), or None")
        self.sample, self.seed, self.on_look = self._measure.sample, self._measure.seed, on_look
        super().__init__(type(optimizer).__name__, every, self._measure.extremes, tuple(self._measure.quantiles))
        # Weak references: a lens that is kept for its record must not keep the memory of the training.
        self._optimizer: Any = weakref.ref(optimizer)
        self._model: Any = weakref.ref(_unwrap(model))
        self._handle: Any = None
        self._step = 0
        self._groups: list[dict[str, Any]] = []

    def attach(self) -> Self:
        """Start recording, and return the lens: ``lens = LearningRateLens(…).attach()``."""
        optimizer = self._optimizer()
        if optimizer is None:
            raise RuntimeError("the optimizer no longer exists, or the lens was unpickled: make a new lens")
        if self._handle is None:
            self._handle = optimizer.register_step_post_hook(self._on_step)
        return self

    def detach(self) -> None:
        """Take a last snapshot, if there was a step since the last one, and stop recording; the record stays."""
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

    def state_dict(self) -> dict[str, Any]:
        """The record and the number of steps, as plain values and tensors for a checkpoint."""
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the record of a ``state_dict()``, with its ``every``, extremes and quantiles.

        The last snapshot of a lens that was detached between two regular ones is dropped: without the interruption it
        would not exist.
        """
        super().load_state_dict(state)
        if self.steps and (self.steps[-1] - self.steps[0]) % self.stride:
            del self.steps[-1], self._snapshots[-1]
        self._step = state.get("step", max(self.steps, default=0))
        self._measure = replace(self._measure, extremes=self.extremes, quantiles=self.quantiles)

    def __getstate__(self) -> dict[str, Any]:
        """The record and the settings, without the optimizer and the model: an unpickled lens is detached."""
        if self._handle is not None:
            raise TypeError("a lens that is attached cannot be pickled or copied: call detach() first")
        return {**self.__dict__, "_optimizer": _nothing, "_model": _nothing, "on_look": None}

    @_disable_dynamo
    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._step += 1
        if not self._groups:  # the first step since attach: a resumed optimizer has counted the steps before
            counts = [int(state.get("step", 0)) for state in optimizer.state.values()]
            self._step = max(self._step, *counts, 0)
        # Schedulers change rates and betas before the last look, in detach; they change tensors in place.
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
                # Plain SGD has no state: there, only the gradient shows whether the parameter was updated.
                if param.grad is not None or optimizer.state.get(param) or name in self.patches:
                    rates = last_rates(optimizer, group, param)
                self.shapes.setdefault(name, tuple(param.shape))
                rows[name] = None
                if rates is not None:
                    rows[name], self.patches[name], self.shapes[name] = self._measure(name, rates, real_view(param))
        self.add(self._step, rows)
        if self.on_look is not None:
            named = {name: row for name, row in rows.items() if row is not None}
            self.on_look(self._step, {name: dict(zip(self.columns, row, strict=True)) for name, row in named.items()})


def _nothing() -> None:
    """A dead reference."""


def _unwrap(model: nn.Module) -> nn.Module:
    """The innermost model, whose parameters have the names that the user gave them."""
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        return _unwrap(model.module)
    for name in ("_orig_mod", "_forward_module"):  # torch.compile, Lightning Fabric
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrap(inner)
    return model
