"""The report as one HTML page that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from dynabound._extras import need
from dynabound._files import write_whole
from dynabound._version import __version__
from dynabound.lab.errors import LabError
from dynabound.lab.report.claims import NOT_REPRODUCED, REPRODUCED, UNDECIDED
from dynabound.lab.report.summary import MethodRow, Report, StudyReport
from dynabound.lab.studies.recipes import STUDIES

__all__ = ["as_dict", "render", "write"]

_SCALES = {
    "demo": "demo scale: scikit-learn's 8×8 digits stand in for MNIST and CIFAR-10, and the text of Python's language "
    "reference for Penn Treebank. The networks are small and the budgets short: a verdict is about these runs, and "
    "not about the paper's.",
    "laptop": "laptop scale: the paper's data sets and shorter budgets than the paper's, with smaller convolutional "
    "networks and LSTMs.",
    "paper": "paper scale: the paper's networks, data sets, budgets and search for step sizes.",
}
_CLASSES = {REPRODUCED: "yes", "holds": "yes", NOT_REPRODUCED: "no", "fails": "no", UNDECIDED: "open"}
_MARKS = {"yes": "✓", "no": "✗", "open": "?"}


def as_dict(study: StudyReport) -> dict[str, object]:
    """The study as ``report.json`` has it: everything but the figures, which have files of their own."""
    return {key: value for key, value in asdict(study).items() if key != "figures"}


def write(report: Report, out: Path) -> Path:
    """Draw the figures, then write ``report.html`` and ``report.json``; the path of the page."""
    folder = out / report.scale
    path = folder / "report.html"
    try:
        pictures = {figure.name: figure.svg(folder / "figures") for study in report.studies for figure in study.figures}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(report, pictures).encode())
        plain = {"scale": report.scale, "out": report.out, "studies": [as_dict(study) for study in report.studies]}
        write_whole(folder / "report.json", (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise LabError(f"{error.filename}: cannot be written ({error.strerror}); give another --out") from None
    return path


def render(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The page; ``pictures`` has the SVG of every figure by name."""
    jinja, markup = need("jinja2"), need("markupsafe").Markup
    loader = jinja.PackageLoader("dynabound.lab.report")
    environment = jinja.Environment(loader=loader, autoescape=True, undefined=jinja.StrictUndefined)
    environment.filters |= {
        "verdict_class": _CLASSES.__getitem__,
        "verdict_mark": lambda verdict: _MARKS[_CLASSES[verdict]],
        "claims_with": _claims_with,
        "number": _number,
        "other_states": _other_states,
        "state_word": lambda state: "not run" if state == "new" else state,
    }
    page: str = environment.get_template("report.html.j2").render(
        report=report,
        pictures={name: base64.b64encode(svg).decode() for name, svg in pictures.items()},
        complete=len(report.studies) == len(STUDIES),
        scale_note=_SCALES[report.scale],
        options=f" --scale {report.scale} --out {shlex.quote(report.out)}",
        data_option="" if report.scale == "demo" else " --data-dir DIR",
        version=__version__,
        css=markup(loader.get_source(environment, "report.css")[0]),
        js=markup(loader.get_source(environment, "report.js")[0]),
    )
    return page


def _claims_with(study: StudyReport, kind: str) -> int:
    return sum(_CLASSES[check.verdict] == kind for check in study.checks)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _other_states(row: MethodRow) -> list[tuple[str, int]]:
    return list(Counter(state for state in row.states if state != "finished").items())
