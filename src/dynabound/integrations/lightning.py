"""For Lightning: a learning-rate lens of its Trainer, and ``suggest`` for a LightningModule."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from dynabound import tuning
from dynabound._checks import check_choice
from dynabound.lens import LearningRateLens
from dynabound.lens.history import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dynabound.tuning import Suggestion
    from dynabound.tuning.torch import SuggestArguments

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is not installed: pip install lightning", name=error.name) from error

__all__ = ["LensCallback", "suggest"]


class LensCallback(Callback):
    """Record the learning rates of every optimizer during ``Trainer.fit``.

    The record is part of Lightning's checkpoints, and continues when training resumes from one. The loggers get
    ``learning_rate/<parameter>/<column>`` at every snapshot.

    Args:
        every, on_look: see :class:`~dynabound.lens.LearningRateLens`.
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
        if isinstance(log, str) or not isinstance(log, Iterable):
            raise TypeError(f"log={log!r}: must be a sequence of columns, such as ('min', 'median', 'max')")
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
        self._loaded = []  # a checkpoint belongs to one fit: the next fit starts a new record
        for lens, name in product(self.lenses, self._columns):
            check_choice("log", name, lens.columns)
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


def suggest(
    module: LightningModule, batches: Iterable[Any], steps: int, **settings: Unpack[SuggestArguments]
) -> Suggestion:
    """:func:`dynabound.suggest` with the loss that ``module.training_step`` returns. Call it before ``Trainer.fit``.

    The module is restored afterwards, except for state that ``training_step`` itself keeps, such as metrics: clear it
    in ``reset``, which is called before each trial and after the last. There is no Trainer during the trials: the
    module's own precision is used, batches are not accumulated, and ``self.log`` does nothing.

    Args:
        module: the module to train, with automatic optimization, on the device for the trials.
        batches: the DataLoader of the training, or any iterable of batches.
        steps: the length of the planned training, in optimizer steps: ``Trainer.estimated_stepping_batches``.
        settings: the keyword arguments of :func:`dynabound.suggest`; ``clip`` is Lightning's ``gradient_clip_val``.
    """
    if not module.automatic_optimization:
        raise ValueError(
            "module: automatic_optimization=False, so training_step() does not return the loss to minimise; "
            "call dynabound.suggest with a loss function"
        )
    index = (0,) if len(inspect.signature(module.training_step).parameters) > 1 else ()

    def loss(module: LightningModule, batch: Any) -> Any:
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        output = module.training_step(batch, *index)
        return output["loss"] if isinstance(output, Mapping) else output

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*`self.log")  # it warns that there is no Trainer
        return tuning.suggest(module, loss, batches, steps, **settings)
