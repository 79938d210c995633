"""The report as one HTML page that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable
from html import escape
from typing import Any

from dynabound._version import __version__
from dynabound.lab.report.claims import NOT_REPRODUCED, REPRODUCED, UNDECIDED
from dynabound.lab.studies.recipes import STUDIES

__all__ = ["render"]

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


def render(report: dict[str, Any]) -> str:
    """The page of a report that :func:`dynabound.lab.report.summary.build` made; its figures carry their SVG."""
    scale = report["scale"]
    options = f" --scale {scale} --out {shlex.quote(report['out'])}"
    again = options if scale == "demo" else f"{options} --data-dir DIR"
    sections = "\n".join(_study(study, again) for study in report["studies"])
    which = "Every experiment" if len(report["studies"]) == len(STUDIES) else "Experiments"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AdaBound reproduced: {escape(scale)} scale</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>Adaptive Gradient Methods with Dynamic Bound of Learning Rate, reproduced</h1>
<p>{which} of the paper at {escape(_SCALES[scale])}</p>
{_overview(report["studies"])}
{_RULE}
</header>
<main>
{sections}
</main>
<footer><p>Made by dynabound {escape(__version__)} from stored runs;
<code>dynabound report{escape(options)}</code> makes the page of all studies.</p></footer>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _badge(verdict: str) -> str:
    kind = _CLASSES[verdict]
    return f'<span class="badge {kind}">{_MARKS[kind]}&nbsp;{escape(verdict)}</span>'


def _rows(cells: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)


def _cell(text: str, sort: float | str | None = None, kind: str = "") -> str:
    value = "" if sort is None else f' data-sort="{escape(str(sort))}"'
    return f"<td{value}{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{text}</td>"


def _table_of(headings: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> str:
    head = "".join(f'<th scope="col"><button type="button">{escape(heading)}</button></th>' for heading in headings)
    title = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="sortable">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{_rows(rows)}</tbody></table></div>"
    )


def _overview(studies: list[dict[str, Any]]) -> str:
    rows = []
    for study in studies:
        counts = {word: sum(check["verdict"] in kinds for check in study["checks"])
                  for word, kinds in (("yes", (REPRODUCED, "holds")), ("no", (NOT_REPRODUCED, "fails")))}  # fmt: skip
        total = len(study["checks"])
        runs = ", ".join(f"{count} {state}" for state, count in study["runs"].items())
        rows.append([
            _cell(f'<a href="#{escape(study["name"])}">{escape(study["title"])}</a>'),
            _cell(_badge(study["verdict"])),
            _cell(f"{counts['yes']} of {total}", counts["yes"], "number"),
            _cell(f"{counts['no']} of {total}", counts["no"], "number"),
            _cell(escape(runs)),
        ])  # fmt: skip
    return _table_of(("study", "verdict", "claims that hold", "that do not", "runs"), rows)


def _study(study: dict[str, Any], options: str) -> str:
    name = escape(study["name"])
    command = escape(f"dynabound reproduce {study['name']}{options}")
    checks = _table_of(
        ("claim", "measured", "verdict"),
        ([_cell(escape(check["claim"])), _cell(escape(check["measured"])), _cell(_badge(check["verdict"]))]
         for check in study["checks"]),
    )  # fmt: skip
    settings = "".join(f"<li>{escape(line)}</li>" for line in study["settings"])
    return f"""<section id="{name}">
