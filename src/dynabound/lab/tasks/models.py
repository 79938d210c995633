"""The paper's networks, adapted to small images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabound.lab.tasks.datasets import Data, Text

Carry: TypeAlias = "tuple[Tensor, Tensor]"
"""An LSTM's hidden and cell state, of shape layers × batch × hidden."""

MODELS: dict[str, dict[str, Any]] = {
    "perceptron": {"hidden": 100},
    "resnet34": {"width": 0.125},
    "densenet121": {"width": 0.125},
    "resnet10": {"width": 0.125},
    "lstm": {"hidden": 200, "layers": 1, "dropout": 0.2, "bptt": 35, "clip": 0.25},
}
"""The models, each with its own fields of a spec and their defaults; in specs of other models these fields are None."""


def build(model: str, fields: Mapping[str, Any], data: Data) -> nn.Module:
    """The model of that name, with the inputs and outputs that the data needs."""
    if isinstance(data, Text):
        return LanguageModel(data.vocabulary, fields["hidden"], fields["layers"], fields["dropout"])
    _, channels, height, width = data.train[0].shape
    if model == "perceptron":
        return Perceptron(channels * height * width, fields["hidden"], data.classes)
    return _CONVOLUTIONAL[model](data.classes, channels, fields["width"])


class Perceptron(nn.Module):
    """One hidden layer of rectified units, as torch initialises them.

    >>> sum(p.numel() for p in Perceptron(28 * 28, hidden=100).parameters())
    79510
    """

    def __init__(self, inputs: int, hidden: int = 100, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(F.relu(self.hidden(x.flatten(1))))
        return logits


def _init_convolutions(model: nn.Module) -> None:
    """He et al. 2015: normal, with the variance that keeps the gradients' size through rectified units."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class _BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected where the shape changes (He et al. 2015, option B)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet34(nn.Module):
    """ResNet-34 for small images: a 3×3 stem without pooling; 21.28 M parameters at width 1 and 10 classes.

    >>> sum(p.numel() for p in ResNet34().parameters())
    21282122
    """

    depths = (3, 4, 6, 3)

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        widths = [max(1, round(planes * width)) for planes in (64, 128, 256, 512)]
        self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (outputs, depth) in enumerate(zip(widths, self.depths, strict=True)):
            for position in range(depth):
                blocks.append(_BasicBlock(inputs, outputs, stride=2 if stage and not position else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, classes)
        _init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu(self.norm(self.conv(x)), inplace=True))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits


class ResNet10(ResNet34):
    """A short ResNet, with one block per stage: a step takes a third of ResNet-34's time, and seeds differ less.

    >>> sum(p.numel() for p in ResNet10().parameters())
    4903242
    """

    depths = (1, 1, 1, 1)


class _DenseLayer(nn.Module):
    """A 1×1 bottleneck and a 3×3 convolution, whose output is appended to the input (Huang et al. 2017)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        return torch.cat([self.conv2(F.relu(self.norm2(y), inplace=True)), x], 1)


class DenseNet121(nn.Module):
    """DenseNet-121 for small images: a 3×3 stem without pooling; 6.96 M parameters at width 1 and 10 classes.

    >>> sum(p.numel() for p in DenseNet121().parameters())
    6956298
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        growth = max(1, round(32 * width))
        features = 2 * growth
        self.conv = nn.Conv2d(channels, features, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for stage, depth in enumerate((6, 12, 24, 16)):
            if stage:  # a transition halves the channels and the image
                halved = features // 2
                blocks += [
                    nn.BatchNorm2d(features),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(features, halved, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                features = halved
            for _ in range(depth):
                blocks.append(_DenseLayer(features, growth))
                features += growth
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(features)
        self.linear = nn.Linear(features, classes)
        _init_convolutions(self)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.blocks(self.conv(x))), inplace=True)
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits


_CONVOLUTIONAL = {"resnet34": ResNet34, "resnet10": ResNet10, "densenet121": DenseNet121}


class LanguageModel(nn.Module):
    """Embedding, LSTM and a linear layer, with dropout around the LSTM's layers (Zaremba et al. 2014).

    Weights start uniform in ±√(2/hidden), which is Zaremba's 0.1 at 200 units and near his 0.05 at 650.
    ``forward`` takes words of shape time × batch and the state that the last call returned.

    >>> model = LanguageModel(vocabulary=50, hidden=8, layers=2)
    >>> logits, carry = model(torch.zeros(5, 3, dtype=torch.long), model.start(batch=3))
    >>> logits.shape, carry[0].shape
    (torch.Size([5, 3, 50]), torch.Size([2, 3, 8]))
    """

    def __init__(self, vocabulary: int, hidden: int = 200, layers: int = 1, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.linear = nn.Linear(hidden, vocabulary)
        scale = math.sqrt(2 / hidden)
        for weight in self.parameters():
            nn.init.uniform_(weight, -scale, scale)

    def start(self, batch: int) -> Carry:
        """The state before the first word: zeros."""
        shape, weight = (self.lstm.num_layers, batch, self.lstm.hidden_size), self.linear.weight
        zeros = torch.zeros(shape, dtype=weight.dtype, device=weight.device)  # new_zeros of a DTensor is a DTensor
        return zeros, zeros.clone()

    def forward(self, words: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        with torch.autocast("cpu", enabled=False):  # many CPUs multiply in bfloat16 but have no bfloat16 LSTM
            y, carry = self.lstm(self.dropout(self.embedding(words)), carry)
        return self.linear(self.dropout(y)), carry
