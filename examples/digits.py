"""SGD with momentum, Adam and AdaBound on scikit-learn's handwritten digits: a table and a picture in half a minute.

Run ``python examples/digits.py --help`` for the options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dynabound import AdaBound

OPTIMIZERS: dict[str, tuple[str, Callable[..., torch.optim.Optimizer]]] = {
    "SGDM": ("#009E73", lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9)),
    "Adam": ("#D55E00", lambda params: torch.optim.Adam(params, lr=1e-3)),
    "AdaBound": ("#0072B2", lambda params: AdaBound(params, lr=1e-3, final_lr=0.1)),
}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train and test images (8×8, in [0, 1]) and labels: 1437 and 360, split by a fixed seed."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(data.data, dtype=torch.float32) / 16)[order]
    labels = torch.tensor(data.target)[order]
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def train(make: Callable[..., torch.optim.Optimizer], epochs: int, seed: int) -> list[tuple[float, float]]:
    """Train loss and test accuracy after every epoch."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = make(model.parameters())
    history = []
    for _ in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        history.append((total / len(labels), 100 * accuracy))
    return history


def draw(results: dict[str, Tensor]) -> Figure:
    """Mean over the seeds, with a band from the smallest to the largest; ``results`` is seed × epoch × 2."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, runs in results.items():
        epochs = torch.arange(1, runs.shape[1] + 1)
        for axis, values in zip(axes, runs.unbind(2), strict=True):
            axis.plot(epochs, values.mean(0), color=OPTIMIZERS[name][0], label=name)
            axis.fill_between(epochs, values.amin(0), values.amax(0), color=OPTIMIZERS[name][0], alpha=0.2, lw=0)
    axes[0].set(xlabel="epoch", ylabel="training loss (cross-entropy)", yscale="log")
    axes[1].set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(85, 100))
    axes[0].legend(frameon=False)
    figure.suptitle("Handwritten digits, one hidden layer of 64; mean and range over seeds", fontsize=10)
    return figure


def main() -> None:
    """Train, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for digits.png (default: demo)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small for several threads
    runs = [(name, seed) for name in OPTIMIZERS for seed in range(arguments.seeds)]
    histories: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in OPTIMIZERS}
    for name, seed in track(runs, "training", transient=True):
        histories[name].append(train(OPTIMIZERS[name][1], arguments.epochs, seed))
    results = {name: torch.tensor(history) for name, history in histories.items()}
    table = Table(title=f"Digits after {arguments.epochs} epochs; mean over {arguments.seeds} seeds (lowest–highest)")
    for column in ("", "training loss", "test accuracy (%)", "after 3 epochs (%)"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in results.items():
        last = values[:, -1]
        early = values[:, min(2, arguments.epochs - 1), 1].mean()
        spread = f"{last[:, 1].mean():.2f} ({last[:, 1].min():.2f}–{last[:, 1].max():.2f})"
        table.add_row(name, f"{last[:, 0].mean():.4f}", spread, f"{early:.2f}")
    Console().print(table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "digits.png"
    draw(results).savefig(path, dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
