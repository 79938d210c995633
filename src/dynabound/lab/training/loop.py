"""The training loop of one run, and all of its state, which is what a checkpoint contains."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dynabound._dtensor import full_tensor
from dynabound.lab.spec import RunSpec
from dynabound.lab.tasks import models, optimizers
from dynabound.lab.tasks.datasets import Data, Images
from dynabound.lab.training import distributed
from dynabound.lab.training.batches import Batch, derive_seed, make_batches, redistribute
from dynabound.optim import AdaBound
from dynabound.optim._scalars import current_bounds
from dynabound.tuning.snapshot import device_index, seed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# A GPU should not wait for Python to read a loss at every step, nor ranks for each other.
_READ_EVERY = 16
_ZERO = torch.tensor(0)


class DivergedError(Exception):
    """The loss is no longer finite; the argument is the step."""


class Training:
    """A run in memory. Deterministic: equal states lead to equal states.

    With ``fsdp`` each rank has a part of every parameter, otherwise all of it.
    """

    def __init__(self, spec: RunSpec, data: Data, device: torch.device, fsdp: bool = False) -> None:
        self.spec, self.device = spec, device
        seed(spec.seed, [device])
        self.model = models.build(spec.model, spec.to_dict(), data)
        self.mesh: DeviceMesh | None = None
        if fsdp:
            from dynabound.lab.training import fsdp as sharding  # takes seconds to import

            self.mesh = sharding.shard(self.model, device)
        else:
            self.model.to(device)
        self.optimizer = optimizers.build(
            spec.optimizer, self.model.parameters(), spec.lr, spec.weight_decay, spec.options
        )
        self.batches = make_batches(data, spec, device, distributed.rank(), distributed.world_size())
        self._forward: nn.Module = self.model
        if distributed.world_size() > 1 and not fsdp:
            self._forward = DistributedDataParallel(self.model)
        if distributed.world_size() > 1:
            seed(spec.seed + distributed.rank(), [device])  # different dropout on each rank
        alone = device.type == "cpu" and distributed.world_size() == 1
        self._read_every = 1 if alone else _READ_EVERY
        # A CPU convolves 1.2 to 1.5 times as fast if channels are adjacent in memory; DDP's buffers expect otherwise.
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        self._layout = torch.channels_last if alone and convolves else torch.contiguous_format
        self._correct = isinstance(data, Images)
        self._carry: models.Carry | None = None
        self.epoch, self.index, self.step = 1, 0, 0
        self.seconds = self.cpu_seconds = 0.0
        self.sums = [0.0, 0.0, 0]  # of the epoch so far: loss, correct answers, targets
        self.metrics: list[dict[str, Any]] = []

    def train_epoch(self) -> Iterator[None]:
        """Train to the end of the epoch, and yield wherever the run could be saved.

        Raises DivergedError at the first loss that is not finite.
        """
        rate = self.spec.lr / (10 if self.spec.decay_after and self.epoch > self.spec.decay_after else 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._forward.train()
        optimizers.set_mode(self.optimizer, training=True)
        pending: list[tuple[Tensor, Tensor, int]] = []
        started = _clocks()
        for batch in self.batches.epoch(self.epoch, self.index):
            pending.append((*self._step(batch), batch.size))
            self.index += 1
            self.step += 1
            if len(pending) == self._read_every or self.index == self.batches.steps:
                self._read(pending)
                pending.clear()
                self._count_time(started)
                yield
                started = _clocks()

    def _count_time(self, started: tuple[float, float]) -> None:
        wall, cpu = _clocks()
        self.seconds += wall - started[0]
        self.cpu_seconds += cpu - started[1]

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, correct = self._loss(self._forward, batch)
        if distributed.world_size() > 1:
            # The gradient is the mean over ranks with equal weights, while their parts of the batch may differ in size.
            loss = loss * (distributed.world_size() * batch.y.numel() / batch.size)
        torch.autograd.backward(loss)
        if self.spec.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), correct

    def _loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss and, of a classifier, the number of correct answers."""
        lowered = self.spec.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if lowered else contextlib.nullcontext():
            if isinstance(self.model, models.LanguageModel):
                logits, carry = model(batch.x, self._carry or self.model.start(batch.x.shape[1]))
                self._carry = carry[0].detach(), carry[1].detach()
            else:
                logits = model(batch.x.contiguous(memory_format=self._layout))
            loss = F.cross_entropy(logits.flatten(0, -2), batch.y.flatten())
        correct = torch.count_nonzero(logits.argmax(1) == batch.y) if self._correct else _ZERO
        return loss, correct

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, for other training loops, such as suggest; see :meth:`reset_hidden_state`."""
        return self._loss(model, batch)[0]

    def reset_hidden_state(self) -> None:
        """Start the next batch without the recurrent state of the last one."""
        self._carry = None

    def _read(self, pending: list[tuple[Tensor, Tensor, int]]) -> None:
        """Sum the losses of the last steps over all ranks; each is the rank's part of the mean."""
        values = torch.stack([torch.stack([loss.float(), correct.to(loss)]) for loss, correct, _ in pending])
        losses, corrects = distributed.all_reduce_sum(values).t().tolist()
        first = self.step - len(pending) + 1
        for number, (loss, correct, (_, _, size)) in enumerate(zip(losses, corrects, pending, strict=True)):
            if not math.isfinite(loss):
                raise DivergedError(first + number)
            self.sums[0] += loss / distributed.world_size() * size
            self.sums[1] += correct
            self.sums[2] += size

    @torch.no_grad()
    def _evaluate(self, split: str) -> tuple[float, float]:
        """The mean loss, and the share of correct answers."""
        sums = torch.zeros(3, dtype=torch.float64)
        self._carry = None
        for batch in self.batches.evaluation(split):
            loss, correct = self._loss(self.model, batch)
            size = batch.y.numel()
            if size:
                sums += torch.tensor([loss.item() * size, correct.item(), size], dtype=torch.float64)
        self._carry = None
        totals = distributed.all_reduce_sum(sums.to(self.device if self.device.type == "cuda" else "cpu")).tolist()
        return totals[0] / totals[2], totals[1] / totals[2]

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluate and start the next epoch; return the metrics of the one that ended.

        Raises DivergedError if a held-out loss is not finite.
        """
        started = _clocks()
        loss, correct, targets = self.sums
        metrics: dict[str, Any] = {"epoch": self.epoch, "step": self.step}
        distributed.broadcast_buffers(self.model)
        self.model.eval()
        optimizers.set_mode(self.optimizer, training=False)
        results = {"train": (loss / targets, correct / targets)}
        results |= {split: self._evaluate(split) for split in self.batches.splits}
        for split, (mean, share) in results.items():
            if not math.isfinite(mean):
                raise DivergedError(self.step)
            metrics[f"{split}_loss"] = mean
            metrics[f"{split}_{self.spec.metric}"] = share if self._correct else perplexity(mean)
        metrics |= {"lr": self.optimizer.param_groups[0]["lr"], **_bounds(self.optimizer, self.step)}
        if self.spec.rates:
            metrics["rates"] = _rates(self.model, self.optimizer)
        self._count_time(started)
        metrics |= {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        self.metrics.append(metrics)
        self.epoch, self.index, self.sums = self.epoch + 1, 0, [0.0, 0.0, 0]
        self.seconds = self.cpu_seconds = 0.0
        return metrics

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on. All ranks call this: each has its own random state."""
        local = {"random": _random_states(self.device), "carry": self._carry}
        return {
            **{name: getattr(self, name) for name in (*_POSITION, "cpu_seconds")},
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ranks": distributed.gather(local),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from ``state``, which any number of ranks may have saved."""
        for name in _POSITION:
            setattr(self, name, state[name])
        self.cpu_seconds = state.get("cpu_seconds", 0.0)  # the first checkpoints had none
        self._restore_local(state["ranks"])
        tensors = state["model"], state["optimizer"]
        if self.mesh is not None:
            from dynabound.lab.training.fsdp import shard_states

            tensors = shard_states(*tensors, self.model, self.optimizer)
        self.model.load_state_dict(tensors[0])
        self.optimizer.load_state_dict(tensors[1])

    def _restore_local(self, parts: list[dict[str, Any]]) -> None:
        carries = [part["carry"] for part in parts if part["carry"] is not None]
        hidden, cell = ([carry[place] for carry in carries] for place in (0, 1))
        self._carry = None
        if carries:
            mine = distributed.rank(), distributed.world_size()
            self._carry = redistribute(hidden, *mine).to(self.device), redistribute(cell, *mine).to(self.device)
        if len(parts) == distributed.world_size():
            _set_random_states(self.device, parts[distributed.rank()]["random"])
        else:  # the dropout of a different number of ranks cannot be continued
            seed(derive_seed(self.spec.seed, distributed.rank(), self.step), [self.device])


_POSITION = ("epoch", "index", "step", "seconds", "sums", "metrics")


def _clocks() -> tuple[float, float]:
    """Wall time, and the CPU time of this process, which waiting for other processes does not change."""
    return time.perf_counter(), time.process_time()


def perplexity(loss: float) -> float:
    """exp(loss), limited to what JSON can represent."""
    return math.exp(min(loss, 700.0))


@contextlib.contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """Put the random states of the CPU and of ``device`` back at the end."""
    states = _random_states(device)
    try:
        yield
    finally:
        _set_random_states(device, states)


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(*device_index(device)))
    return states


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    # The run may have started on a CPU, or on an accelerator whose states are of another size.
    if device.type != "cpu" and len(states) > 1 and states[1].shape == _random_states(device)[1].shape:
        torch.get_device_module(device).set_rng_state(states[1], *device_index(device))


def _bounds(optimizer: torch.optim.Optimizer, step: int) -> dict[str, float | None]:
    """The bounds of the last step, if the optimizer has bounds; None for infinity."""
    if not isinstance(optimizer, AdaBound):
        return {}
    now = current_bounds(optimizer.param_groups[0], step)
    return {"lower": now.lower, "upper": now.upper if math.isfinite(now.upper) else None}


def _rates(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """For each layer the minimum, 5%, median, 95% and maximum learning rate of the last step.

    Computed only from the optimizer's state, so that checkpoints need not contain it.
    """
    from dynabound.lens import effective_lr

    shares = torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0])
    layers = {}
    for name, param in model.named_parameters():
        rates = full_tensor(effective_lr(optimizer, param)).float().flatten().cpu().sort().values
        layers[name] = rates[(shares * (len(rates) - 1)).round().long()].tolist()
    return layers
