"""The report as one self-contained HTML page: it needs no network, no server and no other file."""

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
from dynabound.lab.report.statistics import ALPHA
from dynabound.lab.report.summary import Report, StudyReport
from dynabound.lab.report.tables import MethodRow
from dynabound.lab.report.verdicts import (
    FAILS,
    HOLDS,
    HOLDS_IN_PART,
    HOLDS_WHERE_DECIDED,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    OPEN_ONLY,
    PARTLY,
    REPRODUCED,
    UNDECIDED,
)  # fmt: skip
from dynabound.lab.studies.recipes import choose

__all__ = ["as_dict", "headline", "paper_claims", "render", "write"]

_SCALES = {
    "demo": "demo scale: scikit-learn's 8×8 digits replace MNIST and CIFAR-10, and the text of Python's language "
    "reference replaces Penn Treebank. The networks are small and the budgets short: a verdict is about these runs, "
    "and not about the paper's.",
    "laptop": "laptop scale: MNIST for 20 epochs, and of CIFAR-10 and Penn Treebank small parts for the first few "
    "hundred steps, with smaller convolutional networks and LSTMs. A verdict is about these runs, and "
    "not about the paper's.",
    "paper": "paper scale: the paper's networks, data sets, budgets and search for step sizes.",
}
_CLASSES = {
    REPRODUCED: "yes", HOLDS: "yes", OPEN_ONLY: "yes", HOLDS_WHERE_DECIDED: "yes", NOT_REPRODUCED: "no", FAILS: "no",
    PARTLY: "mixed", UNDECIDED: "open", NOT_COMPARABLE: "none",
}  # fmt: skip
_MARKS = {"yes": "✓", "no": "✗", "mixed": "◐", "open": "?", "none": "–"}
_KINDS = ("yes", "no", "open", "none")
_CAPTIONS = {
    "curves": "Lines: means over seeds. Shading: one standard deviation on either side. Dotted: references, no rank.",
    "steps": "Bars: means over seeds. Thin lines: range over seeds.",
    "heatmaps": "log₁₀ of single learning rates. Lighter cells are smaller; vermilion cells are 0 or not finite.",
    "evolution": "The grey area is between the bounds, which converge to the final step size.",
    "forest": "Dots: differences. Thick lines: intervals over seeds. Thin lines add two standard errors of the test "
    "set. Right of 0 is in favour of a claim of “better”; black ticks are the limits of other claims.",
    "cost": "Means over seeds, with one standard deviation. The best place is on the left, at a high accuracy or a low "
    "perplexity.",
    "ranks": "Grey: ranks on the workloads. Diamonds: mean ranks; 1 is the best.",
}
"""How to read the figures, by kind."""


def as_dict(study: StudyReport) -> dict[str, object]:
    """The study for ``report.json``: everything except the figures, which have files of their own."""
    return {key: value for key, value in asdict(study).items() if key != "figures"}


def write(report: Report, out: Path) -> Path:
    """Draw the figures, write ``report.html`` and ``report.json``, and return the path of the page."""
    folder = out / report.scale
    path = folder / "report.html"
    try:
        drawn = [figure for study in report.studies for figure in study.figures]
        drawn += [question.figure for question in report.questions]
        pictures = {figure.name: figure.svg(folder / "figures") for figure in drawn}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(report, pictures).encode())
        plain = {
            "scale": report.scale,
            "out": report.out,
            "questions": [
                {"question": each.question, "answer": each.answer, "details": each.details} for each in report.questions
            ],
            "environment": report.environment,
            "studies": [as_dict(study) for study in report.studies],
        }
        write_whole(folder / "report.json", (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise LabError(f"{error.filename or out}: cannot be written ({error.strerror}); give another --out") from None
    return path


def render(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The page; ``pictures`` has the SVG of every figure by name."""
    jinja, markup = need("jinja2", "lab"), need("markupsafe", "lab").Markup
    loader = jinja.PackageLoader("dynabound.lab.report")
    environment = jinja.Environment(loader=loader, autoescape=True, undefined=jinja.StrictUndefined)
    environment.filters |= {
        "verdict_class": _class,
        "mark": _MARKS.__getitem__,
        "headline": headline,
        "paper_claims": paper_claims,
        "signed": _signed,
        "p_value": _p_value,
        "number": _number,
        "other_states": _other_states,
        "state_word": lambda state: "not run" if state == "new" else state,
    }
    page: str = environment.get_template("report.html.j2").render(
        report=report,
        alpha=ALPHA,
        captions=_CAPTIONS,
        pictures={name: base64.b64encode(svg).decode() for name, svg in pictures.items()},
        complete={study.name for study in choose([], report.scale)} <= {study.name for study in report.studies},
        scale_note=_SCALES[report.scale],
        options=f" --scale {report.scale} --out {shlex.quote(report.out)}",
        data_option="" if report.scale == "demo" else " --data-dir DIR",
        version=__version__,
        css=markup(loader.get_source(environment, "report.css")[0]),
        js=markup(loader.get_source(environment, "report.js")[0]),
    )
    return page


def _class(verdict: str) -> str:
    """The CSS class of a badge; the verdict on the theorems, which is a sentence, is mixed."""
    return _CLASSES.get(verdict, "mixed")


def paper_claims(study: StudyReport) -> dict[str, int]:
    """How many of the paper's claims hold ("yes"), do not ("no"), are open ("open") or not comparable ("none").

    For a study of our own, our claims are counted.
    """
    kinds = [_class(check.verdict) for check in study.checks if check.of_paper != study.ours]
    return {kind: kinds.count(kind) for kind in _KINDS}


def headline(study: StudyReport) -> tuple[str, str]:
    """The verdict with the number of decided claims, if some are not, and the CSS class of its badge."""
    counts = paper_claims(study)
    decided, comparable = counts["yes"] + counts["no"], sum(counts.values()) - counts["none"]
    if not 0 < decided < comparable or study.verdict not in (*_CLASSES, HOLDS_IN_PART):
        return study.verdict, _class(study.verdict)
    word = study.verdict.removesuffix(" where decided")
    return f"{decided} of {comparable} decided, {word}", _class(study.verdict) if 2 * decided >= comparable else "open"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _p_value(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _other_states(row: MethodRow) -> list[tuple[str, int]]:
    return list(Counter(state for state in row.states if state != "finished").items())