<h2>{escape(study["title"])} {_badge(study["verdict"])}</h2>
<p class="claim"><b>The paper:</b> {escape(study["claim"])}</p>
{_failures(study["failures"])}
{"".join(map(_figure, study["figures"]))}
{checks}
{"".join(map(_measured, study["tables"]))}
<details><summary>Settings</summary><ul>{settings}</ul></details>
<p>Repeat it with <code>{command}</code></p>
</section>"""


def _failures(failures: list[dict[str, str]]) -> str:
    if not failures:
        return ""
    items = "".join(
        f"<li><code>{escape(f['run'])}</code> {escape(f['method'])}: "
        f"<b>{_word(f['state'])}</b>"
        f"{_error(f['error'])}</li>"
        for f in failures
    )
    return f'<div class="failures" role="alert"><b>Runs without a result</b><ul>{items}</ul></div>'


def _error(text: str) -> str:
    """A message goes on in the line; a traceback needs lines of its own."""
    return f"<pre>{escape(text)}</pre>" if "\n" in text else f": {escape(text)}" if text else ""


def _word(state: str) -> str:
    return "not run" if state == "new" else escape(state)


def _figure(figure: dict[str, Any]) -> str:
    image = base64.b64encode(figure["svg"]).decode()
    title = escape(figure["title"])
    return f'<figure><img alt="{title}" src="data:image/svg+xml;base64,{image}"></figure>'


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _measured(table: dict[str, Any]) -> str:
    metric = table["metric"]
    level = table["rows"][0]["level"] if table["rows"] else None
    headings = ["method", f"final test {metric}", f"best test {metric}", f"final training {metric}", "rank"]
    caption = f"{table['name']}: mean over seeds ± standard deviation"
    if level is not None:
        headings += ["epochs to Adam's level", "seconds to it"]
        caption += f"; Adam's level is the final test {metric} of its best run, {level:.2f}"
    rows = []
    for row in table["rows"]:
        final, best = ("" if row[key] is None else f" ± {row[key]:.2f}" for key in ("final_spread", "best_spread"))
        unwell = {state: row["states"].count(state) for state in row["states"] if state != "finished"}
        note = "".join(f" <b class=no>{count} {_word(state)}</b>" for state, count in unwell.items())
        cells = [
            _cell(f"{escape(row['method'])}{note}<br><small>{escape(row['settings'])}</small>", row["method"]),
            _cell(_number(row["final"]) + final, row["final"], "number"),
            _cell(_number(row["best"]) + best, row["best"], "number"),
            _cell(_number(row["train"]), row["train"], "number"),
            _cell("–" if row["rank"] is None else str(row["rank"]), row["rank"], "number"),
        ]
        if level is not None:
            part = "" if row["epochs"] is not None else f" <small>({escape(row['reached'])} seeds)</small>"
            cells.append(_cell(_number(row["epochs"], 1) + part, row["epochs"], "number"))
            cells.append(_cell(_number(row["seconds"], 1), row["seconds"], "number"))
        rows.append(cells)
    return _table_of(headings, rows, caption)


_RULE = """<details><summary>How the verdicts are made</summary>
<p>Each is computed from the runs below. Two methods are compared by their means over seeds, at the last epoch, with
Welch's test: the difference counts if it is more than <i>t</i> standard errors (Student's 97.5 % point). Then the claim
is <b>reproduced</b>, or, if the difference points the other way, <b>not reproduced</b>. If it is less, the claim is
<b>not decided at this scale</b>; so it is if a run is missing. A method that diverged is worse than one that did not. A
study is reproduced if all its claims are, and not reproduced if one of them is not.</p>
<p>Some verdicts take no account of chance: whether all methods reach 99 % in training, whether the range over final
step sizes is less than half as large, and claims about learning rates, which are read from single runs. Those of the
theory hold or fail; some of them are not the paper's but follow from it.</p></details>"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #566072; --paper: #fff; --card: #f6f7f9; --line: #d9dde4;
  --yes: #00634a; --no: #a33c00; --open: #6b5200; --link: #005a8d }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #a4adbb; --paper: #14171c; --card: #1d2128;
  --line: #363c47; --yes: #4cd3a5; --no: #ff9a5c; --open: #ebc454; --link: #6cbcf0 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 68rem; padding: 1rem clamp(.8rem, 3vw, 2rem) 3rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.2 }
h2 { font-size: clamp(1.15rem, 3vw, 1.45rem); line-height: 1.3; margin: 0 0 .6rem }
a { color: var(--link) }
section { border-top: 2px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem }
.claim { color: var(--soft); max-width: 50rem }
.badge { border: 1px solid; border-radius: 1rem; display: inline-block; font-size: .8rem; font-weight: 600;
  line-height: 1.3; padding: .1rem .6rem; vertical-align: middle }
.yes { color: var(--yes) } .no { color: var(--no) } .open { color: var(--open) }
figure { background: #fff; border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0; padding: .5rem }
figure img { display: block; height: auto; margin: auto; max-width: 100% }
.scroll { margin: 1rem 0; overflow-x: auto }
table { border-collapse: collapse; font-size: .92rem; width: 100% }
caption { color: var(--soft); padding: .3rem 0; text-align: left }
caption span { display: block; max-width: calc(100vw - 3rem) }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top }
th { background: var(--card); padding: 0 }
th button { background: none; border: 0; color: inherit; cursor: pointer; font: inherit; font-weight: 600;
  padding: .4rem .6rem; text-align: left; width: 100% }
th button::after { content: " ↕"; color: var(--soft) }
th[aria-sort=ascending] button::after { content: " ↑" } th[aria-sort=descending] button::after { content: " ↓" }
.number { font-variant-numeric: tabular-nums; white-space: nowrap }
small { color: var(--soft) }
.failures { background: var(--card); border-left: 4px solid var(--no); padding: .6rem 1rem }
pre { font-size: .8rem; line-height: 1.4; margin: .3rem 0; overflow-x: auto }
code { background: var(--card); border-radius: .25rem; padding: .1rem .3rem }
details { margin: .8rem 0 } summary { cursor: pointer; font-weight: 600 }
footer { border-top: 1px solid var(--line); color: var(--soft); margin-top: 2rem }
@media screen and (max-width: 40rem) { figure { overflow-x: auto } figure img { max-width: none; width: 46rem } }
@media (min-width: 40rem), print { .badge { white-space: nowrap } }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; --yes: #00634a;
  --no: #a33c00; --open: #6b5200; --link: #000; font-size: 9pt }
  body { font-size: 1rem; line-height: 1.4; max-width: none; padding: 0 }
  section { border: 0; break-before: page; margin: 0; padding: 0 } figure img { max-height: 21cm }
  h2, caption, summary { break-after: avoid } figure, tr, .scroll:has(caption) { break-inside: avoid }
  th, td { padding: .2rem .6rem } th button { display: contents } /* buttons are not repeated on every page */
  th button::after { content: "" } .scroll { overflow: visible } }
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
      const none = text => text.startsWith("–");   // what is missing stays at the end
      if (none(x) || none(y)) return none(x) - none(y);
      return down * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}
let closed = [];
addEventListener("beforeprint", () => {   // what is folded up on a screen is part of what is printed
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach(details => details.open = true);
});
addEventListener("afterprint", () => closed.forEach(details => details.open = false));
"""
