"""Random command lines end well or are refused: no traceback, nothing written on refusal, nothing hangs."""

import shutil
from collections import Counter

import pytest
from typer.testing import CliRunner

from dynabound import _drawing
from dynabound.cli import app
from helpers.clean import assert_clean
from helpers.command_lines import command_line
from helpers.time_limit import time_limit
from helpers.tiny_studies import SVG_ALONE


def files(folder):
    """Their contents by name; None for a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def check(seed, folder):
    words = command_line(seed)
    before = files(folder)
    with time_limit(f"dynabound {words}"):
        result = CliRunner().invoke(app, words)
    message = f"{seed}: dynabound {words}\n{result.output}"
    assert_clean(result, message)
    assert result.exit_code in (0, 1, 2), message
    if result.exit_code:
        assert files(folder) == before, f"written on refusal: {message}"
    for path in folder.iterdir():
        if str(path) not in before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "refused" if result.exit_code else "executed"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_drawing, "FILE_KINDS", SVG_ALONE)  # half of the time would be spent on drawing
    (tmp_path / "file").write_text("")
    return tmp_path


def test_some_command_lines(folder):
    for seed in range(25):
        check(seed, folder)


@pytest.fixture(scope="module")
def outcomes():
    """The outcomes of the command lines; ``pytest -s`` shows them."""
    counts = Counter()
    yield counts
    if counts:
        print(f"\n{counts.total()} command lines: {', '.join(f'{n} {what}' for what, n in counts.items())}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_command_lines(part, folder, outcomes):
    outcomes.update(check(seed, folder) for seed in range(1000 + 50 * part, 1050 + 50 * part))
