"""The command line, as a user and as a script sees it."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import dynabound
from dynabound.cli import app


def run(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def threads():
    """Leave torch's number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_version_and_help():
    assert run("--version").output.strip() == dynabound.__version__
    assert "bench" in run("--help").output
    assert "fused Adam" in run("bench", "--help").output


def test_bench_reports_ratios(tmp_path, threads):
    result = run("bench", "small", "--repetitions", "1", "--threads", "1", "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert json.loads((tmp_path / "bench.json").read_text()) == report
    (work,) = report["works"]
    times = work["milliseconds"]
    assert (work["tensors"], work["elements"]) == (500, 500 * 64 * 64)
    assert work["against_fused_adam"] == times["dynabound AdaBound"] / times["torch Adam fused"]
    assert set(work["times_faster_than"]) == {"adabound", "torch_optimizer", "pytorch_optimizer"}
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_bench_refuses_unknown_work():
    result = run("bench", "huge")
    assert result.exit_code == 2
    assert "resnet34, small, large" in result.output.replace("\n", " ")


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_extra_names_the_pip_command(module):
    code = f"import sys; sys.modules['{module}'] = None; from dynabound.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'dynabound[lab]'" in result.stderr
    assert "Traceback" not in result.stderr
