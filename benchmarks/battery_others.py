"""Eighteen more tasks for battery.py, on which dynabound.suggest was checked.

They were written after steps 1 to 4 of its rule. Other constants were tried on them and not taken; step 5 was chosen
with them in view.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pydoc_data import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize

from battery_tasks import Batch, Task, characters, classify, digits, gaussian, noisy_digits, regress


@cache
def noisy_labels() -> Batch:
    """Noisy digits, of which a fifth has a random label."""
    x, y = noisy_digits()
    generator = torch.Generator().manual_seed(77)
    wrong = torch.rand(len(y), generator=generator) < 0.2
    return x, torch.where(wrong, torch.randint(0, 10, (len(y),), generator=generator), y)


@cache
def words() -> Batch:
    """The 200 most frequent words of Python's documentation, and the next ones."""
    text = re.findall(r"[a-z]+", " ".join(topics.topics.values()).lower())
    numbers = {word: number for number, (word, _) in enumerate(Counter(text).most_common(200))}
    sequence = torch.tensor([numbers[word] for word in text if word in numbers])
    return sequence[:-1], sequence[1:]


@cache
def moons() -> Batch:
    """Points on two half circles."""
    generator = torch.Generator().manual_seed(3)
    angle, upper = torch.rand(2000, generator=generator) * math.pi, torch.arange(2000) % 2 == 0
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.07 * torch.randn(2000, 2, generator=generator), upper


@cache
def teacher() -> Batch:
    """What a random network of 12 hidden units answers, with noise."""
    x, generator = gaussian(4000, 10, seed=21), torch.Generator().manual_seed(22)
    first = torch.randn(10, 12, generator=generator) / math.sqrt(10)
    second = torch.randn(12, 1, generator=generator) / math.sqrt(12)
    return x, torch.relu(1.5 * x @ first) @ second + 0.05 * gaussian(4000, 1, seed=23)


@cache
def uneven() -> Batch:
    """A linear function of 400 numbers whose scales differ by a factor of 30."""
    x = gaussian(1500, 400, seed=31) * torch.logspace(0, -1.5, 400)
    return x, x @ gaussian(400, 1, seed=32) + 0.3 * gaussian(1500, 1, seed=33)


@cache
def sums() -> Batch:
    """Sequences of 20 numbers, of which two are marked; their sum is to be found."""
    generator = torch.Generator().manual_seed(41)
    values, marks, rows = torch.rand(3000, 20, generator=generator), torch.zeros(3000, 20), range(3000)
    for low in (0, 10):
        marks[rows, torch.randint(low, low + 10, (3000,), generator=generator)] = 1
    return torch.stack([values, marks], 2), (values * marks).sum(1, keepdim=True)


@cache
def counts() -> Batch:
    """Sequences of 24 symbols: whether one of them is more frequent than another one."""
    x = torch.randint(0, 12, (4000, 24), generator=torch.Generator().manual_seed(51))
    return x, ((x == 3).sum(1) > (x == 7).sum(1)).long()


@cache
def points() -> Batch:
    """Points of an interval."""
    x = torch.rand(2000, 1, generator=torch.Generator().manual_seed(8))
    return x, x


