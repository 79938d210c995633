"""Do the formats that save memory change the quality of training? Four small tasks, several seeds, paired differences.

``python benchmarks/low_memory.py --data DIR`` (with MNIST and Penn Treebank) trains what is not yet in
results/low-memory/runs.jsonl; ``--figure docs/figures/low-memory.png`` draws it; both print the table.

The question was fixed before the runs: the held-out loss of a format minus that of float32 with the same seed is
equivalent to 0 if its 90 % interval (two one-sided t tests at 5 %) lies within ± the standard deviation over seeds of
the held-out loss of float32. A seed determines the initial parameters and the batches. The bounds are "exponential"
with gamma = 10/steps, so that release=0.01 frees the second moments in the middle; from there the rate falls to 0.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.special import stdtrit
from torch import Tensor, nn
from torch.func import functional_call

from dynabound import AdaBound
from dynabound._drawing import BLUE, GREY, new_figure
from dynabound.lab.tasks.datasets import load, locate
from dynabound.lab.tasks.models import LanguageModel, Perceptron, ResNet34

RUNS = Path(__file__).parents[1] / "results" / "low-memory" / "runs.jsonl"
FORMATS: dict[str, dict[str, object]] = {
    "float32": {},
    "bfloat16 state": {"state_dtype": "bfloat16"},
    "8-bit state": {"state_dtype": "8bit"},
    "release=0.01": {"release": 0.01},
    "bfloat16 parameters, stochastic": {"state_dtype": "bfloat16", "rounding": "stochastic"},
    "bfloat16 parameters, nearest": {"state_dtype": "bfloat16"},
}
"""The last one is known to be worse: it shows what the test can see."""
Batch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""From a number of examples to inputs and targets; the number 0 stands for the held-out part."""


def images(name: str, data: str | None) -> Batch:
    """Random images, and the first 2,000 of the test set."""
    found = load(name, data)
    (x, y), (u, v) = found.train, found.test

    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(x), (size,), generator=generator)
        inputs, targets = (x[chosen], y[chosen]) if size else (u[:2000], v[:2000])
        return inputs.float() / inputs.max() - 0.5, targets

    return batch


def stream(train: Tensor, held_out: Tensor, length: int) -> Batch:
    """Windows of a text, and the same one step later."""

    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = train if size else held_out
        starts = torch.randint(len(text) - length, (size,), generator=generator)
        if not size:
            starts = torch.arange(0, len(text) - length, len(text) // 100)
        windows = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
        return windows[:, :-1], windows[:, 1:]

    return batch


def characters(data: str | None) -> tuple[Tensor, Tensor]:
    """Penn Treebank as bytes, for training and held out."""
    folder = locate("ptb", data)
    texts = [torch.tensor(list((folder / f"ptb.{part}.txt").read_bytes())) for part in ("train", "valid")]
    return texts[0], texts[1]


class Transformer(nn.Module):
    """Two blocks with causal attention, on bytes."""

    def __init__(self, length: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, width), nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.blocks(self.embed(x) + self.place, mask=self.mask, is_causal=True))
        return logits


