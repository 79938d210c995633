"""What the formats of state and parameters save: bytes per parameter, and the time of a CPU step.

    python benchmarks/formats.py [--elements 50000000] [--threads 2] [--repetitions 15] [--resnet34]

All optimizers make their steps in turn in one process. A time is the shortest of an optimizer's steps; the table has
its ratio to torch's fused Adam in float32. Bytes are those of parameter, gradient and state, and those a step moves.
"""

import argparse
import time

import torch

from dynabound import AdaBound
from dynabound.lab.tasks.models import ResNet34

BF16 = torch.bfloat16
CLOSED = dict(bounds=("constant", 1.0, 1.0), release=0)
FORMATS = {
    "float32": (torch.float32, {}),
    "float32, m bfloat16": (torch.float32, dict(state_dtype=(BF16, torch.float32))),
    "float32, state bfloat16": (torch.float32, dict(state_dtype=BF16)),
    "float32, state 8 bits": (torch.float32, dict(state_dtype="8bit")),
    "float32, released": (torch.float32, CLOSED),
    "float32, state bfloat16, released": (torch.float32, dict(state_dtype=BF16, **CLOSED)),
    "bfloat16, state float32": (BF16, {}),
    "bfloat16 stochastic, state float32": (BF16, dict(rounding="stochastic")),
    "bfloat16 stochastic, state bfloat16": (BF16, dict(rounding="stochastic", state_dtype=BF16)),
    "bfloat16 stochastic, state bfloat16, released": (BF16, dict(rounding="stochastic", state_dtype=BF16, **CLOSED)),
}


def make(cls, shapes, dtype, **options):
    """An optimizer after its first step."""
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = torch.randn(param.shape).to(dtype)
    optimizer = cls(params, **options)
    optimizer.step()
    return optimizer


def count_bytes(optimizer):
    """(held, moved) bytes per parameter: a step reads everything, and writes all but the gradient."""
    params = optimizer.param_groups[0]["params"]
    elements = sum(param.numel() for param in params)
    moments = [tensor for state in optimizer.state.values() for name, tensor in state.items() if name != "step"]
    state = sum(tensor.nbytes for tensor in moments) / elements
    one = params[0].element_size()
    return 2 * one + state, 3 * one + 2 * state


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=50_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--resnet34", action="store_true", help="ResNet-34's tensors instead of one large matrix")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shapes = [(args.elements // 1024, 1024)]
    if args.resnet34:
        shapes = [tuple(param.shape) for param in ResNet34().parameters()]
    optimizers = {"torch.optim.Adam(fused=True)": make(torch.optim.Adam, shapes, torch.float32, fused=True)}
    optimizers |= {name: make(AdaBound, shapes, dtype, **options) for name, (dtype, options) in FORMATS.items()}
    times = {name: [] for name in optimizers}
    for _ in range(args.repetitions):
        for name, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - start)
    base = min(next(iter(times.values())))
    print(f"{'parameters, state':48}  held B  moved B  time / Adam")
    for name, optimizer in optimizers.items():
        held, moved = count_bytes(optimizer)
        print(f"{name:48}  {held:6.2f}  {moved:7.2f}  {min(times[name]) / base:11.2f}")


if __name__ == "__main__":
    main()
