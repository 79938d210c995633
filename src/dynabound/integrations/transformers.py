"""For the Trainer of Hugging Face transformers: a learning-rate lens, and ``suggest``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dynabound import tuning
from dynabound._files import replacing
from dynabound.lens import LearningRateLens
from dynabound.lens.history import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dynabound.tuning import Suggestion
    from dynabound.tuning.torch import SuggestArguments

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is not installed: pip install transformers", name=error.name) from error

__all__ = ["LensCallback", "suggest"]

_FILE = "learning_rates.pt"


class LensCallback(TrainerCallback):
    """Record the learning rates during ``Trainer.train``.

    Each ``checkpoint-N`` gets a file ``learning_rates.pt`` with the record. When training resumes at step N, the
    record of ``output_dir/checkpoint-N`` is continued if there is one.

    Args:
        every, on_look: see :class:`~dynabound.lens.LearningRateLens`.
        make_lens: ``functools.partial(LearningRateLens, extremes=(1e-3, 1e2))`` sets the other options of the lens.

    After ``train``, :attr:`lens` has the record.
    """

    def __init__(
        self,
        every: int = 100,
        on_look: Callable[[int, Record], object] | None = None,
        make_lens: Callable[..., LearningRateLens] = LearningRateLens,
    ) -> None:
        self.every, self.on_look, self.make_lens = every, on_look, make_lens
        self._lens: LearningRateLens | None = None

    @property
    def lens(self) -> LearningRateLens:
        """The lens of the last training."""
        if self._lens is None:
            raise RuntimeError("training has not begun: pass the callback to a Trainer, and call train()")
        return self._lens

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._lens = self.make_lens(kwargs["optimizer"], kwargs["model"], every=self.every, on_look=self.on_look)
        path = _checkpoint(args, state)
        if state.global_step and path.is_file():
            self._lens.load_state_dict(torch.load(path, weights_only=True))
        self._lens.attach()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        path = _checkpoint(args, state)
        if state.is_world_process_zero and path.parent.is_dir():
            with replacing(path) as file:
                torch.save(self.lens.state_dict(), file)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.lens.detach()


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / _FILE


def suggest(trainer: Trainer, steps: int | None = None, **settings: Unpack[SuggestArguments]) -> Suggestion:
    """:func:`dynabound.suggest` with a Trainer's model, loss and training data. Call it before ``Trainer.train``.

    The model is restored afterwards. The loss is that of ``Trainer.compute_loss``, with the Trainer's autocast; batches
    are those of ``get_train_dataloader``, one for each step: they are not accumulated. The optimizer of the Trainer is
    not used.

    Args:
        trainer: the Trainer, in one process.
        steps: the length of the planned training, in optimizer steps. None: taken from the Trainer's arguments.
        settings: the keyword arguments of :func:`dynabound.suggest`. ``clip`` is ``max_grad_norm`` if not given.
    """
    batches, args = trainer.get_train_dataloader(), trainer.args
    if steps is None:
        per_epoch = math.ceil(len(batches) / args.gradient_accumulation_steps) if args.max_steps <= 0 else 0
        steps = math.ceil(per_epoch * args.num_train_epochs) or args.max_steps
    settings.setdefault("clip", args.max_grad_norm or None)

    def loss(model: Any, batch: Any) -> Any:
        with trainer.compute_loss_context_manager():
            return trainer.compute_loss(model, trainer._prepare_inputs(batch))

    return tuning.suggest(trainer.model, loss, batches, steps, **settings)
