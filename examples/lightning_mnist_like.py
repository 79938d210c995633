"""AdaBound under Lightning, on images like MNIST's: scikit-learn's digits, in less than a minute on one CPU core.

    pip install lightning
    python examples/lightning_mnist_like.py --out lightning-run

trains a small convolutional network, records its learning rates, stops in the middle, resumes from Lightning's
checkpoint, and prints the test accuracy and the table of the lens.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dynabound import AdaBound
from dynabound.integrations.lightning import LensCallback

TEST = 360


class Digits(pl.LightningDataModule):
    """1,437 training and 360 test images of 8×8 pixels."""

    def setup(self, stage):
        """Split once, with a fixed seed."""
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        labels = torch.tensor(digits.target)
        self.test, self.train = (TensorDataset(images[i], labels[i]) for i in (order[:TEST], order[TEST:]))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=TEST)


class Classifier(pl.LightningModule):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
        )  # fmt: skip

    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch, index):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return AdaBound(self.parameters(), lr=1e-3, final_lr=0.1, gamma=1e-2)


def main():
    """Train half of the epochs, resume, test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lightning-run"), help="the folder for logs and figures")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    checkpoint = None
    for epochs in (arguments.epochs // 2, arguments.epochs):
        pl.seed_everything(0)
        callback = LensCallback(every=20)
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[callback],
            logger=pl.loggers.CSVLogger(arguments.out),
            enable_progress_bar=False,
        )
        model, data = Classifier(), Digits()
        trainer.fit(model, data, ckpt_path=checkpoint)
        checkpoint = arguments.out / "half.ckpt"
        trainer.save_checkpoint(checkpoint)
    (result,) = trainer.test(model, data, verbose=False)
    print(
        f"test accuracy {result['accuracy']:.1%} after {trainer.global_step} steps; snapshots at {callback.lens.steps}"
    )
    callback.lens.table()
    callback.lens.evolution(["net.0.weight", "net.6.weight"]).savefig(arguments.out / "evolution.png", dpi=110)


if __name__ == "__main__":
    main()
