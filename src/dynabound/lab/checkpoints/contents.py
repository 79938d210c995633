"""What a run's metrics and the state that it resumes from must look like."""

from __future__ import annotations

from typing import Any

from dynabound.lab.errors import DamagedError
from dynabound.lab.spec import RunSpec, is_number

__all__ = ["check_metrics", "check_result", "check_state"]

_COUNTS = ("epoch", "step")
_NUMBERS = ("train_loss", "test_loss", "lr", "seconds")
_INFINITE = ("lower", "upper")  # None stands for infinity


def check_metrics(lines: Any) -> list[dict[str, Any]]:
    """``lines``; DamagedError unless they are the metrics of consecutive epochs."""
    if not isinstance(lines, list) or not all(map(_is_line, lines)):
        raise DamagedError("its metrics are incomplete")
    if [line["epoch"] for line in lines] != list(range(1, len(lines) + 1)):
        raise DamagedError("its epochs are out of order")
    return lines


def check_result(spec: RunSpec, state: str | None, metrics: list[dict[str, Any]]) -> None:
    """DamagedError unless a run of ``spec`` in this state could have these metrics."""
    if (state == "finished" and len(metrics) != spec.epochs) or (state == "diverged" and len(metrics) >= spec.epochs):
        raise DamagedError(f"it has {len(metrics)} of {spec.epochs} epochs and is {state}")
    needed = (f"train_{spec.metric}", f"test_{spec.metric}")
    if not all(is_number(line.get(key)) for line in metrics for key in needed):
        raise DamagedError(f"its metrics lack one of {', '.join(needed)}")
    if spec.text and not all(line[key] > 0 for line in metrics for key in needed):
        raise DamagedError("a perplexity is not positive")


def check_state(state: dict[str, Any]) -> dict[str, Any]:
    """``state``; DamagedError unless a run could have saved it: a checksum alone does not prove that."""
    metrics = check_metrics(state.get("metrics"))
    sums, ranks = state.get("sums"), state.get("ranks")
    whole = (
        all(type(state.get(key)) is int and state[key] >= 0 for key in ("epoch", "index", "step"))
        and state["epoch"] == len(metrics) + 1
        and all(isinstance(state.get(key), dict) for key in ("model", "optimizer"))
        and is_number(state.get("seconds"))
        and isinstance(sums, list)
        and len(sums) == 3
        and all(map(is_number, sums))
        and isinstance(ranks, list)
        and all(isinstance(rank, dict) and {"random", "carry"} <= rank.keys() for rank in ranks)
        and isinstance(state.get("data"), str)
    )
    if not whole:
        raise DamagedError("it is not the state of a run")
    return state


def _is_line(line: Any) -> bool:
    if not (isinstance(line, dict) and all(type(line.get(key)) is int for key in _COUNTS)):
        return False
    plain = [value for key, value in line.items() if key != "rates" and not (key in _INFINITE and value is None)]
    if not all(is_number(line.get(key)) for key in _NUMBERS):
        return False
    return all(map(is_number, plain)) and _are_rates(line.get("rates", {}))


def _are_rates(rates: Any) -> bool:
    return isinstance(rates, dict) and all(
        isinstance(layer, list) and len(layer) == 5 and all(map(is_number, layer)) for layer in rates.values()
    )
