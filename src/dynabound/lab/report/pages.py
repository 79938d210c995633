"""The pages of a report: one self-contained HTML file, or two Markdown files with their figures."""

from __future__ import annotations

import base64
import json
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dynabound._extras import need
from dynabound._files import write_whole
from dynabound._version import __version__
from dynabound.lab.report.summary import VERDICTS, Report, StudyReport
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.studies.recipes import choose

_SCALES = {
    "demo": "demo scale: scikit-learn's 8×8 digits replace MNIST and CIFAR-10, and the text of Python's language "
    "reference replaces Penn Treebank. The networks are small and the budgets short: a verdict is about these runs, "
    "and not about the paper's.",
    "laptop": "laptop scale: MNIST for 20 epochs, and of CIFAR-10 and Penn Treebank small parts for the first few "
    "hundred steps, with smaller convolutional networks and LSTMs. A verdict is about these runs, and "
    "not about the paper's.",
    "paper": "paper scale: the paper's networks, data sets, budgets and search for learning rates.",
}
_CLASSES = dict(zip(VERDICTS, ("yes", "no", "open", "none"), strict=True))
_MARKS = dict(zip(VERDICTS, ("✓", "✗", "?", "–"), strict=True))
_CAPTIONS = {
    "curves": "Lines: means over seeds. Shading: one standard deviation on either side. Dotted: references, no rank.",
    "heatmaps": "log₁₀ of single learning rates. Lighter cells are smaller; vermilion cells are 0 or not finite.",
    "evolution": "The grey area is between the bounds, which converge to the final learning rate.",
    "dots": "Thick lines: intervals. Thin lines add two standard errors of the test set. Hollow dots: undecided. Black "
    "ticks: the limits of a claim that allows a difference.",
    "cost": "Means over seeds, with one standard deviation. The best place is on the left, at a high accuracy or a low "
    "perplexity.",
    "ranks": "Grey: ranks on the workloads. Diamonds: mean ranks; 1 is the best.",
}
"""How to read the figures, by kind."""
_COPIES = {
    "5b6abbfe37f12552": "The CIFAR-10 runs were trained on a copy of CIFAR-10 whose images are JPEG files. Its pixels "
    "differ slightly from those of the original files, so `dynabound verify` with the original files does not compare "
    "these runs."
}
"""Notes on data sets that are not the original files, by the fingerprint in a run's environment."""
_WIDTH = 114
"""Characters in a line of Markdown, outside tables."""


def as_dict(study: StudyReport) -> dict[str, object]:
    """The study for ``report.json``: everything except the figures, which have files of their own."""
    fields = {key: value for key, value in asdict(study).items() if key != "figures"}
    return {**fields, "headline": study.headline, "counts": study.counts}


def write_html(report: Report, out: Path) -> Path:
    """Draw the figures, write ``report.html`` and ``report.json``, and return the path of the page."""
    (scale,) = report.scales
    folder = out / scale
    path = folder / "report.html"
    facts = [{"question": fact.question, "lines": fact.lines} for fact in report.facts]
    plain = {"scale": scale, "out": str(out), "facts": facts, "environment": report.environment,
             "studies": [as_dict(study) for study in report.studies]}  # fmt: skip
    drawn = [figure for study in report.studies for figure in study.figures]
    drawn += [fact.figure for fact in report.facts]
    pictures = {figure.name: figure.svg(folder / "figures") for figure in drawn}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_html(report, out, pictures).encode())
    write_whole(folder / "report.json", (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def render_html(report: Report, out: Path, pictures: Mapping[str, bytes]) -> str:
    """The page; ``pictures`` has the SVG of every figure by name."""
    environment, (scale,) = _environment(escape_html=True), report.scales
    markup = need("markupsafe", "lab").Markup
    style, script = (markup(environment.loader.get_source(environment, f"page.{kind}")[0]) for kind in ("css", "js"))
    page: str = environment.get_template("page.html.j2").render(
        report=report,
        scale=scale,
        captions=_CAPTIONS,
        classes=_CLASSES,
        marks=_MARKS,
        pictures={name: base64.b64encode(svg).decode() for name, svg in pictures.items()},
        complete={study.name for study in choose([], scale)} <= {study.name for study in report.studies},
        scale_note=_SCALES[scale],
        options=f" --scale {scale} --out {shlex.quote(str(out))}",
        data_option="" if scale == "demo" else " --data-dir DIR",
        version=__version__,
        css=style,
        js=script,
    )
    return page


def write_markdown(report: Report, runs: Sequence[StoredRun], ledger: str, path: Path) -> int:
    """Write the page, NAME-appendix.md, and the figures into ``figures`` beside them; return the number of figures.

    ``runs`` are all of the folder ``ledger``.
    """
    appendix = path.with_name(f"{path.stem}-appendix{path.suffix}")
    folder = path.parent / "figures"
    pages = render_markdown(report, runs, ledger, path.stem)
    figures = {f"{path.stem}-{study.scale}-{figure.name}": figure
               for study in report.studies for figure in study.figures}  # fmt: skip
    if report.forest:
        figures[f"{path.stem}-{report.forest.name}"] = report.forest
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        write_whole(folder / f"{name}.png", figure.png(), durable=False)
    for file, text in zip((path, appendix), pages, strict=True):
        write_whole(file, text.encode())
    return len(figures)


def render_markdown(report: Report, runs: Sequence[StoredRun], ledger: str, stem: str) -> tuple[str, str]:
    """The page and its appendix."""
    sessions = [session for run in runs for session in run.environment]
    data = {session.get("data") for session in sessions}
    states = [f"{sum(run.state == state for run in runs)} {state}" for state in ("finished", "diverged")]
    template = _environment(escape_html=False).get_template("page.md.j2")
    known: dict[str, Any] = dict(
        report=report,
        ledger=ledger,
        stem=stem,
        runs=f"{len(runs)} runs in `{ledger}/` ({', '.join(states)}",
        hours=sum(line["seconds"] for run in runs for line in run.metrics) / 3600,
        machines=sorted({_machine(run) for run in runs}),
        notes=[note for fingerprint, note in _COPIES.items() if fingerprint in data],
        captions=_CAPTIONS,
    )
    return template.render(appendix=False, **known), template.render(appendix=True, **known)


def _machine(run: StoredRun) -> str:
    last = run.environment[-1]
    return f"{last.get('cpu', 'a CPU that was not recorded')}, {last.get('platform')}, torch {last.get('torch')}"


def _environment(escape_html: bool) -> Any:
    jinja = need("jinja2", "lab")
    environment = jinja.Environment(
        loader=jinja.PackageLoader("dynabound.lab.report"),
        autoescape=escape_html,
        undefined=jinja.StrictUndefined,
        trim_blocks=not escape_html,
        lstrip_blocks=not escape_html,
        keep_trailing_newline=not escape_html,
    )
    environment.filters |= {
        "signed": _signed,
        "p_value": _p_value,
        "number": _number,
        "state_word": lambda state: "not run" if state == "new" else state,
        "wrapped": _wrapped,
        "markdown": _escape_markdown,
    }
    return environment


def _signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def _p_value(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _wrapped(text: str, indent: str = "") -> str:
    """Lines of Markdown; those after the first are indented, as a list needs it."""
    return textwrap.fill(" ".join(text.split()), _WIDTH, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _escape_markdown(text: object) -> str:
    """Text with the special characters of Markdown and HTML escaped: a ledger may come from anyone."""
    plain = re.sub(r"([|<>\[\]`*_\\])", r"\\\1", " ".join(str(text).split()))
    return plain.replace("\\<", "&lt;").replace("\\>", "&gt;")
