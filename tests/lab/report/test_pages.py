"""The pages: HTML as a browser sees it, Markdown computed from a ledger, both safe to show."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import markupsafe
import pytest

from dynabound.lab import ledger as ledgers
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Ledger
from dynabound.lab.report import pages, summary
from dynabound.lab.report.read import read_authors
from dynabound.lab.report.tables import Failure
from dynabound.lab.spec import SCALES
from dynabound.lab.store import Store
from dynabound.lab.studies import recipes
from dynabound.lab.studies.plan import StoredRuns
from dynabound.lab.studies.recipes import STUDIES, Study
from dynabound.theory.verdict import NOT_TESTABLE, REFUTED, SUPPORTED, UNDECIDED, Verdict
from helpers import tiny_studies as cases

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ROOT = Path(__file__).parents[3]
HOSTILE = "<script>window.hacked = 1</script>\"'&"

# Runs in an outer page, which shows the report in a frame as wide as a phone's screen.
PROBE = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const inner = frame.contentDocument, out = {};
  const table = [...inner.querySelectorAll("section table")].find(t => t.caption);
  const column = n => [...table.tBodies[0].rows].map(row => row.cells[n].dataset.sort ?? row.cells[n].textContent);
  const click = n => table.tHead.rows[0].cells[n].firstChild.click();
  out.before = column(1);
  click(1); out.up = column(1); out.sorted = table.tHead.rows[0].cells[1].getAttribute("aria-sort");
  click(1); out.down = column(1);
  click(5); out.reached = column(5);
  click(0); out.names = column(0);
  out.errors = frame.contentWindow.errors;
  out.hacked = frame.contentWindow.hacked ?? null;
  out.images = [...inner.images].map(image => [image.complete, image.naturalWidth, image.clientWidth]);
  out.wide = inner.documentElement.scrollWidth;
  out.screen = frame.clientWidth;
  out.headings = [...inner.querySelectorAll("section h2")].map(heading => heading.textContent);
  const folded = () => inner.querySelectorAll("details:not([open])").length;
  out.folded = [folded()];
  for (const moment of ["beforeprint", "afterprint"]) {
    frame.contentWindow.dispatchEvent(new Event(moment));
    out.folded.push(folded());
  }
  document.querySelector("pre").textContent = JSON.stringify(out);
});
frame.srcdoc = document.querySelector("template").innerHTML;
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A report of a good study and of one with a hostile name whose runs fail with a hostile error, and its page."""
    out = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as monkeypatch:
        study = cases.make_tiny(monkeypatch)
        bad = Study("cifar10", f"Bad {HOSTILE}", f"Claim {HOSTILE}", recipes.STUDIES["cifar10"].rows)
        monkeypatch.setitem(recipes.WORKLOADS["demo"], "resnet10", {**cases.TINY, "hidden": 5})
        store = Store(out / "runs")
        cases.complete([study], store, cases.InProcess())
        failed = bad.rows[-7].spec("demo")
        with store.run(failed).lock():
            store.run(failed).begin(failed, {})
            store.run(failed).write_status("failed", error=HOSTILE)
        made = summary.build([study, bad], ["demo"], StoredRuns(store))
        return made, pages.write_html(made, out)


@pytest.mark.slow
def test_failures_are_shown_and_escaped(built):
    made, path = built
    text = path.read_text()
    assert [f.error for f in made.studies[1].failures if f.state == "failed"] == [HOSTILE]
    assert HOSTILE not in text
    assert str(markupsafe.escape(HOSTILE)) in text
    assert text.count("<script>") == 1


@pytest.mark.slow
def test_the_page_needs_nothing_but_itself(built):
    text = built[1].read_text()
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", text) == []
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.slow
def test_the_figures_show_every_curve(built):
    """The SVG has a line of the right number of points for each method in each panel."""
    svg = built[1].parent / "figures" / "mnist.svg"
    paths = [p.get("d", "") for p in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}path")]
    lines = [d for d in paths if len(re.findall("[ML]", d)) == cases.TINY["epochs"] and "z" not in d]
    assert len(lines) >= 2 * 6


@pytest.mark.slow
def test_a_traceback_keeps_its_lines_and_is_escaped(built, tmp_path):
    error = 'Traceback:\n  File "<string>"\nRuntimeError: <b>'
    study = replace(built[0].studies[1], failures=(Failure("1", "Adam", "failed", error),), figures=())
    text = pages.render_html(replace(built[0], studies=(study,), facts=()), tmp_path, {})
    assert f"<pre>{markupsafe.escape(error)}</pre>" in text


