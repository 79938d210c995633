"""dynabound.suggest on a transformer: 2.1 M parameters, words of Penn Treebank, 1,000 steps, beside a grid of Adam.

    python benchmarks/transformer.py --data-dir DIR [--rates 0.001 ...]

Prints the mean training loss of the last 100 steps. A run takes about three minutes on a core.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import dynabound

WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = 128, 4, 4, 32, 16, 1000
Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Causal attention and a perceptron, each after a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projections, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        for layer in (self.projections, self.out, self.wide, self.narrow):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.projections(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.words(x) + self.places.weight)) @ self.words.weight.T


def read(folder: str) -> Tensor:
    """The training words as numbers, the most frequent ones first."""
    words = (Path(folder) / "ptb" / "ptb.train.txt").read_text().replace("\n", "<eos>").split()
    numbers = {word: number for number, (word, _) in enumerate(Counter(words).most_common())}
    return torch.tensor([numbers[word] for word in words])


def batches(text: Tensor, seed: int) -> Iterator[Batch]:
    """Random windows and the next words, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=generator)
        window = text[first + torch.arange(LENGTH + 1)]
        yield window[:, :-1], window[:, 1:]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the next word."""
    return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def untrained(text: Tensor) -> nn.Module:
    """The model of seed 0."""
    torch.manual_seed(0)
    return Transformer(int(text.max()) + 1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[Batch]) -> float:
    """The mean loss of the last tenth of the steps."""
    losses = []
    for batch in itertools.islice(data, STEPS):
        optimizer.zero_grad()
        value = loss(model, batch)
        torch.autograd.backward(value)
        optimizer.step()
        losses.append(value.item())
    return statistics.fmean(losses[-STEPS // 10 :])


def main() -> None:
    """Print the suggestion, its result and those of Adam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rates", nargs="*", type=float, default=[1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = read(args.data_dir)
    found = dynabound.suggest(untrained(text), loss, batches(text, 1000), STEPS)
    print(found)
    model = untrained(text)
    optimizer = dynabound.AdaBound(model.parameters(), **found.options)
    print(f"suggested AdaBound: {train(model, optimizer, batches(text, 0)):.4f}", flush=True)
    for rate in args.rates:
        model = untrained(text)
        adam = torch.optim.Adam(model.parameters(), rate)
        print(f"Adam {rate:.2g}: {train(model, adam, batches(text, 0)):.4f}", flush=True)


if __name__ == "__main__":
    main()
