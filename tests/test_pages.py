"""README and the pages of docs: their code runs, their lines fit a screen, their numbers are those of the results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md"]
WIDTH = 120


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_the_first_lines_of_code_run_as_they_stand():
    code = blocks(README, "python")[0]
    assert len([line for line in code.splitlines() if line]) == 6
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_front_page_has_its_parts_in_order():
    parts = ["starts as Adam and ends as SGD", "pip install", "make demo", "make test", "import torch", "![", "\n- **",
             "| use it when | do not use it when |", "## Does it work?"]  # fmt: skip
    places = [README.index(part) for part in parts]
    assert places == sorted(places)


def test_the_table_of_the_front_page_is_a_part_of_the_results():
    table = README.partition("## Does it work?")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 3
    assert [row for row in rows if row not in results] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_a_screen(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > WIDTH and not re.match(r"\s*(\||!?\[.*\]\(.*\)$)", line)]
    assert long == []
