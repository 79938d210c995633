import pytest
from matplotlib.figure import Figure

from dynabound import _drawing


@pytest.mark.parametrize("record", ["[]", "{}", "{", '"digest"'])
def test_a_figure_is_drawn_again_only_if_its_record_is_damaged_or_a_file_is_lost(record, tmp_path):
    calls = []

    def save():
        return _drawing.save("name", {"x": 1}, tmp_path, lambda: calls.append(1) or Figure((1, 1)))

    (tmp_path / "name.json").write_text(record)
    drawn = save()
    assert [path.name for path in drawn] == ["name.png", "name.svg", "name.pdf"]
    assert save() == drawn
    assert len(calls) == 1
    drawn[1].unlink()
    assert save() == drawn
    assert len(calls) == 2
    assert all(path.is_file() for path in drawn)
