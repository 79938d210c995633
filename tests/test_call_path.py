"""The command that lists the functions a command enters, and the architecture page."""

import importlib.util
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound.cli import app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def call_path():
    spec = importlib.util.spec_from_file_location("call_path", ROOT / "benchmarks" / "call_path.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_enters_the_files_that_the_page_names(call_path, tmp_path):
    page = (ROOT / "docs" / "architecture.md").read_text()
    (paragraph,) = re.findall(r"\*\*One run\.\*\*(.*?)\n\n", page, re.S)
    named = re.findall(r"`([\w/]+\.py)`", paragraph)
    assert len(named) > 8
    command = ["train", "digits", "--hidden=4", "--epochs=1", "--examples=64", f"--out={tmp_path}"]
    found = call_path.entered(lambda: CliRunner().invoke(app, command))
    assert [name for name in named if not any(file.endswith(name) for file in found)] == []
    assert {"Training.train_epoch", "Training._step"} <= set(found["lab/training/loop.py"])


def test_what_is_not_called_is_not_entered(call_path):
    found = call_path.entered(lambda: CliRunner().invoke(app, ["bounds", "--json"]))
    assert "bounds.py" in found
    assert "cli/runs.py" not in found
    assert not any("<" in name.replace("<locals>", "") for names in found.values() for name in names)
