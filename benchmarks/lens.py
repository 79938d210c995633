"""The cost of the lens: a training step of ResNet-34 on CIFAR-10's shapes, with and without it.

    python benchmarks/lens.py [--batch 128] [--rounds 5] [--json]

Steps with and without a snapshot alternate, so that both see the same load of the machine. The cost per step at the
default ``every`` is that of a snapshot divided by ``every``, plus that of a hook that takes none. All times are the
minimum over the rounds, which other programs disturb least. The batch size only changes the step that the lens is
compared with: a smaller batch makes the ratio worse.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

from dynabound import AdaBound
from dynabound.lab.tasks.models import ResNet34
from dynabound.lens import LearningRateLens

HOOKS = 90  # fewer than the default ``every``
OPTIMIZERS = {"AdaBound": AdaBound, "Adam": torch.optim.Adam}


def seconds(function):
    """The duration of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(make_optimizer, batch, rounds):
    """The seconds of a step without and with a snapshot, of a hook without one, and the ratios."""
    torch.manual_seed(0)
    model = ResNet34()
    optimizer = make_optimizer(model.parameters())
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    seconds(step)
    plain, looking = [], []
    for _ in range(rounds):
        plain.append(seconds(step))
        with LearningRateLens(optimizer, model, every=1):
            looking.append(seconds(step))
    # Without gradients a step does nothing but call the hooks.
    optimizer.zero_grad()
    empty = min(seconds(optimizer.step) for _ in range(HOOKS))
    with LearningRateLens(optimizer, model, every=1):
        snapshot = min(seconds(optimizer.step) for _ in range(rounds)) - empty
    with LearningRateLens(optimizer, model) as default:
        optimizer.step()  # takes a snapshot; the next ones do not
        idle = min(seconds(optimizer.step) for _ in range(HOOKS)) - empty
    base = min(plain)
    return {
        "step": base,
        "step with a snapshot": min(looking),
        "snapshot": snapshot,
        "hook": idle,
        "every": default.every,
        "ratio, every=1": min(looking) / base,
        "ratio, default": 1 + (idle + snapshot / default.every) / base,
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
        for label in ("step", "step with a snapshot", "snapshot"):
            print(f"  {label:<28}{1000 * row[label]:>10.1f} ms")
        print(f"  {'hook without a snapshot':<28}{1e6 * row['hook']:>10.1f} µs")
        print(f"  {'ratio with every=1':<28}{row['ratio, every=1']:>10.4f}")
        print(f"  {'ratio with every=' + str(row['every']):<28}{row['ratio, default']:>10.4f}")


if __name__ == "__main__":
    main()