class Words(LanguageModel):
    """The lab's LSTM, from a state of 0 for every window."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.t(), self.start(len(x)))[0].transpose(0, 1)


def tasks(data: str | None) -> dict[str, tuple[Callable[[], nn.Module], Batch, int, int, float]]:
    """Model, data, batch size, steps and final_lr of each task."""
    text, letters = load("ptb", data), characters(data)
    return {
        "MNIST, perceptron": (lambda: Perceptron(784, 100), images("mnist", data), 64, 500, 0.2),
        "digits, ResNet-34 / 8": (lambda: ResNet34(10, 1, 0.125), images("digits", data), 32, 120, 0.1),
        "Penn Treebank, LSTM": (
            lambda: Words(text.vocabulary, 64, 1, 0.0), stream(text.train, text.valid, 16), 10, 200, 30.0,
        ),
        "Penn Treebank, character transformer": (lambda: Transformer(64), stream(*letters, 64), 16, 300, 1.0),
    }  # fmt: skip


def train(format_: str, seed: int, task: tuple[Callable[[], nn.Module], Batch, int, int, float]) -> float:
    """The held-out loss after training. Parameters in bfloat16 are computed with in float32."""
    make, batch, size, steps, final_lr = task
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = make()
    dtype = torch.bfloat16 if "parameters" in format_ else torch.float32
    params = {name: nn.Parameter(p.detach().to(dtype)) for name, p in model.named_parameters()}
    options = FORMATS[format_]
    optimizer = AdaBound(params.values(), final_lr=final_lr, bounds="exponential", gamma=10 / steps, **options)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        logits = functional_call(model, {name: p.float() for name, p in params.items()}, (inputs,))
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 - 2 * step / steps))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(*batch(size, generator)).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        return loss(*batch(0, generator)).item()


def verdicts(runs: list[dict[str, object]]) -> list[dict[str, object]]:
    """For each task and format the mean paired difference, its 90 % interval and the margin."""
    losses = {(run["task"], run["format"], run["seed"]): run["loss"] for run in runs}
    rows = []
    for task, format_ in dict.fromkeys((task, format_) for task, format_, _ in losses):
        seeds = [s for t, f, s in losses if (t, f) == (task, format_) and (task, "float32", s) in losses]
        if format_ == "float32" or len(seeds) < 2:
            continue
        base = [losses[task, "float32", seed] for seed in seeds]
        differences = [losses[task, format_, seed] - loss for seed, loss in zip(seeds, base, strict=True)]
        mean, margin = statistics.mean(differences), statistics.stdev(base)
        half = stdtrit(len(seeds) - 1, 0.95) * statistics.stdev(differences) / math.sqrt(len(seeds))
        rows.append(
            {"task": task, "format": format_, "seeds": len(seeds), "float32": statistics.mean(base), "mean": mean,
             "low": mean - half, "high": mean + half, "margin": margin,
             "equivalent": -margin < mean - half and mean + half < margin}
        )  # fmt: skip
    return rows


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Every interval in units of the margin."""
    names = list(dict.fromkeys(row["task"] for row in rows))
    labels = [name for name in FORMATS if any(row["format"] == name for row in rows)]
    figure = new_figure(10, 0.55 * len(labels) + 1.5)
    all_axes = figure.subplots(1, len(names), sharey=True)
    for axes, name in zip(all_axes, names, strict=True):
        axes.axvspan(-1, 1, color=GREY, alpha=0.25, linewidth=0)
        for row in [row for row in rows if row["task"] == name]:
            place, scale = labels.index(row["format"]), row["margin"]
            axes.plot([row["low"] / scale, row["high"] / scale], [place, place], color=BLUE)
            axes.plot(row["mean"] / scale, place, "o", color=BLUE)
        axes.set_title(name.replace(", ", ",\n"), fontsize=9)
        axes.set_xticks([-1, 0, 1])
        axes.set_yticks(range(len(labels)), labels)
    all_axes[0].invert_yaxis()
    figure.supxlabel("held-out loss minus float32's, in standard deviations of float32 over seeds; 90 % intervals")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    """Train what is missing, then print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of MNIST and Penn Treebank; default: where the lab looks")
    parser.add_argument("--seeds", type=int, default=0, help="train seeds 0 to N − 1; default: none")
    parser.add_argument("--tasks", nargs="*", help="only these; default: all")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    RUNS.parent.mkdir(exist_ok=True)
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    done = {(run["task"], run["format"], run["seed"]) for run in runs}
    chosen = tasks(args.data) if args.seeds else {}
    if args.tasks:
        chosen = {name: chosen[name] for name in args.tasks}
    for seed in range(args.seeds):
        for name, task in chosen.items():
            for format_ in args.formats:
                if (name, format_, seed) not in done:
                    run = {"task": name, "format": format_, "seed": seed, "loss": train(format_, seed, task)}
                    runs.append(run)
                    with RUNS.open("a") as file:
                        file.write(json.dumps(run) + "\n")
    rows = verdicts(runs)
    for row in rows:
        print(
            f"{row['task']:38} {row['format']:32} {row['seeds']} seeds  {row['float32']:.4f}  {row['mean']:+.5f} "
            f"[{row['low']:+.5f}, {row['high']:+.5f}]  margin {row['margin']:.5f}  "
            f"{'equivalent' if row['equivalent'] else 'not shown to be equivalent'}"
        )
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
