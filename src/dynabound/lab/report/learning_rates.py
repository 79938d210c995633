"""Learning rates out of stored runs: single ones from a checkpoint, a layer's statistics over time from the metrics."""

from __future__ import annotations

from typing import Any

import torch

from dynabound.lab.report.results import Curve
from dynabound.lab.store import Store
from dynabound.lab.tasks import optimizers
from dynabound.lens import effective_lr

__all__ = ["evolution", "sampled"]

_EXTREMES = (1e-2, 1e3)
_KERNELS = 9


def sampled(curve: Curve, store: Store) -> dict[str, Any] | None:
    """Figure 1's data: nine 3×3 kernels from first to last and the last bias, and how many rates are extreme.

    The parameters come out of the checkpoint, so that neither the model nor its data is needed.
    """
    state = store.run(curve.spec).load_checkpoint() if curve.finished else None
    if state is None:
        return None
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    params = {name: torch.nn.Parameter(value) for name, value in state["model"].items() if not name.endswith(buffers)}
    spec = curve.spec
    optimizer = optimizers.build(
        spec.optimizer, params.values(), float(spec.lr or 0), spec.weight_decay or 0, spec.options
    )
    optimizer.load_state_dict(state["optimizer"])
    rates = {name: effective_lr(optimizer, param).double() for name, param in params.items()}
    kernels = [name for name, value in rates.items() if value.shape[2:] == (3, 3)]
    chosen = [kernels[round(i * (len(kernels) - 1) / (_KERNELS - 1))] for i in range(_KERNELS)]
    bias = [name for name in rates if name.endswith("bias")][-1]
    flat = torch.cat([value.flatten() for value in rates.values()])
    return {
        "step": state["step"],
        "kernels": {name: rates[name][0, 0].tolist() for name in chosen},
        "bias": {bias: rates[bias][:10].tolist()},
        "elements": flat.numel(),
        "min": flat.min().item(),
        "max": flat.max().item(),
        "below": (flat < _EXTREMES[0]).double().mean().item(),
        "above": (flat > _EXTREMES[1]).double().mean().item(),
    }


def evolution(curve: Curve) -> dict[str, Any]:
    """The last figure's data: min, median and max of two layers, and the bounds, epoch by epoch."""
    if not curve.finished:
        return {}
    metrics = curve.finished[0].metrics
    names = [name for name in metrics[0]["rates"] if name.endswith("conv1.weight")]
    layers = {}
    for name in (names[len(names) // 4], names[3 * len(names) // 4]):
        lines = [line["rates"][name] for line in metrics]
        layers[name] = {key: [line[place] for line in lines] for key, place in (("min", 0), ("median", 2), ("max", 4))}
    return {
        "layers": layers,
        "lower": [line["lower"] for line in metrics],
        "upper": [line["upper"] for line in metrics],
        "final_lr": curve.spec.options.get("final_lr", 0.1) * metrics[-1]["lr"] / metrics[0]["lr"],
    }
