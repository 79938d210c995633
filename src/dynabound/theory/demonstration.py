"""What a demonstration returns: its numbers, and the verdicts computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dynabound._checks import require
from dynabound.theory.framework import Steps
from dynabound.theory.verdict import REFUTED, SUPPORTED, UNDECIDED, Verdict

MAX_STEPS = 10_000_000
"""The largest T: a trajectory's coefficients take 40 bytes a step."""
_STORED = ("claim", "measured", "verdict", "source", "settings", "statement", "kind")
"""The fields of a verdict that have a meaning here."""
_LETTERS = {
    "alpha": "α", "period": "C", "alpha_amsgrad": "α of AMSGrad", "beta1": "β₁", "beta2": "β₂", "steps": "T",
    "final_lr": "α*", "gamma": "γ", "scheme": "step", "delta": "δ", "decay": "a",
    "smallest alpha": "smallest: α", "smallest beta2": "β₂",
    "savarese period": "Savarese: C", "savarese steps": "T", "savarese seeds": "seeds", "savarese alpha": "α",
    "savarese beta2": "β₂",
}  # fmt: skip


class Statement(NamedTuple):
    """Something that the paper states, with the line of its LaTeX source (arXiv 1902.09843)."""

    name: str
    line: int
    kind: str = "sentence"
    """"theorem" for what the paper numbers (theorems, the corollary, lemmas), "sentence" for all else."""


@dataclass(frozen=True)
class Demonstration:
    """One demonstration: ``data`` holds every number that its figure shows."""

    name: str
    title: str
    settings: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def judge(
        self,
        claim: str,
        measured: str,
        holds: bool | None,
        settings: str = "",
        *,
        of: Statement | None = None,
        source: str = "ours",
    ) -> None:
        """Add a verdict (``holds`` None: undecided) on the paper's statement ``of``, or on a claim of ``source``."""
        verdict = UNDECIDED if holds is None else SUPPORTED if holds else REFUTED
        if of is None:
            self.verdicts.append(Verdict(claim, measured, verdict, source, settings))
        else:
            self.verdicts.append(Verdict(claim, measured, verdict, f"paper l. {of.line}", settings, of.name, of.kind))

    @property
    def statements(self) -> dict[str, str]:
        """The verdict on each of the paper's statements: refuted or undecided if one of its claims is."""
        found: dict[str, set[str]] = {}
        for verdict in self.verdicts:
            if verdict.statement:
                found.setdefault(verdict.statement, set()).add(verdict.verdict)
        return {
            name: next(word for word in (REFUTED, UNDECIDED, SUPPORTED) if word in words)
            for name, words in found.items()
        }

    @property
    def summary(self) -> str:
        """The settings in one line."""
        flat: dict[str, Any] = {}
        for key, value in self.settings.items():
            flat.update({f"{key} {k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
        return ",  ".join(f"{_LETTERS.get(key, key)} = {_shown(value)}" for key, value in flat.items())

    def as_dict(self) -> dict[str, Any]:
        """All fields as numbers, strings, lists and dicts, for JSON."""
        verdicts = [{key: getattr(verdict, key) for key in _STORED} for verdict in self.verdicts]
        return to_json({**vars(self), "verdicts": verdicts, "statements": self.statements})  # type: ignore[no-any-return]


def check_size(steps: int, seeds: int = 1, most: int = MAX_STEPS) -> None:
    """Raise unless ``steps`` and ``seeds`` are at least 1, and their product is small enough to be run."""
    require(1 <= steps <= MAX_STEPS, "steps", steps, f"at least 1 and at most {MAX_STEPS:,}")
    allowed = f"at least 1 and, with steps={steps}, at most {max(most // steps, 1):,}: {seeds * steps:,} steps in all"
    require(1 <= seeds <= max(most // steps, 1), "seeds", seeds, allowed)


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


def log_spaced(steps: int, count: int = 300, multiple: int = 1) -> Steps:
    """About ``count`` steps up to ``steps``, evenly spaced on a logarithmic axis, each a multiple of ``multiple``."""
    grid = np.geomspace(1, max(steps // multiple, 1), count).round().astype(np.int64)
    grid = np.unique(np.append(grid, max(steps // multiple, 1))) * multiple
    return grid[grid <= steps] if multiple <= steps else np.array([steps])


def step_size_text(scheme: str) -> str:
    """How the step size is written."""
    return "α/√t" if scheme == "sqrt" else "constant α"
