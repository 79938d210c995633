"""``dynabound doctor``, also where nothing but Python is installed."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from dynabound import __version__, doctor
from dynabound._extras import pip_command
from dynabound.cli import app
from dynabound.optim import KernelStatus, kernel_status


def test_it_shows_versions_kernel_devices_and_extras():
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert (found["dynabound"], found["torch"]) == (__version__, torch.__version__)
    assert found["kernel"]["available"] is kernel_status().available
    assert found["backends"][-2:] == ["foreach", "loop"]
    assert "cpu" in found["devices"]
    assert found["extras"]["lab"]["pooch"]
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert f"torch       {torch.__version__}" in shown
    assert shown.count("\ntorch ") == 1
    assert "matplotlib" in shown


def test_it_says_why_there_is_no_kernel(monkeypatch):
    status = KernelStatus(False, "it was not built; install a compiler", None, 2, False, "triton is not installed")
    monkeypatch.setattr("dynabound.optim.kernel_status", lambda: status)
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert "kernel      missing: it was not built; install a compiler" in shown
    assert "gpu kernel  not used: triton is not installed" in shown
    assert "backends    foreach, loop" in shown


def test_it_names_the_command_for_a_missing_extra(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "ray" else "1.0")
    assert f"missing ray: {pip_command('ray')}" in CliRunner().invoke(app, ["doctor"]).stdout


@pytest.mark.processes
@pytest.mark.parametrize("missing", [["typer", "rich"], ["typer", "rich", "torch"]])
def test_it_needs_no_extra(missing):
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing})); sys.argv[1:] = ['doctor', '--json']; "
    code = hide + "from dynabound.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["torch"] is None) == ("torch" in missing)
