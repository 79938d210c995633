"""The results as Markdown: computed from a ledger, and safe to show."""

from pathlib import Path

import pytest

from dynabound import _drawing
from dynabound.lab import ledger as ledgers
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Ledger
from dynabound.lab.report import authors, markdown
from dynabound.lab.report.figures import Band, CurvesFigure, Panel
from dynabound.lab.report.summary import StudyReport
from dynabound.lab.store import Store
from dynabound.lab.studies.recipes import STUDIES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ledger(tiny, done, tmp_path):
    ledger = Ledger(tmp_path / "results")
    ledgers.add_runs([tiny], "demo", Store(done / "runs"), ledger)
    return ledger


@pytest.mark.slow
def test_it_says_where_adabound_is_better_and_where_not(tiny, ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(_drawing, "FILE_KINDS", {"png": {}})
    path = tmp_path / "docs" / "results.md"
    assert markdown.write(list(STUDIES.values()), ledger, path) == 2
    text = path.read_text()
    assert "Computed from the 21 runs in `results/` (21 finished" in text
    assert "## Where AdaBound is better, and where it is not" in text
    start = "| scikit-learn's digits, perceptron (demo) | AdaBound |"
    rows = [line for line in text.splitlines() if line.startswith(start)]
    assert [row.split(" | ")[2] for row in rows] == ["Adam", "Adam, α = 0.001", "SGDM"]
    for row in rows:
        low, high = (float(part.replace("−", "-")) for part in row.split(" | ")[4].split(" to "))
        expected = "better" if low > 0 else "worse" if high < 0 else "not decided"
        assert row.split(" | ")[5] == expected, "the interval and the word agree"
        assert f"{expected} on 1 of 1 (scikit-learn's digits, perceptron (demo)" in text
    assert "Figure 3" not in text, "there are no runs of it"
    assert "with γ scaled to the length of an epoch" in text
    assert "there the correction is over the claims of one study" in text
    for figure in ("results-demo-mnist.png", "results-demo-mnist-claims.png"):
        assert f"(figures/{figure})" in text
        assert (path.parent / "figures" / figure).stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_ledger_makes_the_same_text(tiny, ledger):
    texts = {markdown.build(list(STUDIES.values()), ledger)[0] for _ in range(2)}
    assert len(texts) == 1


def test_what_a_ledger_says_cannot_become_markup(tiny, ledger):
    (path,) = ledger.root.glob("*.jsonl")
    entries = list(ledger.entries().values())
    for entry in entries:
        entry.environment[0]["cpu"] = "<script>|x|</script>\n# [a](b)"
    path.unlink()
    ledger.add(entries)
    text, _ = markdown.build([], ledger)
    assert "<script>" not in text
    assert r"&lt;script&gt;\|x\|&lt;/script&gt; # \[a\](b)" in text


def figure(panel):
    bands = (Band("AdaBound", False, [[10.0, 20.0]], [[9.0, 19.0]]),)
    return CurvesFigure("cifar10", "ours", (Panel(panel, bands),), ("train", "test"), "accuracy (%)", True)


def test_the_authors_curves_are_shown_beside_ours():
    """The committed figures: twelve runs of 200 epochs."""
    found = authors.combine([figure("ResNet-34")], ROOT / "results")
    _, theirs = found.figure.panels
    assert theirs.name == "ResNet-34, the authors'"
    assert {band.label: len(band.test[0]) for band in theirs.curves} == dict.fromkeys(
        ("SGDM", "AdaGrad", "Adam", "AMSGrad", "AdaBound", "AMSBound"), 200
    )
    assert "compare only the order of the methods" in found.note
    assert "ResNet-34, AdaBound 94.86 (lr 0.001, betas 0.9 and 0.999, final_lr 0.1, gamma 0.001);" in found.note
    assert "ResNet-34, SGDM 92.64 (lr 0.1, momentum 0.9)." in found.note
    assert found.figure.draw().axes
    assert authors.combine([figure("ResNet-34")], ROOT) is None


def test_damaged_curves_of_the_authors_are_named(tmp_path):
    for text in (
        "{",
        "[]",
        '{"origin": 1, "curves": {}}',
        '{"origin": "", "curves": {"a": {"settings": "", "train": ["x"], "test": []}}}',
        '{"origin": "", "curves": {"a": {"settings": 1, "train": [], "test": []}}}',
    ):
        (tmp_path / authors.FILE).write_text(text)
        with pytest.raises(LabError, match=r"authors-cifar10.json: is damaged .*restore the file"):
            authors.combine([figure("ResNet-34")], tmp_path)


@pytest.mark.parametrize(("scale", "shown"), [("demo", 1), ("laptop", 2)])
def test_the_authors_panels_are_beside_runs_of_their_data_and_noted_once(scale, shown):
    """The demo's images are digits."""
    study = StudyReport("cifar10", "", "", "reproduced", (), (), {}, (), (), (figure("ResNet-34"),))
    notes = set()
    texts = []
    for _ in range(2):
        text, (drawn,) = markdown._section(study, scale, Ledger(ROOT / "results"), notes)
        assert len(drawn.panels) == shown
        texts.append(text)
    assert "".join(texts).count("the authors' own curves") == shown - 1


def test_a_copy_of_a_data_set_is_named(tiny, ledger):
    assert "JPEG" not in "".join(markdown._introduction(ledger))
    assert "whose images are JPEG files" in "".join(markdown._introduction(Ledger(ROOT / "results")))


@pytest.mark.slow
def test_the_page_agrees_with_the_committed_ledger():
    """To repair: dynabound report --results results --markdown docs/results.md."""
    text, figures = markdown.build(list(STUDIES.values()), Ledger(ROOT / "results"))
    assert (ROOT / "docs" / "results.md").read_text() == text
    for each in figures:
        assert (ROOT / "docs" / "figures" / f"{each.name}.png").exists()
