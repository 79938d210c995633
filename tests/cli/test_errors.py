"""What a command does when it fails."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound import _files
from dynabound._extras import pip_command
from dynabound.cli import app, bench, output, runs
from dynabound.cli.options import check_folder
from dynabound.cli.output import CommandError, printable
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def fail_with(monkeypatch, error):
    def measure(*_, **__):
        raise error

    monkeypatch.setattr(bench, "_measure_all", measure)
    return run("bench")


def test_an_unforeseen_error_is_one_line_that_names_the_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
    result = fail_with(monkeypatch, RuntimeError("first line\nsecond line"))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("dynabound: internal error: RuntimeError: first line; the traceback is in ")
    (report,) = tmp_path.iterdir()
    assert str(report) in line
    assert "please attach it to a report" in line
    assert "in measure\n    raise error" in report.read_text()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CommandError("--x: is wrong"), "--x: is wrong"),
        (
            PermissionError(13, "Permission denied", "/x/y"),
            "/x/y: Permission denied; change its permissions, or give another folder",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/x/y"), "/x/y: File name too long; give a shorter name"),
        (OSError(28, "No space left", "/x/y"), "/x/y: No space left; make room, or write to another disk"),
        (OSError("odd"), "odd; give another folder, or make it writable"),
        (MemoryError(), "not enough memory; use a smaller model, batch or number of steps"),
        (ModuleNotFoundError("No module named 'abc'", name="abc"), f"abc is not installed: {pip_command('lab')}"),
        (CommandError("\x1b[2Jname"), r"\x1b[2Jname"),
    ],
    ids=["command", "file", "long", "disk", "odd", "memory", "module", "escape"],
)
def test_foreseen_errors_are_one_line(monkeypatch, error, line):
    result = fail_with(monkeypatch, error)
    assert (result.exit_code, result.stderr) == (1, f"dynabound: {line}\n")


def test_ctrl_c_is_one_line(monkeypatch):
    result = fail_with(monkeypatch, KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "dynabound: interrupted\n")


def in_a_process(folder, code, *arguments):
    """Run a command in a process of its own, after ``code``. Only with ``-m`` Python's exit code is that of users."""
    # A shell starts background jobs with SIGINT ignored, and their children inherit that.
    (folder / "start.py").write_text(f"""import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{code}
sys.argv[1:] = {list(arguments)}
from dynabound.__main__ import main
main()""")
    return subprocess.run([sys.executable, "-m", "start"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_a_signal_is_one_line(number, code, word, tmp_path):
    hook = f"""from dynabound.lens import forecast
forecast.forecast = lambda *_: os.kill(os.getpid(), {number})"""
    result = in_a_process(tmp_path, hook, "bounds")
    assert (result.returncode, result.stderr, result.stdout) == (code, f"dynabound: {word}\n", "")


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_a_signal_stops_a_run_which_says_how_to_resume(number, code, tmp_path):
    hook = f"""from dynabound.cli import progress
line, first = progress.epoch_line, iter([True])
def epoch_line(*arguments):
    if next(first, False): os.kill(os.getpid(), {number})
    return line(*arguments)
progress.epoch_line = epoch_line"""
    result = in_a_process(tmp_path, hook, "train", "digits", "--hidden=8", "--epochs=3")
    name = RunSpec("digits", hidden=8, epochs=3).name
    assert result.returncode == code, result.stderr
    assert f"resume with: dynabound train --resume {name} --out runs" in result.stdout
    assert Store(tmp_path / "runs").find(name).status()["state"] == "stopped"


@pytest.mark.parametrize(("world_size", "restored"), [(None, True), ("", True), ("2", False)])
def test_the_second_signal_is_pythons_unless_torchrun_sends_it(world_size, restored, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    before = signal.getsignal(signal.SIGTERM)
    with runs._stop_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert (signal.getsignal(signal.SIGTERM) is before) == restored


def test_printable_shows_control_characters():
    assert printable("a\x1b]0;title\x07b\nc\tα\x85") == "a\\x1b]0;title\\x07b\\nc\tα\\x85"
    assert printable("a\n\x1bb", lines=True) == "a\n\\x1bb"


def test_a_newline_or_a_long_value_makes_no_second_line(monkeypatch, tmp_path):
    line = fail_with(monkeypatch, CommandError(f"forged\ndynabound: {'x' * 3000}; remedy")).stderr
    assert line.startswith("dynabound: forged\\ndynabound: xxx")
    assert line.endswith("xxx; remedy\n")
    assert len(line) < 1100
    result = run("runs", f"--out={tmp_path}/a\nb")
    assert (result.exit_code, result.stdout) == (0, f"no matching runs in {tmp_path}/a\\nb\n")
    (tmp_path / "c\nd").mkdir()
    (tmp_path / "c\nd" / "spec.json").write_text("{}")
    listed = run("runs", f"--out={tmp_path}")
    assert "c\\nd" in listed.stdout
    assert (tmp_path / "file\n").write_text("") == 0
    (line,) = run("bounds", f"--out={tmp_path}/file\n/x").stderr.splitlines()
    assert "file\\n/x: cannot be written" in line


def test_folders_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    check_folder(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()
    with pytest.raises(CommandError, match=r"file/x: cannot be written \(.*file is not a folder\); give another --out"):
        check_folder(tmp_path / "file" / "x")
    with pytest.raises(CommandError, match="File name too long"):
        check_folder(tmp_path / ("x" * 300))
    monkeypatch.setattr(Path, "exists", os.path.exists)  # as from Python 3.14 on: it hides errors
    with pytest.raises(CommandError, match="File name too long"):
        check_folder(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CommandError, match=f"no permission in {re.escape(str(tmp_path))}"):
        check_folder(tmp_path / "new")


@pytest.mark.parametrize("command", [["bounds"], ["bench", "small", "--repetitions=1"], ["theory", "counterexample"]])
def test_an_unwritable_folder_is_refused_before_anything_is_computed(command, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_measure_all", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x", Path("/") / ("x" * 300)):
        result = run(*command, f"--out={out}")
        (line,) = result.stderr.splitlines()
        assert result.exit_code == 1
        assert line.startswith(f"dynabound: {out}: cannot be written (")


@pytest.mark.parametrize("option", ["--workers=4", "--tflops=3"])
def test_options_of_plan_need_plan(option, tmp_path):
    result = run("reproduce", "mnist", option, f"--out={tmp_path / 'out'}")
    assert result.exit_code == 1
    assert f"dynabound: {option.partition('=')[0]}: is for --plan" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("reproduce mnist --plan --reuse=x", "--reuse: has no effect with --plan; leave one of them out"),
        ("reproduce mnist --dry-run --add-to=x", "--add-to: has no effect with --dry-run; leave one of them out"),
        ("reproduce mnist --dry-run --plan", "--dry-run: has no effect with --plan; leave one of them out"),
        ("reproduce mnist --plan --device=nope", "--device nope: is not a device; try cpu or cuda"),
        (
            "report --markdown=x --add-to=z",
            "--add-to: has no effect with --markdown; leave one of them out",
        ),
    ],
)
def test_options_that_would_be_ignored_are_refused(command, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*command.split())
    assert (result.exit_code, result.stderr) == (1, f"dynabound: {line}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["bounds"], ["theory", "counterexample", "--T=50"]])
def test_a_full_disk_is_one_line_that_names_the_file(command, tmp_path, monkeypatch):
    rename = os.replace

    def no_room(source, target, **options):
        if str(target).startswith(str(tmp_path)):  # not the folder of numba's compiled functions
            raise OSError(28, "No space left on device")
        rename(source, target, **options)

    monkeypatch.setattr(_files.os, "replace", no_room)
    result = run(*command, f"--out={tmp_path}")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1
    assert line.startswith(f"dynabound: {tmp_path}/")
    assert line.endswith(": No space left on device; make room, or write to another disk")
    assert not list(tmp_path.iterdir())