@pytest.mark.parametrize("word", [SUPPORTED, REFUTED, UNDECIDED, NOT_TESTABLE])
def test_every_verdict_has_a_badge_with_a_sign(word, tmp_path):
    study = summary.StudyReport("mnist", "", "", "demo", (Verdict("", "", word, "paper l. 1"),) * 2, (), {}, (), ())
    text = pages.render_html(summary.Report(("demo",), (study,)), tmp_path, {})
    assert re.search(rf'<span class="badge \w+">[✓✗?–]&nbsp;2 {word}</span>', text)
    assert len(re.findall(rf'<span class="badge \w+">[✓✗?–]&nbsp;{word}</span>', text)) == 2


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install the package chromium")
def test_in_a_browser(built, tmp_path):
    made, path = built
    hook = "<script>var errors = []; onerror = m => { errors.push(m) };</script>"
    inner = path.read_text().replace("<head>", f"<head>{hook}")
    outer = tmp_path / "outer.html"
    # In a template a script does not run, and its text comes back as it was.
    outer.write_text(
        "<!doctype html><meta charset=utf-8><body><pre></pre><iframe width=375 height=800></iframe>"
        f"<template>{inner}</template><script>{PROBE}</script>"
    )
    seen = json.loads(html.unescape(re.search("<pre>(.*?)</pre>", browse(outer, tmp_path), re.S).group(1)))
    assert seen["errors"] == []
    assert seen["hacked"] is None
    numbers = [float(value) for value in seen["up"]]
    assert len(numbers) == 7
    assert numbers == sorted(map(float, seen["before"]))
    assert [float(value) for value in seen["down"]] == numbers[::-1]
    assert seen["names"] == sorted(seen["names"], key=str.lower)
    assert seen["sorted"] == "ascending"
    missing = [value.startswith("–") for value in seen["reached"]]
    assert any(missing)
    assert missing == sorted(missing), "who never reached the level comes last"
    assert len(seen["images"]) == sum(len(study.figures) for study in made.studies) + len(made.facts)
    assert all(complete and natural > 300 and shown > 250 for complete, natural, shown in seen["images"])
    assert seen["wide"] <= seen["screen"], "the page scrolls sideways on a phone"
    assert len(seen["headings"]) == len(made.studies)
    assert any(HOSTILE in heading for heading in seen["headings"])
    folded = 2 + len(made.studies)
    assert seen["folded"] == [folded, 0, folded], "what is folded up is not printed"


def browse(path, folder) -> str:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
               "--dump-dom", path.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800).stdout


@pytest.fixture
def ledger(tiny, done, tmp_path):
    ledger = Ledger(tmp_path / "results")
    ledgers.add_runs([tiny], "demo", Store(done / "runs"), ledger)
    return ledger


def build_from(ledger, scales=SCALES[::-1]):
    studies = [study for study in STUDIES.values() if study.name not in ledgers.NOT_IN_LEDGERS]
    runs = StoredRuns(None, ledger.entries(), ledger.suggestions())
    return summary.build(studies, scales, runs, authors=read_authors(ledger.root), only_ended=True)


@pytest.mark.slow
def test_markdown_has_a_page_and_an_appendix(tiny, ledger, tmp_path):
    path = tmp_path / "docs" / "results.md"
    assert pages.write_markdown(build_from(ledger), list(ledger.entries().values()), "results", path) == 3
    page, appendix = path.read_text(), (tmp_path / "docs" / "results-appendix.md").read_text()
    assert "Computed from the 21 runs in `results/` (21 finished" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| scikit-learn's digits, perceptron (demo) |")]
    for cell in row.split(" | ")[4:]:
        low, high, word = re.search(r"\[(.*), (.*)\] (\w+)", cell.replace("−", "-")).groups()
        expected = SUPPORTED if float(low) > 0 else REFUTED if float(high) < 0 else UNDECIDED
        assert word == expected, "the interval and the word agree"
    assert "Figure 3" not in appendix, "there are no runs of it"
    figures = re.findall(r"\]\((figures/\S+)\)", page + appendix)
    assert sorted(figures) == sorted(f"figures/{each.name}" for each in (path.parent / "figures").iterdir())
    assert len(figures) == 3


def test_what_a_ledger_says_cannot_become_markup(tiny, ledger):
    entries = list(ledger.entries().values())
    for entry in entries:
        entry.environment[0]["cpu"] = "<script>|x|</script>\n# [a](b)"
    text = "".join(pages.render_markdown(summary.Report((), ()), entries, "results", "results"))
    assert "<script>" not in text
    assert r"&lt;script&gt;\|x\|&lt;/script&gt; # \[a\](b)" in text


def test_the_authors_curves_are_those_of_their_file():
    """The committed figures: twelve runs of 200 epochs."""
    found = read_authors(ROOT / "results")
    assert {label: len(test) for label, _, test in found.panels["ResNet-34"]} == dict.fromkeys(
        ("SGDM", "AdaGrad", "Adam", "AMSGrad", "AdaBound", "AMSBound"), 200
    )
    assert "ResNet-34, AdaBound 94.86 (lr 0.001, betas 0.9 and 0.999, final_lr 0.1, gamma 0.001);" in found.note
    assert "ResNet-34, SGDM 92.64 (lr 0.1, momentum 0.9)." in found.note
    assert read_authors(ROOT) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"origin": "", "curves": {"a/adam": {"settings": "", "train": ["x"], "test": [1]}}}',
     '{"origin": "", "curves": {"a/adam": {"settings": 1, "train": [1], "test": [1]}}}'],
)  # fmt: skip
def test_damaged_curves_of_the_authors_are_named(text, tmp_path):
    (tmp_path / "authors-cifar10.json").write_text(text)
    with pytest.raises(LabError, match=r"authors-cifar10.json: is damaged .*restore the file"):
        read_authors(tmp_path)


@pytest.mark.slow
def test_the_pages_agree_with_the_committed_ledger():
    """To repair: dynabound report --results results --markdown docs/results.md."""
    ledger = Ledger(ROOT / "results")
    report = build_from(ledger)
    texts = pages.render_markdown(report, list(ledger.entries().values()), "results", "results")
    for name, text in zip(("results.md", "results-appendix.md"), texts, strict=True):
        assert (ROOT / "docs" / name).read_text() == text
        for figure in re.findall(r"\]\((figures/\S+)\)", text):
            assert (ROOT / "docs" / figure).exists()
        assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []
    assert len(report.networks) <= 12
    panels = {study.scale: study.figures[0].panels for study in report.studies if study.name == "cifar10"}
    theirs = {scale: [panel.name for panel in found if "the authors'" in panel.name] for scale, found in panels.items()}
    assert theirs == {"laptop": ["DenseNet-121, the authors'", "ResNet-34, the authors'"], "demo": []}, "other data"
