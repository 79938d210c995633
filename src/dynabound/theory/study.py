"""What a demonstration returns: its numbers, and the verdicts computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dynabound.theory.framework import Steps, Trajectory
from dynabound.theory.methods import Method

SGDM_MOMENTUM = 0.9
_LETTERS = {
    "alpha": "α", "period": "C", "alpha_amsgrad": "α of AMSGrad", "beta1": "β₁", "beta2": "β₂", "steps": "T",
    "final_lr": "α*", "gamma": "γ", "scheme": "step", "delta": "δ",
    "smallest alpha": "smallest: α", "smallest beta2": "β₂",
    "savarese period": "Savarese: C", "savarese steps": "T", "savarese seeds": "seeds", "savarese alpha": "α",
    "savarese beta2": "β₂",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether the claim holds."""

    claim: str
    measured: str
    holds: bool
    settings: str = ""
    """Where these differ from the demonstration's."""


@dataclass(frozen=True)
class Demonstration:
    """One demonstration: ``data`` holds every number that its picture shows."""

    name: str
    title: str
    settings: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def judge(self, claim: str, measured: str, holds: bool, settings: str = "") -> None:
        """Add a verdict."""
        self.verdicts.append(Verdict(claim, measured, bool(holds), settings))

    @property
    def summary(self) -> str:
        """The settings in one line."""
        flat: dict[str, Any] = {}
        for key, value in self.settings.items():
            flat.update({f"{key} {k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
        return ",  ".join(f"{_LETTERS.get(key, key)} = {_shown(value)}" for key, value in flat.items())

    def as_dict(self) -> dict[str, Any]:
        """All fields as numbers, strings, lists and dicts, for JSON."""
        return to_json({**vars(self), "verdicts": [vars(verdict) for verdict in self.verdicts]})  # type: ignore[no-any-return]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return step_size_text(value)
    if isinstance(value, tuple):
        return " | ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def to_json(value: Any) -> Any:
    """``value`` without NumPy types; a number that JSON cannot hold (infinity, NaN) becomes None."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    return value if not isinstance(value, float) or np.isfinite(value) else None


def make_method(name: str, **numbers: Any) -> Method:
    """The method of that name; SGDM takes its usual momentum instead of β₁."""
    if name == "SGDM":
        numbers["beta1"] = SGDM_MOMENTUM
    return Method(name, **numbers)


def log_spaced(steps: int, count: int = 300, multiple: int = 1) -> Steps:
    """About ``count`` steps up to ``steps``, evenly spaced on a logarithmic axis, each a multiple of ``multiple``."""
    grid = np.geomspace(1, max(steps // multiple, 1), count).round().astype(np.int64)
    grid = np.unique(np.append(grid, max(steps // multiple, 1))) * multiple
    return grid[grid <= steps] if multiple <= steps else np.array([steps])


def first_below_0(run: Trajectory) -> int | None:
    """The first t with x_t < 0, of a run that has recorded all its steps."""
    below = np.flatnonzero(np.append(run.x[:, 0], run.last) < 0)
    return int(below[0]) + 1 if below.size else None


def step_size_text(scheme: str) -> str:
    """How the step size is written."""
    return "α/√t" if scheme == "sqrt" else "constant α"
