"""The effect of bounds, before any training: when they clip rates of a given size, and when AdaBound is nearly SGD."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabound._checks import check_choice, check_positive
from dynabound._drawing import html_text
from dynabound._files import replacing
from dynabound.bounds import FAMILIES, NEEDS, Certificate, certificate, evaluate
from dynabound.lens import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONVERGING = tuple(name for name in FAMILIES if name != "constant")
"""The families of bounds that converge."""

_GRADIENTS = tuple(10.0**-exponent for exponent in range(7))
_NEVER = 2**62  # a step beyond any training


@dataclass(frozen=True)
class Forecast:
    """The bounds [α*·l(t), α*·u(t)] over the steps; a step that is never reached is None."""

    family: str
    lr: float
    final_lr: float
    gamma: float
    within: dict[str, int | None]
    """The first step from which every rate is within 10%, and within 1%, of the final learning rate."""
    clipped: list[dict[str, Any]]
    """For gradients of a constant size: Adam's rate lr / size, the bound that clips it, and from which step."""
    curve: dict[str, list[float]]
    """Steps, evenly spaced on a logarithmic scale, with the lower and the upper bound."""
    certificate: Certificate
    """What the theory says about the bounds."""

    def text(self, with_certificate: bool = False) -> str:
        """The forecast as text for a terminal, with the bounds drawn in characters."""
        lines = [f"bounds={self.family!r}, final_lr={self.final_lr:g}, gamma={self.gamma:g}, lr={self.lr:g}", ""]
        lines += _bounds_in_characters(self.curve, self.final_lr)
        lines.append("")
        lines += [f"within {margin:>3} of SGD {_when(step)}" for margin, step in self.within.items()]
        lines += ["", f"gradients of size   Adam's rate ({self.lr:g}/size)   clipped"]
        width = len(f"Adam's rate ({self.lr:g}/size)")
        for row in self.clipped:
            by_bound = f"by the {row['bound']} bound {_when(row['step'])}"
            when = by_bound if row["bound"] else "never: it is the final rate"
            lines.append(f"{row['gradient']:>17.0e}   {row['rate']:>{width}.3g}   {when}")
        if with_certificate:
            lines += _certificate_lines(self.certificate)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(self.text(with_certificate=True))

    def figure(self) -> Figure:
        """The bounds over the steps as a matplotlib Figure."""
        marks = {f"within {margin} of SGD": step for margin, step in self.within.items() if step is not None}
        title = f"AdaBound's bounds: {self.family}, final_lr = {self.final_lr:g}, γ = {self.gamma:g}"
        return draw.bounds_funnel(self.curve, self.final_lr, marks, title)

    def json(self) -> str:
        """The fields as JSON."""
        names = ("meets_theorem_4", "guaranteed", "m", "kappa", "largest_upper")
        proof: dict[str, Any] = {name: getattr(self.certificate, name) for name in names}
        useful = self.certificate.useful_from()
        best = self.certificate.regret(useful).name
        proof |= {"needs": NEEDS, "useful_from": useful if math.isfinite(useful) else None, "best_bound": best}
        return json.dumps({**asdict(self), "certificate": proof})

    def save(self, folder: Path) -> None:
        """Write ``bounds.png`` and ``bounds.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "bounds.png") as file:
            self.figure().savefig(file, format="png", dpi=110)
        with replacing(folder / "bounds.json") as file:
            file.write(self.json().encode())


def forecast(lr: float = 1e-3, final_lr: float = 0.1, gamma: float = 1e-3, family: str = "harmonic") -> Forecast:
    """Forecast the bounds of a family. Adam's rates are without the bias corrections, which soon vanish.

    Example:
        >>> from dynabound.lens.forecast import forecast
        >>> forecast(gamma=1e-3).within
        {'10%': 10000, '1%': 100000}
        >>> forecast(lr=1e-3, final_lr=0.1).clipped[0]
        {'gradient': 1.0, 'rate': 0.001, 'bound': 'lower', 'step': 11}
    """
    check_positive("lr", lr)
    check_choice("family", family, CONVERGING)
    proof = certificate(family, gamma, final_lr)  # also checks the arguments

    def bounds(step: int) -> tuple[float, float]:
        lower, upper = evaluate(family, gamma, step)
        return final_lr * lower, final_lr * upper

    def close(margin: float) -> Callable[[int], bool]:
        # The rounding error of 1 − 1/(γt+1) must not shift the step by one.
        slack = margin * (1 + 1e-9)
        return lambda step: bounds(step)[0] >= final_lr * (1 - slack) and bounds(step)[1] <= final_lr * (1 + slack)

    within = {f"{margin:.0%}": _first(close(margin)) for margin in (0.1, 0.01)}
    clipped: list[dict[str, Any]] = []
    for gradient in _GRADIENTS:
        rate = lr / gradient
        bound = None if math.isclose(rate, final_lr) else "lower" if rate < final_lr else "upper"
        step = _first(lambda t: not bounds(t)[0] <= rate <= bounds(t)[1]) if bound else None  # noqa: B023
        clipped.append({"gradient": gradient, "rate": rate, "bound": bound, "step": step})
    last = 10 * max(10, *(step or 1 for step in within.values()))
    powers = {10**power for power in range(math.floor(math.log10(last)) + 1)}
    steps = sorted(powers | {round(last ** (i / 200)) for i in range(201)})
    lower, upper = zip(*map(bounds, steps), strict=True)
    curve = {"step": [float(step) for step in steps], "lower": list(lower), "upper": list(upper)}
    return Forecast(family, lr, final_lr, gamma, within, clipped, curve, proof)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The first step at which ``holds`` is true, if it stays true from there."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _NEVER:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _certificate_lines(proof: Certificate) -> list[str]:
    """What the theory says about the bounds, and what else the guarantee needs."""
    useful = proof.useful_from()
    by = f"κ = {proof.kappa:g} (Theorem A) and M = {proof.m:g} (Savarese 2019)"
    return [
        "",
        f"meets the assumptions of Theorem 4: {'yes' if proof.meets_theorem_4 else 'no'}",
        f"regret guaranteed to be O(√T): yes, with {by}, but only for",
        *(f"  - {need}" for need in NEEDS),
        f"better than the trivial bound D·G·T from T = {useful:,.0f} on, by {proof.regret(useful).name}",
        "(diameter D = 2, gradients up to G = 1, one dimension, β₁ = 0)",
    ]


def _when(step: int | None) -> str:
    return "never" if step is None else f"from step {step:,}"


def _bounds_in_characters(curve: dict[str, list[float]], final_lr: float, width: int = 40) -> list[str]:
    """A row for each step that is a power of ten; the width spans 10⁻³ to 10³ times the final learning rate."""

    def column(rate: float) -> int:
        return round(width * (math.log10(rate / final_lr) + 3) / 6)

    lines = [
        f"{'step':>12}  {'lower':>9}  {'upper':>9}  {1e-3 * final_lr:<{width // 2}g}{1e3 * final_lr:>{width // 2}g}"
    ]
    for step, lower, upper in zip(*curve.values(), strict=True):
        if math.log10(step).is_integer():
            low, high = max(0, column(lower)), min(width, column(upper))
            lines.append(f"{step:>12,.0f}  {lower:>9.3g}  {upper:>9.3g}  {' ' * low}{'█' * max(1, high - low)}")
    return lines
