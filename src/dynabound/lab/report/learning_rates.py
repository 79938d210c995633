"""Learning rates of stored runs: single rates from a checkpoint, statistics of a layer over time from the metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from dynabound.lab.errors import LabError
from dynabound.lab.report.results import Curve
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import optimizers
from dynabound.lens import effective_lr

__all__ = ["RateEvolution", "SampledRates", "rate_evolution", "sample_rates"]

log = logging.getLogger(__name__)
_EXTREMES = (1e-2, 1e3)
_KERNELS = 9
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class SampledRates:
    """Figure 1's data: nine 3×3 kernels from the first layer to the last, a bias, and the share of extreme rates."""

    step: int
    kernels: dict[str, list[list[float]]]
    bias: dict[str, list[float]]
    elements: int
    min: float
    max: float
    below: float
    """The share of all rates below 0.01."""
    above: float
    """The share of all rates above 1000."""


@dataclass(frozen=True)
class RateEvolution:
    """The last figure's data: min, median and max of two layers, and the bounds, epoch by epoch."""

    layers: dict[str, dict[str, list[float]]]
    lower: list[float]
    upper: list[float]
    final_lr: float


def sample_rates(curve: Curve, store: Store) -> SampledRates | None:
    """Read Figure 1's data from the checkpoint of the first seed; None if that run has not finished.

    The parameters are read from the checkpoint too, so neither the model nor its data is needed.
    """
    if not curve.finished:
        return None
    try:
        state = store.run(curve.spec).load_checkpoint()
        return None if state is None else _sample(curve.spec, state)
    except (LabError, LookupError, RuntimeError, TypeError, ValueError) as error:  # another run's, or forged
        log.warning("run %s: its learning rates are not shown (%s)", curve.spec.name, error)
        return None


def _sample(spec: RunSpec, state: dict[str, Any]) -> SampledRates:
    params = {name: torch.nn.Parameter(value) for name, value in state["model"].items() if not name.endswith(_BUFFERS)}
    optimizer = optimizers.build(
        spec.optimizer, params.values(), float(spec.lr or 0), spec.weight_decay or 0, spec.options
    )
    optimizer.load_state_dict(state["optimizer"])
    rates = {name: effective_lr(optimizer, param).double() for name, param in params.items()}
    kernels = [name for name, value in rates.items() if value.shape[2:] == (3, 3)]
    chosen = [kernels[round(i * (len(kernels) - 1) / (_KERNELS - 1))] for i in range(_KERNELS)]
    bias = [name for name in rates if name.endswith("bias")][-1]
    flat = torch.cat([value.flatten() for value in rates.values()])
    return SampledRates(
        step=state["step"],
        kernels={name: rates[name][0, 0].tolist() for name in chosen},
        bias={bias: rates[bias][:10].tolist()},
        elements=flat.numel(),
        min=flat.min().item(),
        max=flat.max().item(),
        below=(flat < _EXTREMES[0]).double().mean().item(),
        above=(flat > _EXTREMES[1]).double().mean().item(),
    )


def rate_evolution(curve: Curve) -> RateEvolution | None:
    """Read the last figure's data from the metrics of the first seed that finished; None if none has."""
    if not curve.finished:
        return None
    metrics = curve.finished[0].metrics
    shared = set.intersection(*(set(line.get("rates", ())) for line in metrics))
    names = [name for name in metrics[0].get("rates", ()) if name in shared and name.endswith("conv1.weight")]
    if not names:
        return None
    layers = {}
    for name in (names[len(names) // 4], names[3 * len(names) // 4]):
        lines = [line["rates"][name] for line in metrics]
        layers[name] = {key: [line[i] for line in lines] for key, i in (("min", 0), ("median", 2), ("max", 4))}
    return RateEvolution(
        layers,
        lower=[line["lower"] for line in metrics],
        upper=[line["upper"] for line in metrics],
        final_lr=curve.spec.options.get("final_lr", 0.1) * metrics[-1]["lr"] / metrics[0]["lr"],
    )
