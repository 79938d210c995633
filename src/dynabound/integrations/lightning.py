"""A learning-rate lens for Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynabound.lens import LearningRateLens
from dynabound.lens.history import Record

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is not installed: pip install lightning", name=error.name) from error

__all__ = ["LensCallback"]


class LensCallback(Callback):
    """Record the learning rates of every optimizer during ``Trainer.fit``.

    The record is part of Lightning's checkpoints, and continues when training resumes from one. The loggers get
    ``learning_rate/<parameter>/<column>`` at every snapshot.

    Args:
        every, on_look: as of :class:`~dynabound.lens.LearningRateLens`.
        log: the columns that the loggers get; () for none.
        make_lens: ``functools.partial(LearningRateLens, extremes=(1e-3, 1e2))`` sets the other options of the lens.

    After ``fit``, :attr:`lens` has the record; with several optimizers, :attr:`lenses` has one for each.
    """

    def __init__(
        self,
        every: int = 100,
        on_look: Callable[[int, Record], object] | None = None,
        log: Sequence[str] = ("min", "median", "max"),
        make_lens: Callable[..., LearningRateLens] = LearningRateLens,
    ) -> None:
        self.every, self.on_look, self.make_lens = every, on_look, make_lens
        self._columns = tuple(log)  # Lightning sets self.log
        self.lenses: list[LearningRateLens] = []
        self._loaded: list[dict[str, Any]] = []

    @property
    def lens(self) -> LearningRateLens:
        """The lens of the first optimizer."""
        if not self.lenses:
            raise RuntimeError("training has not begun: pass the callback to a Trainer, and call fit()")
        return self.lenses[0]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def on_look(step: int, record: Record) -> None:
            if self.on_look is not None:
                self.on_look(step, record)
            metrics = {f"learning_rate/{name}/{key}": row[key] for name, row in record.items() for key in self._columns}
            if metrics and trainer.is_global_zero:
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step)

        self.lenses = [
            self.make_lens(optimizer, pl_module, every=self.every, on_look=on_look) for optimizer in trainer.optimizers
        ]
        for lens, state in zip(self.lenses, self._loaded, strict=False):
            lens.load_state_dict(state)
        for lens in self.lenses:
            lens.attach()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for lens in self.lenses:
            lens.detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"lenses": [lens.state_dict() for lens in self.lenses] or self._loaded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = list(state_dict["lenses"])
