"""A learning-rate lens for the Trainer of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dynabound._files import replacing
from dynabound.lens import LearningRateLens
from dynabound.lens.history import Record

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is not installed: pip install transformers", name=error.name) from error

__all__ = ["LensCallback"]

_FILE = "learning_rates.pt"


class LensCallback(TrainerCallback):
    """Record the learning rates during ``Trainer.train``.

    Each ``checkpoint-N`` gets a file ``learning_rates.pt`` with the record. When training resumes at step N, the
    record of ``output_dir/checkpoint-N`` is continued if there is one.

    Args:
        every, on_look: as of :class:`~dynabound.lens.LearningRateLens`.
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
