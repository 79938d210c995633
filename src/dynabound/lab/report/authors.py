"""The curves that the paper's authors published for CIFAR-10, beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynabound._files import read_regular
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.report.figures import Band, CurvesFigure, Panel, ReportFigure
from dynabound.lab.store import parse_json

__all__ = ["FILE", "Combined", "combine"]

FILE = "authors-cifar10.json"
"""In the folder of a ledger: ``origin``, and ``curves`` from "network/optimizer" to settings and accuracies."""
_LABELS = {"sgd": "SGDM", "adagrad": "AdaGrad", "adam": "Adam", "amsgrad": "AMSGrad", "adabound": "AdaBound",
           "amsbound": "AMSBound"}  # fmt: skip


@dataclass(frozen=True)
class Combined:
    """Our figure with the authors' panels added, and a note on the differences."""

    figure: CurvesFigure
    note: str


def combine(figures: Sequence[ReportFigure], folder: Path) -> Combined | None:
    """The first figure with a panel of the authors after each of ours; None if there are no curves of the authors."""
    ours = figures[0] if figures else None
    if not isinstance(ours, CurvesFigure) or not (folder / FILE).exists():
        return None
    theirs = _read(folder / FILE)
    panels: list[Panel] = []
    for panel in ours.panels:
        published = {name.partition("/")[2]: curve for name, curve in theirs["curves"].items()
                     if name.partition("/")[0] == panel.name}  # fmt: skip
        bands = tuple(Band(label, False, [published[key]["train"]], [published[key]["test"]])
                      for key, label in _LABELS.items() if key in published)  # fmt: skip
        panels += [panel, Panel(f"{panel.name}, the authors'", bands)] if bands else [panel]
    note = (
        f"The panels marked \"the authors'\" show the authors' own curves. {theirs['origin']} These are single runs of "
        "the full networks on all images for 200 epochs, and AdaBound and AMSBound have their default step sizes; ours "
        "have the settings below. Therefore compare only the order of the methods. The authors' final test accuracies "
        f"and step sizes: {'; '.join(_final_accuracies(theirs['curves']))}."
    )
    return Combined(replace(ours, panels=tuple(panels)), note)


def _final_accuracies(curves: dict[str, Any]) -> Iterator[str]:
    for name, curve in sorted(curves.items()):
        network, _, optimizer = name.partition("/")
        settings = re.sub("-?([a-z_]+)", r", \1 ", curve["settings"])[2:].replace("-", " and ")
        yield f"{network}, {_LABELS.get(optimizer, optimizer)} {curve['test'][-1]:.2f} ({settings})"


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(read_regular(path), dict)
        curves = [curve[split] for curve in found["curves"].values() for split in ("train", "test")]
        words = [found["origin"], *(curve["settings"] for curve in found["curves"].values())]
        if not all(isinstance(word, str) for word in words) or not all(
            isinstance(v, (int, float)) for c in curves for v in c
        ):
            raise DamagedError("its curves are not lists of numbers")
    except (OSError, DamagedError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{path}: is damaged ({error}); restore the file from its repository") from None
    return found