class CharLSTM(nn.Module):
    """A language model of characters, of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(31, 12), nn.Linear(20, 31)
        self.lstm = nn.LSTM(12, 20, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0]).transpose(1, 2)


class CharTransformer(nn.Module):
    """A causal transformer over 16 characters, of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(31, 20), nn.Parameter(0.1 * torch.randn(16, 20))
        layer = nn.TransformerEncoderLayer(20, 4, 40, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(20), nn.Linear(20, 31)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        return self.head(self.norm(self.body(self.embed(x) + self.place, mask=mask))).transpose(1, 2)


class Recurrent(nn.Module):
    """A recurrent layer and a linear one on its last output."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = layer(2, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class VAE(nn.Module):
    """A variational autoencoder with four latent numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(64, 40, 8), perceptron(4, 40, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x.flatten(1)).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(latent), mean, log_variance


class Flow(nn.Module):
    """Four affine couplings of two coordinates: minus the mean log-likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(perceptron(1, 16, 16, 2, activation=nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        logarithm = torch.zeros(len(x), 1)
        kept, changed = x.chunk(2, 1)
        for net in self.nets:
            scale, shift = net(kept).chunk(2, 1)
            scale = 2 * torch.tanh(scale)
            kept, changed = changed * scale.exp() + shift, kept
            logarithm = logarithm + scale
        return ((kept.square() + changed.square()) / 2 + math.log(2 * math.pi) - logarithm).mean()


class Attention(nn.Module):
    """One layer of self-attention, and a perceptron on the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(12, 16), nn.LayerNorm(16)
        self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), perceptron(16, 32, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        mixed = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return self.head(self.norm(hidden + mixed).mean(1))


class Mixer(nn.Module):
    """Two blocks that mix 16 patches of 2×2 pixels, and their features, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(4, 20), nn.Linear(20, 10)
        self.norms = nn.ModuleList(nn.LayerNorm(20) for _ in range(5))
        self.patches = nn.ModuleList(perceptron(16, 24, 16, activation=nn.GELU) for _ in range(2))
        self.features = nn.ModuleList(perceptron(20, 40, 20, activation=nn.GELU) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4))
        for block in range(2):
            x = x + self.patches[block](self.norms[2 * block](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.features[block](self.norms[2 * block + 1](x))
        return self.head(self.norms[4](x).mean(1))


class ResNet(nn.Module):
    """Six convolutions with batch normalisation and two skip connections."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 8, 1), (8, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 16, 1))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
            for inputs, outputs, stride in sizes
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for first, second, third in (self.layers[:3], self.layers[3:]):
            x = torch.relu(first(x))
            x = torch.relu(x + third(torch.relu(second(x))))
        return self.head(x.mean((2, 3)))


def perceptron(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def normalized() -> nn.Module:
    """A perceptron with batch normalisation."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in ((64, 48), (48, 32)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def on_pixels(*sizes: int) -> Callable[[], nn.Module]:
    """A perceptron on an image."""
    return lambda: nn.Sequential(nn.Flatten(), perceptron(*sizes))


def pretrained() -> nn.Module:
    """A perceptron that knows the digits without noise."""
    model = on_pixels(64, 64, 32, 10)()
    model.load_state_dict(_weights())
    return model


@cache
def _weights() -> dict[str, Tensor]:
    torch.manual_seed(5)
    model = on_pixels(64, 64, 32, 10)()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for batch in itertools.islice(Task(1500, pretrained, classify, digits, 64).batches(6), 1500):
        optimizer.zero_grad()
        classify(model, batch).backward()
        optimizer.step()
    return model.state_dict()


def elbo(model: nn.Module, batch: Batch) -> Tensor:
    """Minus the evidence lower bound of an image, summed over its pixels."""
    pixels = batch[0].flatten(1)
    logits, mean, log_variance = model(pixels)
    likelihood = binary_cross_entropy_with_logits(logits, pixels, reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
    return (likelihood + divergence) / len(pixels)


def contrast(model: nn.Module, batch: Batch) -> Tensor:
    """InfoNCE: two noisy copies of an image are to be alike."""
    first, second = (normalize(model(batch[0] + 0.2 * torch.randn_like(batch[0]))) for _ in range(2))
    return cross_entropy(first @ second.T / 0.2, torch.arange(len(first)))


@torch.enable_grad()
def equation(model: nn.Module, batch: Batch) -> Tensor:
    """The residual of u''/40 + u = sin 9x with u(0) = u(1) = 0."""
    x = batch[0].clone().requires_grad_(True)
    u = model(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    ends = model(torch.tensor([[0.0], [1.0]]))
    return (curvature / 40 + u - torch.sin(9 * x)).square().mean() + 5 * ends.square().mean()


def likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """The model returns its loss."""
    return model(batch[0])  # type: ignore[no-any-return]


TASKS: dict[str, Task] = {
    "LSTM of two layers, characters": Task(1000, CharLSTM, classify, characters, 16),
    "transformer, characters": Task(1200, CharTransformer, classify, characters, 16),
    "perceptron with batch normalisation": Task(600, normalized, classify, noisy_digits),
    "variational autoencoder": Task(1500, VAE, elbo, digits),
    "bigrams of words": Task(
        1000, lambda: nn.Sequential(nn.Embedding(200, 16), nn.Linear(16, 200)), classify, words, 64
    ),
    "normalizing flow": Task(1000, Flow, likelihood, moons, 64),
    "teacher and student": Task(2000, lambda: perceptron(10, 32, 32, 1), regress, teacher),
    "uneven linear regression": Task(500, lambda: nn.Linear(400, 1), regress, uneven),
    "RNN, marked sums": Task(1200, lambda: Recurrent(nn.RNN), regress, sums, 64),
    "GRU, marked sums": Task(800, lambda: Recurrent(nn.GRU), regress, sums, 64),
    "ResNet with batch normalisation": Task(400, ResNet, classify, noisy_digits),
    "fine-tuning on noisy digits": Task(250, pretrained, classify, noisy_digits),
    "MLP-Mixer": Task(600, Mixer, classify, noisy_digits),
    "contrastive learning": Task(600, on_pixels(64, 48, 16), contrast, digits),
    "differential equation": Task(1500, lambda: perceptron(1, 32, 32, 1, activation=nn.Tanh), equation, points, 64),
    "softmax regression": Task(300, on_pixels(64, 10), classify, noisy_digits),
    "noisy labels": Task(800, on_pixels(64, 48, 10), classify, noisy_labels),
    "attention, counting": Task(1000, Attention, classify, counts),
}
