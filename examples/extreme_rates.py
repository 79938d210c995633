"""Does Adam suffer from extreme learning rates? The paper's question, on a small ResNet-34, in a minute or two.

    python examples/extreme_rates.py --out docs/figures

trains a ResNet-34 with an eighth of the width on scikit-learn's digits, once with Adam and once with AdaBound, prints
the learning rates of the last step, and writes the figures of the lens.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from dynabound import AdaBound
from dynabound.lab.tasks.models import ResNet34
from dynabound.lens import LearningRateLens

TEST = 360


def train(make_optimizer, epochs, batch=64):
    """Train a model; return its lens, the number of steps per epoch and the test accuracy."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, scale_factor=2)  # with 8×8 pixels the last kernels would see a single pixel
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    test, training = order[:TEST], order[TEST:]
    model = ResNet34(channels=1, width=1 / 8)
    optimizer = make_optimizer(model.parameters())
    with LearningRateLens(optimizer, model, every=4) as lens:
        for _ in range(epochs):
            for chosen in training[torch.randperm(len(training))].split(batch):
                optimizer.zero_grad()
                F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    return lens, -(-len(training) // batch), accuracy


def main():
    """Train with both optimizers, print the summaries, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="the folder for the figures")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    optimizers = {
        "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
        "adabound": lambda params: AdaBound(params, lr=1e-3, final_lr=0.1, gamma=1e-2),
    }
    for name, make_optimizer in optimizers.items():
        lens, steps_per_epoch, accuracy = train(make_optimizer, arguments.epochs)
        rates = lens.summary()["all"]
        low, high = lens.extremes
        print(
            f"{lens.optimizer_name}: test accuracy {accuracy:.1%}; at step {lens.steps[-1]} the rates range from "
            f"{rates['min']:.2g} to {rates['max']:.2g}; {rates['below']:.2%} are below {low:g} and "
            f"{rates['above']:.2%} above {high:g}"
        )
        layers = ["blocks.0.conv1.weight", "linear.weight"]
        lens.heatmap().savefig(arguments.out / f"lens-{name}-heatmap.png", dpi=110)
        lens.evolution(layers, steps_per_epoch).savefig(arguments.out / f"lens-{name}-evolution.png", dpi=110)
        lens.funnel().savefig(arguments.out / f"lens-{name}-funnel.png", dpi=110)


if __name__ == "__main__":
    main()
