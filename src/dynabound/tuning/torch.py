"""``suggest`` for torch: short trials with the user's model, which is restored afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from typing_extensions import Unpack

from dynabound.optim import AdaBound
from dynabound.tuning import trials
from dynabound.tuning.decide import Trial
from dynabound.tuning.known_rates import AdamsRates, adams_rates
from dynabound.tuning.snapshot import Snapshot
from dynabound.tuning.suggestion import Suggestion, scaled_groups

Model = TypeVar("Model", bound=nn.Module)
_ADAM = ("constant", 0.0, math.inf)  # with these bounds AdaBound is Adam
_RATES = ("final_lr", "gamma", "bounds")


class SuggestOptions(TypedDict, total=False):
    """The optimizer's arguments that the trials and the run share."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsbound: bool
    decoupled_weight_decay: bool | Literal["fully"]


class SuggestArguments(SuggestOptions, total=False):
    """All keyword arguments of :func:`suggest`, for functions that pass them on."""

    params: Iterable[Any] | None
    finish: Literal["auto", "adam", "sgd"]
    lr: float
    validation: Iterable[Any] | None
    clip: float | None
    reset: Callable[[], object] | None
    budget: int | None
    repeats: int
    seed: int
    progress: Callable[[int, int], object] | None


def suggest(
    model: Model,
    loss: Callable[[Model, Any], Tensor],
    batches: Iterable[Any],
    steps: int,
    *,
    params: Iterable[Any] | None = None,
    finish: Literal["auto", "adam", "sgd"] = "auto",
    lr: float = 0.01,
    validation: Iterable[Any] | None = None,
    clip: float | None = None,
    reset: Callable[[], object] | None = None,
    budget: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
    **options: Unpack[SuggestOptions],
) -> Suggestion:
    """Find ``lr``, ``final_lr`` and ``gamma`` of AdaBound for this model by short trials, before training.

    First Adam is tried at a few rates, then SGD, then AdaBound beside the best of Adam, all from the model's current
    weights and on the same batches; docs/suggest-why.md has the rule. The model, its gradients, its mode and all random
    states are restored exactly, also after an exception. With ``torch.distributed`` every rank must call it, and gets
    the same answer.

    Args:
        model: the model to train. Its trained parameters and buffers are copied once.
        loss: ``loss(model, batch)`` returns the scalar to minimise. Move the batch to a device and use autocast here.
        batches: any iterable, such as a DataLoader; ``budget`` / 12 · ``repeats`` batches are kept in memory.
        steps: the length of the planned run, in optimizer steps.
        params: parameters or param groups to be trained. None: all that require gradients. If groups set ``lr``, only
            the ratios matter: they are kept, and the suggestion is the largest; see ``Suggestion.apply``.
        finish: "auto": Adam with a decay, by an upper bound that falls as 1/t, unless bounds that close around a rate
            of SGD end clearly lower in a trial, or Adam's rates differ too much for one bound. "adam": Adam without a
            decay. "sgd": bounds that close late.
        lr: the first rate of Adam that is tried.
        validation: batches that the trials are judged by, in evaluation mode; all are used after each trial. None: the
            trials are judged by their last training losses.
        clip: largest norm of the gradient. None: no clipping.
        reset: called before each trial and after the last, to clear state that ``loss`` itself keeps, such as a
            recurrent state.
        budget: training steps to spend in each repeat. None: 1.4 times as many as the run has, but at most 600.
        repeats: the number of repetitions, with other batches; the answer is the geometric mean.
        seed: seed of dropout, and of the batches if they are drawn from torch's global generator.
        progress: called with (steps made, largest number of steps) after each step.
        options: ``betas``, ``eps``, ``weight_decay``, ``amsbound``, ``decoupled_weight_decay`` of the optimizer.

    Raises:
        SuggestError: the loss is not finite at the start, does not depend on the parameters, or never decreases.

    Example:
        >>> import torch
        >>> from dynabound import AdaBound
        >>> from dynabound.tuning import suggest
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 1)
        >>> batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(20, 32, 8)]
        >>> def loss(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> suggestion = suggest(model, loss, batches, steps=400)
        >>> optimizer = AdaBound(model.parameters(), **suggestion.options)
        >>> print(suggestion)
        lr = ...
        final_lr = ...
        gamma = ...
    """
    if isinstance(loss, nn.modules.loss._Loss):
        name = type(loss).__name__
        raise TypeError(f"loss={name}(): must be a function loss(model, batch), such as one that returns "
                        f"{name}()(model(batch[0]), batch[1])")  # fmt: skip
    groups = param_groups(model, params)
    snapshot = Snapshot(model, [param for group in groups for param in group["params"]], batches, validation)
    with ExitStack() as stack:
        stack.callback(snapshot.restore)  # also if reset() fails
        plan = trials.check_plan(
            steps, budget, repeats, finish, lr, validation, options, SuggestOptions.__annotations__, clip
        )
        if reset is not None:
            stack.callback(reset)
        snapshot.seed(seed)
        runner = TorchRunner(model, loss, groups, snapshot, options, clip, reset, seed, progress, plan)
        return trials.suggest_with(runner, batches, options, Suggestion)


