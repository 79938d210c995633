"""Figures: drawn once, drawn again when their data changes, and true to it."""

from dataclasses import replace

import pytest

from dynabound.lab.report.figures import Band, CurvesFigure, Dot, DotsFigure, Panel
from dynabound.theory.verdict import REFUTED, UNDECIDED, Verdict


@pytest.fixture
def curves():
    bands = (
        Band("SGDM", False, test=[[80.0, 90.0], [81.0, 92.0]]),
        Band("Adam, α = 0.001", False, test=[[70.0, 95.0]]),
    )
    return CurvesFigure("name", "Title", (Panel("panel", bands),), ("test",), "accuracy (%)", False)


def test_figures_are_drawn_once_and_again_when_the_data_changes(curves, tmp_path):
    paths = curves.save(tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf"]
    stamps = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in curves.save(tmp_path)] == stamps
    before = [path.read_bytes() for path in paths]
    paths[0].unlink()
    curves.save(tmp_path)
    assert [path.read_bytes() for path in paths] == before, "the same data makes another file"
    assert curves.svg(tmp_path) == before[1]
    (panel,) = curves.panels
    other = replace(panel, curves=(replace(panel.curves[0], test=[[80.0, 91.0], [81.0, 92.0]]), panel.curves[1]))
    replace(curves, panels=(other,)).save(tmp_path)
    assert paths[1].read_bytes() != before[1]


def test_a_curve_is_the_mean_over_seeds_and_a_reference_is_dotted(curves):
    (axes,) = curves.draw().axes
    mean, reference = axes.get_lines()
    assert list(mean.get_ydata()) == [80.5, 91.0]
    assert mean.get_linestyle() == "-"
    assert list(reference.get_ydata()) == [70.0, 95.0]
    assert reference.get_linestyle() == ":"


def test_a_dot_is_filled_if_the_claim_is_decided_and_shows_both_intervals_and_the_limit():
    open_, decided = (Verdict("c", "", word, difference=1.0, low=-2.0, high=4.0, test_error=2.0, bounds=(-2.0, None))
                      for word in (UNDECIDED, REFUTED))  # fmt: skip
    dot = Dot.of(open_)
    assert dot.outer == (1.0 - 5.0, 1.0 + 5.0), "3 and 2 · 2 add as 5"
    assert (dot.decided, Dot.of(decided).decided) == (False, True)
    (axes,) = DotsFigure("name", "", (dot, Dot.of(decided, "other row")), "x").draw().axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["c", "other row"]
    drawn = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert [[-4.0, 0.0], [6.0, 0.0]] in drawn
    assert [[-2.0, 0.0], [4.0, 0.0]] in drawn
    assert [[-2.0, -0.3], [-2.0, 0.3]] in drawn
