"""The torch tests' table of options in the words of Optax and Keras, with the float64 transcription beside it."""

import numpy as np

from helpers import cases
from helpers.reference import Reference

__all__ = ["STEPS", "VARIANTS", "WARM_UP", "Reference", "follow", "gradients", "keras_options", "optax_options"]

VARIANTS = {name: options for name, options in cases.VARIANTS.items() if name != "fully-decoupled"}  # torch only
STEPS = 1000
SIZE = 12


def gradients(box=None):
    """Gradients of very different sizes, some of them exactly 0, and where to start: in the box, if there is one."""
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(STEPS, SIZE)) * 10.0 ** rng.integers(-4, 3, size=SIZE)
    grads[rng.random(grads.shape) < 0.1] = 0.0
    grads[:, 3] = 0.0  # an element that never has a gradient
    return np.clip(rng.normal(size=SIZE), *(box or (-np.inf, np.inf))), grads


COUNTS = np.arange(STEPS + 1)
WARM_UP = np.minimum(COUNTS / 50, 1.0) * np.where(COUNTS < 50, 1.0, 0.55 + 0.45 * np.cos((COUNTS - 50) * np.pi / 2000))
"""A schedule as multiples of its peak, which is 1 at step 50: from 0 up to it, and down along a cosine."""


def follow(variant, scheduled, start, grads):
    """The transcription's parameters after every step."""
    reference = Reference(start, **variant)
    for count, grad in enumerate(grads):
        if scheduled:
            reference.lr = reference.base_lr * float(WARM_UP[count])
        before = reference.x
        after = reference.step(grad)
        if reference.lr == 0:  # nothing moves; the transcription multiplies Adam's infinite upper bound by 0
            reference.x = after = before
        yield after


def _renamed(variant, names):
    return {names.get(name, name): value for name, value in variant.items() if name not in _APART}


_APART = ("betas", "maximize", "box", "weight_decay", "decoupled_weight_decay")


def optax_options(variant):
    """Arguments of ``dynabound.optax.adabound``."""
    b1, b2 = variant.get("betas", (0.9, 0.999))
    options = _renamed(variant, {"lr": "learning_rate", "final_lr": "final_learning_rate"})
    return dict(b1=b1, b2=b2, weight_decay=variant.get("weight_decay", 0.0), **options)


def keras_options(variant):
    """Arguments of ``dynabound.keras.AdaBound``; its weight decay is decoupled, L2 is up to the layers."""
    beta_1, beta_2 = variant.get("betas", (0.9, 0.999))
    names = {"lr": "learning_rate", "final_lr": "final_learning_rate", "eps": "epsilon", "beta1_decay": "beta_1_decay"}
    options = _renamed(variant, names)
    decay = variant.get("weight_decay") if variant.get("decoupled_weight_decay") else None
    return dict(beta_1=beta_1, beta_2=beta_2, weight_decay=decay, **options)


def float32_state(name, count):
    """A variant's options, a gradient, both moments after ``count`` steps, and the reference in the same state."""
    variant = {**VARIANTS[name], "gamma": 1e-5}
    rng = np.random.default_rng(1)
    grad = rng.normal(size=1000).astype(np.float32)
    mu = np.sign(grad) * rng.random(1000, np.float32)  # of one sign: the sum of opposite ones loses digits by itself
    nu = (rng.normal(size=1000) ** 2).astype(np.float32)
    if count == 0:
        mu, nu = np.zeros_like(mu), np.zeros_like(nu)
    reference = Reference(np.zeros(1000), **variant)
    reference.t, reference.product = count, 0.9**count
    reference.m, reference.v, reference.v_hat = (x.astype(np.float64) for x in (mu, nu, nu))
    return variant, grad, mu, nu, reference
