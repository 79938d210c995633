"""Speed of the theory lab: one problem, eight methods, twenty step sizes, a million steps each, on one core.

python benchmarks/theory.py [--steps 1000000] [--threads 1]
"""

import argparse
import time

import numpy as np

from dynabound.theory.fast import simulate
from dynabound.theory.framework import METHODS, Method, play
from dynabound.theory.problems import theorem_1, theorem_2

PROBLEMS = {"theorem 1": theorem_1(50), "theorem 2": theorem_2(20)}


def main() -> None:
    """Print trajectory-steps per second, compiled and in NumPy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    simulate([(PROBLEMS["theorem 1"], Method("Adam"))], 10)
    print(f"first call (compiled, or loaded from the cache): {time.perf_counter() - begin:.2f} s")
    for name, problem in PROBLEMS.items():
        lanes = [
            (problem, Method(method, alpha=float(alpha), gamma=0.2))
            for method in METHODS
            for alpha in np.logspace(-10, 10, 20)
        ]
        begin = time.perf_counter()
        simulate(lanes, arguments.steps, at=np.array([arguments.steps]), threads=arguments.threads)
        elapsed = time.perf_counter() - begin
        speed = len(lanes) * arguments.steps / elapsed / 1e6
        print(f"{name}: {len(lanes)} × {arguments.steps:,} steps in {elapsed:.2f} s: {speed:.1f} M trajectory-steps/s")
    begin = time.perf_counter()
    play(PROBLEMS["theorem 1"], Method("AdaBound"), 20_000)
    print(f"play(), the readable one: {20_000 / (time.perf_counter() - begin) / 1e3:.1f} k steps/s")


if __name__ == "__main__":
    main()
