"""What is trained at each scale, with how many seeds, and which learning rates are searched for or known beforehand."""

from __future__ import annotations

from typing import Any

_RESNET = dict(model="resnet34", weight_decay=5e-4)
_DENSENET = dict(model="densenet121", weight_decay=5e-4)
# Full batches only: a last batch of two images would add noise.
_DEMO_DIGITS = dict(task="digits-half", batch_size=64, examples=896)
_DEMO_PERCEPTRON = dict(**_DEMO_DIGITS, hidden=100, epochs=40)
_LAPTOP_CNN = dict(task="cifar10-2000", batch_size=64)
_LAPTOP_RESNET = dict(**_RESNET, **_LAPTOP_CNN, width=0.125, examples=5_120, epochs=4, decay_after=3)
_PAPER_CNN = dict(task="cifar10", width=1.0, epochs=200, decay_after=150)
_DEMO_LSTM = dict(task="pydoc", hidden=32, batch_size=10, epochs=5, examples=30_000)
_LAPTOP_LSTM = dict(task="ptb", hidden=64, epochs=3, examples=70_000)
_PAPER_LSTM = dict(task="ptb", hidden=200, epochs=200)

WORKLOADS: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {
        "perceptron": _DEMO_PERCEPTRON,
        # ResNet-34 and DenseNet-121 on 8×8 pixels take two and seven times as long, and their seeds differ by points.
        "resnet10": dict(**_DEMO_DIGITS, model="resnet10", width=1 / 8, weight_decay=5e-4, epochs=13, decay_after=10),
        "appendix": _DEMO_PERCEPTRON,
        # Epochs of five steps: the rates are recorded at the end of each.
        "resnet34-rates": dict(
            **_RESNET, task="digits", width=1 / 16, batch_size=64, examples=320, epochs=60, rates=True
        ),
        # Three layers need thousands of seeds: a run ends on one of two plateaus.
        **{f"lstm-{n}": {**_DEMO_LSTM, "layers": n} for n in (1, 2)},
    },
    "laptop": {
        "perceptron": dict(task="mnist", hidden=100, epochs=20),
        "resnet34": _LAPTOP_RESNET,
        # At half the width a step still takes twice as long as ResNet-34's.
        "densenet121": dict(**_DENSENET, **_LAPTOP_CNN, width=1 / 16, examples=2_560, epochs=3, decay_after=2),
        # All images, and to the end: the decay after three quarters is the paper's.
        "resnet34-16": dict(model="resnet34", task="cifar10-16", width=0.25, epochs=12, decay_after=9),
        "appendix": _LAPTOP_RESNET,
        "resnet34-rates": {**_LAPTOP_RESNET, "decay_after": None, "rates": True},
        **{f"lstm-{n}": {**_LAPTOP_LSTM, "layers": n} for n in (1, 2, 3)},
    },
    "paper": {
        "perceptron": dict(task="mnist", hidden=100, epochs=100),
        "resnet34": {**_RESNET, **_PAPER_CNN},
        "densenet121": {**_DENSENET, **_PAPER_CNN},
        "appendix": {**_RESNET, **_PAPER_CNN},
        "resnet34-rates": {**_RESNET, **_PAPER_CNN, "rates": True},
        **{f"lstm-{n}": {**_PAPER_LSTM, "layers": n} for n in (1, 2, 3)},
    },
}
"""What is trained at each scale: the fields of a RunSpec that all methods share. If a scale lacks a workload, its rows
are left out."""

SEEDS: dict[str, dict[str, int]] = {"demo": {"perceptron": 10, "resnet10": 10, "appendix": 5, "lstm-1": 8, "lstm-2": 8}}
"""Seeds by workload, for scales with more seeds of cheaper workloads; otherwise the study sets the number."""
FIRST_SEED = {"demo": 100, "laptop": 0, "paper": 0}
"""The demo's networks and the rates of FIXED were chosen with seeds below 100: its verdicts come from others."""

GAMMA_SCALE: dict[str, dict[str, float]] = {
    "demo": {"perceptron": 33, "resnet10": 28, "appendix": 33, "resnet34-rates": 17, "lstm": 15.4},
    "laptop": {
        "perceptron": 1,
        "resnet34": 4.89,
        "resnet34-16": 1,
        "densenet121": 9.78,
        "appendix": 4.89,
        "lstm": 13.3,
    },
    "paper": {"perceptron": 1, "resnet34": 1, "densenet121": 1, "appendix": 1, "lstm": 1},
}
"""Steps of an epoch in the paper, divided by steps of an epoch at this scale. The bounds' speed γ is multiplied by it,
so that the bounds converge as fast per epoch as in the paper. Suggested learning rates have a γ of their own."""

_COMPARED = ("perceptron", "resnet34", "densenet121", "lstm-1", "lstm-2", "lstm-3")
TUNED: dict[str, tuple[str, ...]] = {
    "demo": ("perceptron",), "laptop": (*_COMPARED, "resnet34-16"), "paper": _COMPARED
}  # fmt: skip
"""The workloads whose learning rates are searched for at each scale."""
BETAS_TUNED: dict[str, tuple[str, ...]] = {"demo": ("perceptron",), "laptop": ("perceptron",), "paper": _COMPARED}
"""The workloads among them where the betas of Adam and AMSGrad are searched for too, which takes four times the runs.
On the others they are 0.9 and 0.999, as for AdaBound."""

SHORTENED: dict[str, dict[str, Any]] = {"resnet34-16": dict(epochs=4, decay_after=3)}
"""Workloads whose search has shorter runs, and what differs: a search of whole runs would take days."""

FIXED: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "demo": {
        "resnet10": dict(
            sgdm=dict(lr=0.05),
            adagrad=dict(lr=0.05),
            adam=dict(lr=0.005),
            amsgrad=dict(lr=0.01, betas=(0.9, 0.99)),
        ),
        "lstm-1": dict(sgd=dict(lr=20.0), adam=dict(lr=0.05)),
        "lstm-2": dict(sgd=dict(lr=20.0), adam=dict(lr=0.01)),
    },
    "laptop": {},
    "paper": {},
}
"""Learning rates and options of workloads without a search; a method that is not listed keeps its defaults. Those of
the demo are the results of the paper's search, run beforehand: docs/reproduce.md has the commands."""