class TorchRunner(trials.TrialRunner):
    """Trains a torch module, which a ``snapshot`` restores."""

    errors = (*trials.TrialRunner.errors, torch.linalg.LinAlgError)  # type: ignore[attr-defined]

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        groups: Sequence[Mapping[str, Any]],
        snapshot: Snapshot,
        options: Mapping[str, Any],
        clip: float | None,
        reset: Callable[[], object] | None,
        seed: int,
        progress: trials.ProgressCallback | None,
        plan: trials.Plan,
    ) -> None:
        super().__init__(progress, plan)
        self.model, self.loss, self.groups, self.snapshot = model, loss, groups, snapshot
        self.options, self.clip, self.reset, self.seed = options, clip, reset, seed
        self.optimizer: AdaBound | None = None
        if not model.training:
            model.train()
        self.modes = [(module, module.training) for module in model.modules()]

    def start(self, rates: trials.TrialRates | None) -> None:
        """Restore the weights and make a new optimizer; without rates, none."""
        self.snapshot.rewind()
        for module, training in self.modes:
            module.training = training
        if self.reset is not None:
            self.reset()
        rank = dist.get_rank() if _distributed() else 0
        self.snapshot.seed(self.seed + rank)  # the same dropout in each trial, but not on each rank
        self.optimizer = None
        if rates is not None:
            self.optimizer = AdaBound(scaled_groups(self.groups, rates.lr, rates.final_lr), gamma=rates.gamma or 1.0,
                                      bounds="harmonic" if rates.gamma else _ADAM, **self.options)  # fmt: skip

    def run(self, kind: str, rate: float, batches: Sequence[Any], rates: trials.TrialRates, repeat: int) -> Trial:
        trial = super().run(kind, rate, batches, rates, repeat)
        if not math.isfinite(trial.losses[0]):
            raise trials.SuggestError(
                f"loss={trial.losses[0]} on the first batch, where it was finite before: loss() keeps state from an "
                "earlier trial; pass reset=, a function that clears it"
            )
        return trial

    def evaluate(self, batch: Any) -> float:
        """The loss in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            return _mean(self._checked(batch))

    def step(self, batch: Any) -> float:
        self.snapshot.drop_gradients()
        with torch.enable_grad():
            value = self._checked(batch)
        if self.optimizer is not None:
            self._update(self.optimizer, value)
            torch.clear_autocast_cache()  # otherwise copies in half precision, made before the update, are used again
        return _mean(value)

    def _checked(self, batch: Any) -> Tensor:
        # A loss may pop the labels, and the batch is used again.
        value = self.loss(self.model, copy.copy(batch) if isinstance(batch, MutableMapping) else batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss(model, batch) returned {shape}: must be a tensor with one element")
        return value

    def _update(self, optimizer: AdaBound, value: Tensor) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if not value.requires_grad:
            raise trials.SuggestError("loss(model, batch) does not depend on the parameters: it requires no gradient")
        torch.autograd.backward(value)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(params, self.clip)
        optimizer.step()  # before gradients are compared: it refuses sparse ones, with a remedy
        if self.cost == 0 and not any([param.grad is not None and bool((param.grad != 0).any()) for param in params]):
            raise trials.SuggestError("loss(model, batch) does not depend on params: their gradients are missing or 0")

    def adams_rates(self) -> AdamsRates:
        assert self.optimizer is not None
        return adams_rates(self.optimizer)


def param_groups(model: nn.Module, params: Iterable[Any] | None) -> list[dict[str, Any]]:
    """The param groups for the optimizer of each trial; ValueError if a group has what cannot be tried."""
    if any(nn.parameter.is_lazy(param) for param in model.parameters()):
        raise ValueError("model: has lazy modules without parameters yet; call it once on a batch")
    if params is None:
        params = [param for param in model.parameters() if param.requires_grad]
    chosen: list[Any] = list(params)
    if not chosen:
        raise ValueError("params: must hold at least one parameter that requires a gradient")
    if not isinstance(chosen[0], dict):
        chosen = [{"params": chosen}]
    for group in chosen:
        for name in _RATES:
            if name in group:
                raise ValueError(f"params: a group sets {name}={group[name]!r}; leave it out, suggest finds it. "
                                 "AdaBound adds it to the groups that it is given: call suggest before")  # fmt: skip
    if len({"lr" in group for group in chosen}) > 1:
        raise ValueError("params: either all groups set lr, so that their ratios are kept, or none")
    # torch accepts single tensors, iterators and named parameters; its optimizer resolves them.
    plain = AdaBound([dict(group) for group in chosen]).param_groups
    for param in (param for group in plain for param in group["params"]):
        if getattr(param, "_post_accumulate_grad_hooks", None):
            raise ValueError("params: a hook of a parameter runs in the backward pass, such as an optimizer's step; "
                             "call suggest before registering it")  # fmt: skip
    return [{**group, "params": list(made["params"])} for group, made in zip(chosen, plain, strict=True)]


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _mean(loss: Tensor) -> float:
    """The loss, averaged over all ranks, so that they make the same decisions."""
    value = loss.detach().double() if loss.device.type != "mps" else loss.detach().float()
    if _distributed():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value.item())
