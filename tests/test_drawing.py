import os

import pytest
from matplotlib.figure import Figure

from dynabound import _drawing
from helpers.time_limit import time_limit


@pytest.mark.parametrize("record", ["[]", "3", "null", "{}", "{", '"digest"', "[" * 100_000], ids=lambda text: text[:9])
def test_a_figure_with_a_damaged_record_is_drawn_again(record, tmp_path):
    (tmp_path / "name.json").write_text(record)
    drawn = _drawing.save("name", {"x": 1}, tmp_path, lambda: Figure((1, 1)))
    assert [path.name for path in drawn] == ["name.png", "name.svg", "name.pdf"]
    assert all(path.is_file() for path in drawn)

    def again():
        raise AssertionError("the record says that nothing has changed")

    assert _drawing.save("name", {"x": 1}, tmp_path, again) == drawn


@pytest.mark.parametrize("kind", _drawing.FILE_KINDS)
@pytest.mark.parametrize("how", ["changed", "linked", "lost"])
def test_a_damaged_figure_is_drawn_again(kind, how, tmp_path):
    drawn = _drawing.save("name", {"x": 1}, tmp_path / "figures", lambda: Figure((1, 1)))
    before = [path.read_bytes() for path in drawn]
    path = tmp_path / "figures" / f"name.{kind}"
    other = path.rename(tmp_path / "other")
    if how == "changed":
        path.write_bytes(b"<svg>other</svg>")
    elif how == "linked":
        path.symlink_to(other)
    _drawing.save("name", {"x": 1}, tmp_path / "figures", lambda: Figure((1, 1)))
    assert [path.read_bytes() for path in drawn] == before
    assert not path.is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs")
def test_a_fifo_in_place_of_the_record_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "name.json")
    with time_limit("save"):
        _drawing.save("name", {"x": 1}, tmp_path, lambda: Figure((1, 1)))
    assert (tmp_path / "name.json").is_file()
