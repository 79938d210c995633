"""The page, as a browser sees it."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from xml.etree import ElementTree

import markupsafe
import pytest

from dynabound.lab.report import html as page
from dynabound.lab.report import summary
from dynabound.lab.report.verdicts import NOT_COMPARABLE, NOT_REPRODUCED, REPRODUCED, UNDECIDED, Check, overall
from dynabound.lab.store import Store
from dynabound.lab.studies import recipes
from dynabound.lab.studies.recipes import Study
from helpers import tiny_studies as cases

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
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
        monkeypatch.setitem(recipes.WORKLOADS["demo"], "resnet34", cases.TINY)
        monkeypatch.setitem(recipes.WORKLOADS["demo"], "densenet121", {**cases.TINY, "hidden": 5})
        store = Store(out / "runs")
        cases.complete([study], store, cases.InProcess())
        failed = bad.rows[2].spec("demo")
        with store.run(failed).lock():
            store.run(failed).begin(failed, {})
            store.run(failed).write_status("failed", error=HOSTILE)
        made = summary.build([study, bad], "demo", out)
        return made, page.write(made, out)


@pytest.mark.slow
def test_failures_are_shown_and_escaped(built):
    made, path = built
    text = path.read_text()
    assert [f.error for f in made.studies[1].failures if f.state == "failed"] == [HOSTILE]
    assert HOSTILE not in text
    assert str(markupsafe.escape(HOSTILE)) in text
    assert text.count("<script>") == 1
    assert made.studies[1].verdict == "not decided at this scale"


@pytest.mark.slow
def test_the_page_needs_nothing_but_itself(built):
    text = built[1].read_text()
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", text) == []
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.slow
def test_a_narrow_screen_shows_the_verdicts_and_that_figures_scroll(built):
    text = built[1].read_text()
    column = '<th scope="col"><button type="button">{}</button></th>'
    assert column.format("claim") + column.format("verdict") in text
    assert ".scroll, section figure { overflow-x: auto;" in text


@pytest.mark.slow
def test_the_figures_show_every_curve(built):
    """The SVG has a line of the right number of points for each method in each panel."""
    svg = built[1].parent / "figures" / "mnist.svg"
    paths = [p.get("d", "") for p in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}path")]
    lines = [d for d in paths if len(re.findall("[ML]", d)) == cases.TINY["epochs"] and "z" not in d]
    assert len(lines) >= 2 * 6


@pytest.mark.slow
def test_a_traceback_keeps_its_lines_and_is_escaped(built):
    error = 'Traceback:\n  File "<string>"\nRuntimeError: <b>'
    study = replace(built[0].studies[1], failures=(summary.Failure("1", "Adam", "failed", error),), figures=())
    assert f"<pre>{markupsafe.escape(error)}</pre>" in page.render(
        replace(built[0], studies=(study,), questions=()), {}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "verdict",
    [
        "reproduced",
        "not reproduced",
        "not comparable at this scale",
        "partly reproduced",
        "holds",
        "Theorems 1 to 3 hold",
    ],
)
def test_all_verdicts_have_a_badge(built, verdict):
    study = replace(built[0].studies[1], verdict=verdict, checks=(), figures=())
    text = page.render(replace(built[0], studies=(study,), questions=()), {})
    assert re.search(rf'<span class="badge (yes|no|none|mixed)">[✓✗–◐]&nbsp;{verdict}</span>', text)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([REPRODUCED, *[UNDECIDED] * 8, NOT_COMPARABLE], ("1 of 9 decided, reproduced", "open")),
        ([REPRODUCED, UNDECIDED], ("1 of 2 decided, reproduced", "yes")),
        ([NOT_REPRODUCED, UNDECIDED, UNDECIDED], ("1 of 3 decided, not reproduced", "open")),
        ([REPRODUCED, NOT_REPRODUCED, UNDECIDED], ("2 of 3 decided, partly reproduced", "mixed")),
        ([REPRODUCED, NOT_COMPARABLE], ("reproduced", "yes")),
        ([UNDECIDED], ("not decided at this scale", "open")),
    ],
)
def test_the_badge_of_a_study_says_how_many_claims_are_decided(verdicts, expected):
    checks = tuple(Check("", "", verdict, "paper l. 1") for verdict in verdicts)
    study = summary.StudyReport("mnist", "", "", overall(checks), checks, (), {}, (), ())
    assert page.headline(study) == expected
    ours = tuple(replace(check, source="ours") for check in checks[:2])
    if verdicts[:2] == [REPRODUCED, UNDECIDED]:
        study = replace(study, verdict="holds where decided", checks=ours, ours=True)
        assert page.headline(study) == ("1 of 2 decided, holds", "yes")


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
    assert len(seen["images"]) == sum(len(study.figures) for study in made.studies) + len(made.questions)
    assert all(complete and natural > 300 and shown > 250 for complete, natural, shown in seen["images"])
    assert seen["wide"] <= seen["screen"], "the page scrolls sideways on a phone"
    assert len(seen["headings"]) == len(made.studies)
    assert any(HOSTILE in heading for heading in seen["headings"])
    folded = 3 + len(made.studies)
    assert seen["folded"] == [folded, 0, folded], "what is folded up is not printed"


def browse(path, folder) -> str:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
               "--dump-dom", path.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800).stdout
