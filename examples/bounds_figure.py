"""What the bounds do to a learning rate, drawn from a real run: the figure of the front page, in half a minute.

    python examples/bounds_figure.py --out docs/figures/bounds.png

A small network learns scikit-learn's handwritten digits with AdaBound. The figure follows the learning rates of a few
weights, and what Adam would use for one of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dynabound import AdaBound, bounds

LR, FINAL_LR, GAMMA = 1e-3, 0.1, 1e-3
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#555555"
SHOWN = 8
"""How many learning rates are drawn faintly."""


def record(steps: int) -> Tensor:
    """Adam's learning rate, not clipped, of every weight of the last layer after each step: steps × weights."""
    torch.manual_seed(0)
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = AdaBound(model.parameters(), lr=LR, final_lr=FINAL_LR, gamma=GAMMA)
    weight = model[2].weight
    rates = torch.empty(steps, weight.numel())
    for t in range(1, steps + 1):
        batch = torch.randint(len(labels), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        second_moment = optimizer.state[weight]["exp_avg_sq"].flatten() / (1 - 0.999**t)
        rates[t - 1] = LR / (1 - 0.9**t) / (second_moment.sqrt() + 1e-8)
    return rates


def draw(rates: Tensor) -> Figure:
    """One learning rate in full, some faintly, between the two bounds that close around the final learning rate."""
    steps = torch.arange(1, len(rates) + 1, dtype=torch.float64)
    lower, upper = (FINAL_LR * bound for bound in bounds.evaluate("harmonic", GAMMA, steps))
    clipped = rates.double().clamp(lower[:, None], upper[:, None])
    order = rates[0].argsort()
    places = order[torch.linspace(0.08, 0.8, SHOWN).mul(len(order)).long()]
    main = places[SHOWN // 2]

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(steps, lower, upper, color="#999999", alpha=0.16, linewidth=0)
    axes.plot(steps, torch.stack([lower, upper], 1), color=GREY, linewidth=1.6)
    axes.plot(steps, clipped[:, places], color=BLUE, linewidth=0.8, alpha=0.3)
    axes.plot(steps, rates[:, main], color=VERMILION, linewidth=2, linestyle=(0, (2, 1)))
    axes.plot(steps, clipped[:, main], color=BLUE, linewidth=3)
    label(axes, len(rates))
    return figure


def label(axes: Axes, last: int) -> None:
    """Words beside the lines, instead of a legend, large enough for a phone."""
    axes.set(xscale="log", yscale="log", xlim=(1, last), ylim=(1e-3, 60))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=12)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("training step", fontsize=13)
    axes.set_ylabel("learning rate", fontsize=13)
    title = "AdaBound clips each of Adam's learning rates\nbetween two bounds that close around final_lr"
    axes.set_title(title, fontsize=14.5, weight="bold", linespacing=1.25)
    for x, y, text, colour, side in (
        (11, 14, "upper bound", GREY, "left"),
        (40, 1.7e-3, "lower bound", GREY, "left"),
        (1.15, 0.012, "starts as Adam:\nnot clipped", BLUE, "left"),
        (last, 0.013, "ends as SGD:\none learning rate", BLUE, "right"),
        (last, 1.9, "Adam would use this", VERMILION, "right"),
    ):
        axes.text(x, y, text, color=colour, fontsize=13, ha=side)
    axes.text(1.012, FINAL_LR, "final_lr", transform=axes.get_yaxis_transform(), fontsize=13, va="center")


def main() -> None:
    """Record, draw and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bounds.png"), help="the figure")
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    draw(record(arguments.steps)).savefig(arguments.out, dpi=150, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
