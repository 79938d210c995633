"""Output in encodings that lack our characters."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from dynabound.cli import app, output
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bounds", "--certificate"], "the step size alpha/sqrt t"),
        (["theory", "--help"], "Initial step size alpha."),
        (["train", "digits", "--optimizer=αdam"], "optimizer='alphadam': must be"),
    ],
)
def test_other_encodings_get_ascii(encoding, arguments, expected, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))
    output.fall_back_to_ascii()
    with pytest.raises(SystemExit):
        app(arguments)
    shown = b"".join(stream.buffer.getvalue() for stream in (sys.stdout, sys.stderr)).decode(encoding)
    assert expected in shown
    assert "Traceback" not in shown


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_full_disk_is_one_line_before_there_is_a_command(option):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dynabound", option]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    line = "dynabound: No space left on device; make room, or write to another disk\n"
    assert (result.returncode, result.stderr) == (1, line)


@pytest.mark.processes
def test_a_closed_output_is_the_null_device(tmp_path):
    spec = RunSpec("digits")
    run = Store(tmp_path / "runs").run(spec)
    with run.lock():
        run.begin(spec, {})
    command = ["sh", "-c", '"$0" -m dynabound runs >&- <&-', sys.executable]
    result = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
