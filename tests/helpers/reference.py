"""AdaBound and AMSBound in float64 NumPy, written from the paper (Algorithms 2 and 3) and its released code.

It uses nothing of the package, which is tested against it.
"""

import math

import numpy as np


def round_to(x, dtype):
    """Round float64 numbers as a parameter of the named dtype would hold them."""
    if dtype == "float64":
        return x
    if dtype in ("float32", "float16"):
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(np.float64)
    assert dtype == "bfloat16"
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


class Reference:
    """One parameter. ``step(g)`` computes x_{t+1} from x_t; ``rate`` is the η_t of that step."""

    def __init__(
        self,
        x,
        lr=1e-3,
        betas=(0.9, 0.999),
        final_lr=0.1,
        gamma=1e-3,
        eps=1e-8,
        weight_decay=0.0,
        amsbound=False,
        decoupled_weight_decay=False,
        maximize=False,
        debias=True,
        sqrt_decay=False,
        beta1_decay=1.0,
        box=None,
        bounds="harmonic",
        dtype="float64",
    ):
        self.x = np.array(x, dtype=np.float64)
        self.m, self.v, self.v_hat = (np.zeros_like(self.x) for _ in range(3))
        self.t, self.base_lr, self.lr, self.product, self.dtype = 0, lr, lr, 1.0, dtype
        self.betas, self.final_lr, self.gamma, self.eps = betas, final_lr, gamma, eps
        self.weight_decay, self.decoupled, self.amsbound, self.maximize = (
            weight_decay,
            decoupled_weight_decay,
            amsbound,
            maximize,
        )
        self.debias, self.sqrt_decay, self.beta1_decay, self.box, self.bounds = (
            debias,
            sqrt_decay,
            beta1_decay,
            box,
            bounds,
        )

    def beta1(self):
        """β₁ₜ: constant, β₁λ^(t−1), or β₁/t."""
        if self.beta1_decay == "harmonic":
            return self.betas[0] / self.t
        return self.betas[0] * self.beta1_decay ** (self.t - 1)

    def multiples(self):
        """The bounds as multiples of the final learning rate."""
        x = self.gamma * self.t
        return {
            "harmonic": lambda: (1 - 1 / (x + 1), 1 + 1 / x),
            "exponential": lambda: (1 - math.exp(-x), 1 / (1 - math.exp(-x))),
            "linear": lambda: (min(1, x), max(1, 1 / x)),
            "constant": lambda: self.bounds[1:],
        }[self.bounds if isinstance(self.bounds, str) else "constant"]()

    def step(self, g):
        self.t += 1
        beta1, beta2 = self.beta1(), self.betas[1]
        self.product *= beta1
        g = -np.asarray(g, dtype=np.float64) if self.maximize else np.asarray(g, dtype=np.float64)
        if self.weight_decay and not self.decoupled:
            g = g + self.weight_decay * self.x
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g**2
        self.v_hat = np.maximum(self.v_hat, self.v)
        alpha = self.lr
        if self.debias:
            alpha = alpha * math.sqrt(1 - beta2**self.t) / (1 - self.product)
        with np.errstate(divide="ignore", invalid="ignore"):
            eta = alpha / (np.sqrt(self.v_hat if self.amsbound else self.v) + self.eps)
        scale = self.lr / self.base_lr if self.base_lr else float(self.lr > 0)
        lower, upper = (multiple * self.final_lr * scale for multiple in self.multiples())
        eta = np.clip(eta, lower, upper)
        if self.sqrt_decay:
            eta = eta / math.sqrt(self.t)
        self.rate = eta
        moved = np.where(self.m == 0, 0.0, eta * self.m)  # 0/0 means no update
        x = self.x
        if self.decoupled:
            x = x * (1 - self.weight_decay * (scale if self.decoupled == "fully" else self.lr))
        x = x - moved
        if self.box is not None and self.lr != 0:
            x = np.clip(x, *self.box)
        self.x = round_to(x, self.dtype)
        return self.x
