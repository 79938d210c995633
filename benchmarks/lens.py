"""What the lens costs: a training step of ResNet-34 on CIFAR-10's shapes, with and without it.

    python benchmarks/lens.py [--batch 128] [--rounds 5] [--json]

A lens with ``every=1`` looks at every step, so that steps with and without a look alternate and both meet the same
machine. The cost per step at the default ``every`` is that of a look divided by it, plus that of a hook which does not
look. All times are the shortest of the rounds, which other programs disturb least. The batch only changes what this is
compared with: a smaller one makes the ratio worse.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

from dynabound import AdaBound
from dynabound.lab.tasks.models import ResNet34
from dynabound.lens import LearningRateLens

OPTIMIZERS = {"AdaBound": AdaBound, "Adam": torch.optim.Adam}


def seconds(function):
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(make_optimizer, batch, rounds):
    """Seconds of a step without and with a look, of a hook that does not look, and the ratios."""
    torch.manual_seed(0)
    model = ResNet34()
    optimizer = make_optimizer(model.parameters())
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    lens = LearningRateLens(optimizer, model, every=1)
    default = LearningRateLens(optimizer, model)
    seconds(step)
    plain, looking, looks = [], [], []
    for _ in range(rounds):
        plain.append(seconds(step))
        lens.attach()
        looking.append(seconds(step))
        lens.detach()
        looks.append(seconds(lambda: lens._look(optimizer, optimizer.param_groups)))
    default._on_step(optimizer)  # looks; the next ones do not
    idle = min(seconds(lambda: default._on_step(optimizer)) for _ in range(50))
    base, look = min(plain), min(looks)
    return {
        "step": base,
        "step with a look": min(looking),
        "look": look,
        "hook": idle,
        "every": default.every,
        "ratio, every=1": min(looking) / base,
        "ratio, default": 1 + (idle + look / default.every) / base,
    }


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {name: measure(make, arguments.batch, arguments.rounds) for name, make in OPTIMIZERS.items()}
    if arguments.json:
        print(json.dumps({"batch": arguments.batch, "threads": torch.get_num_threads(), "results": results}))
        return
    print(f"ResNet-34, 32×32 images, batch {arguments.batch}, {torch.get_num_threads()} threads")
    for name, row in results.items():
        print(f"\n{name}")
        for label in ("step", "step with a look", "look"):
            print(f"  {label:<28}{1000 * row[label]:>10.1f} ms")
        print(f"  {'hook that does not look':<28}{1e6 * row['hook']:>10.1f} µs")
        print(f"  {'ratio with every=1':<28}{row['ratio, every=1']:>10.4f}")
        print(f"  {'ratio with every=' + str(row['every']):<28}{row['ratio, default']:>10.4f}")


if __name__ == "__main__":
    main()
