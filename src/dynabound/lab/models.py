"""The paper's networks, in the form that fits small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ResNet34"]


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
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet34(nn.Module):
    """ResNet-34 for small images: a 3×3 stem without pooling; 21.28 M parameters at width 1 and 10 classes.

    >>> sum(p.numel() for p in ResNet34().parameters())
    21282122
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        widths = [max(1, round(planes * width)) for planes in (64, 128, 256, 512)]
        self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (outputs, depth) in enumerate(zip(widths, (3, 4, 6, 3), strict=True)):
            for position in range(depth):
                blocks.append(_BasicBlock(inputs, outputs, stride=2 if stage and not position else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits
