"""Step time of AdaBound beside each framework's own Adam: ``python benchmarks/frameworks.py [--quick]``.

Optax: a compiled update of ResNet-34's 110 tensors, and of 500 tensors of 64×64, both float32, with the parameters and
the state donated. Keras: ``optimizer.apply`` on the same tensors, compiled as Keras's own training loop compiles it, in
one process for each backend. The optimizers are interleaved step by step in one process. A time is the median of the
steps; a ratio, which is what carries over, is the median of the ratios of two steps that followed each other. A step
that is compiled more than once is an error. Needs ``pip install 'dynabound[frameworks]'``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REPETITIONS = {"resnet34": 40, "small": 100}
BACKENDS = ("tensorflow", "jax", "torch")


def shapes(work: str) -> list[tuple[int, ...]]:
    """ResNet-34 for ten classes, or 500 small matrices."""
    if work == "small":
        return [(64, 64)] * 500
    found: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(blocks):
            found += [(width, inputs, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if inputs != width:
                found += [(width, inputs, 1, 1), (width,), (width,)]
            inputs = width
    return [*found, (10, 512), (10,)]


def simulate(steps: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns, and of ours as multiples of the one before."""
    for step in steps.values():
        step()  # compile
    rounds = [{name: milliseconds(step) for name, step in steps.items()} for _ in range(repetitions)]
    result = {name: statistics.median(times[name] for times in rounds) for name in steps}
    for ours, other in (("AdaBound", "Adam"), ("AMSBound", "AMSGrad")):
        result[f"{ours}/{other}"] = statistics.median(times[ours] / times[other] for times in rounds)
    return result


def milliseconds(step: Callable[[], Any]) -> float:
    """The time of one step."""
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def optax_steps(work: str) -> dict[str, Callable[[], Any]]:
    """A step of each Optax optimizer."""
    import jax
    import jax.numpy as jnp
    import optax

    from dynabound.optax import adabound, amsbound

    schedule = optax.cosine_decay_schedule(1e-3, 10_000)
    optimizers = {"Adam": optax.adam(schedule), "AdaBound": adabound(schedule)}
    optimizers |= {"AMSGrad": optax.amsgrad(schedule), "AMSBound": amsbound(schedule)}
    keys = jax.random.split(jax.random.key(0), 1000)
    grads = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes(work), strict=False)]

    def stepper(tx: Any) -> Callable[[], Any]:
        params = [jnp.zeros(grad.shape) for grad in grads]
        carry = [params, tx.init(params)]

        def update(params: Any, state: Any, grads: Any) -> Any:
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return jax_step(update, carry, grads)

    return {name: stepper(tx) for name, tx in optimizers.items()}


def jax_step(update: Callable[..., Any], carry: list[Any], grads: list[Any]) -> Callable[[], Any]:
    """``carry = update(*carry, grads)``, compiled once and into the same memory."""
    import jax

    compiled = jax.jit(update, donate_argnums=(0, 1))

    def step() -> None:
        carry[:] = jax.block_until_ready(compiled(*carry, grads))
        if compiled._cache_size() > 1:
            raise RuntimeError("the step was compiled again")

    return step


def keras_steps(work: str) -> dict[str, Callable[[], Any]]:
    """A step of each Keras optimizer on the backend of this process."""
    import keras
    import numpy as np

    from dynabound.keras import AdaBound, AMSBound

    rng = np.random.default_rng(0)
    grads = [keras.ops.convert_to_tensor(rng.normal(size=shape).astype("float32")) for shape in shapes(work)]

    def stepper(optimizer: Any) -> Callable[[], Any]:
        variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes(work)]
        optimizer.build(variables)
        if keras.backend.backend() == "torch":
            return lambda: optimizer.apply(grads)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.get_logger().setLevel("ERROR")  # it counts one function for each optimizer as one that is traced again
            return tf.function(lambda: optimizer.apply(grads), jit_compile=True)  # type: ignore[no-any-return]
        carry = [[v.value for v in variables], [v.value for v in optimizer.variables]]
        return jax_step(lambda values, state, grads: optimizer.stateless_apply(state, grads, values), carry, grads)

    optimizers = {"Adam": keras.optimizers.Adam(), "AdaBound": AdaBound()}
    optimizers |= {"AMSGrad": keras.optimizers.Adam(amsgrad=True), "AMSBound": AMSBound()}
    return {name: stepper(optimizer) for name, optimizer in optimizers.items()}


def measure(framework: str, quick: bool) -> dict[str, dict[str, float]]:
    """Milliseconds by work and optimizer, in this process."""
    steps = optax_steps if framework == "optax" else keras_steps
    return {work: simulate(steps(work), 10 if quick else count) for work, count in REPETITIONS.items()}


def main() -> None:
    """Measure everything in a process of its own each, and print a table."""
    quick = "--quick" in sys.argv
    if "--only" in sys.argv:
        print(json.dumps(measure(sys.argv[sys.argv.index("--only") + 1], quick)))
        return
    print("| | work | Adam | AdaBound | ratio | AMSGrad | AMSBound | ratio |\n|" + " --- |" * 2 + " ---: |" * 6)
    for framework in ("optax", *BACKENDS):
        command = [sys.executable, __file__, "--only", framework, *(["--quick"] if quick else [])]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        output = subprocess.check_output(command, env={**environment, "KERAS_BACKEND": framework}, text=True)
        for work, ms in json.loads(output.splitlines()[-1]).items():
            label = framework if framework == "optax" else f"keras, {framework}"
            cells = [f"{ms['Adam']:.1f}", f"{ms['AdaBound']:.1f}", f"{ms['AdaBound/Adam']:.2f}"]
            cells += [f"{ms['AMSGrad']:.1f}", f"{ms['AMSBound']:.1f}", f"{ms['AMSBound/AMSGrad']:.2f}"]
            print(f"| {label} | {work} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
