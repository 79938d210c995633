"""How every command fails: one line on standard error and an exit code, no traceback."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from dynabound import _extras, _interrupt

__all__ = [
    "CommandError",
    "check_folder",
    "exists",
    "log_to_stderr",
    "one_line",
    "printable",
    "short",
    "stop_signals",
]


_LONGEST = 1000


class CommandError(Exception):
    """A mistake in the command line, found before anything is run: one line, with the remedy."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def printable(text: object, lines: bool = False) -> str:
    r"""``text`` with control characters (terminal escapes, and newlines unless ``lines``) made visible.

    >>> printable("\x1b[2Jna\nme")
    '\\x1b[2Jna\\nme'
    """
    kept = "\n\t" if lines else "\t"
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in str(text))


def short(text: object) -> str:
    """``text`` on one line, without its middle if it is very long: a stored value may have any length."""
    line = printable(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


@contextlib.contextmanager
def one_line(resumable: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn an exception of a command into one line and an exit code: 130 for Ctrl-C, 143 for SIGTERM, otherwise 1.

    An unexpected error is a defect: its traceback is written to a file, which the line names.
    """
    try:
        yield
    except typer.Abort:
        raise
    except (KeyboardInterrupt, Exception) as error:
        # After a signal that was swallowed in the middle of an import, any error may follow.
        if isinstance(error, KeyboardInterrupt) or _interrupt.received:
            exec("")  # CPython notes a KeyboardInterrupt that leaves an exec, and would end by SIGINT; this resets it
            what, code = ("terminated", 143) if signal.SIGTERM in _interrupt.received else ("interrupted", 130)
            _say(what + ("; run the same command again to resume" if resumable() else ""))
            raise typer.Exit(code) from None
        if hasattr(error, "exit_code") or isinstance(error, BrokenPipeError):  # typer's own, which it handles itself
            raise
        _say(_explain(error))
        raise typer.Exit(error.code if isinstance(error, CommandError) else 1) from None


def _say(message: str) -> None:
    print(f"dynabound: {short(message)}", file=sys.stderr, flush=True)


_REMEDIES = {
    errno.ENOSPC: "make room, or write to another disk",
    errno.EDQUOT: "make room, or write to another disk",
    errno.EACCES: "change its permissions, or give another folder",
    errno.EROFS: "give another folder",
    errno.ENAMETOOLONG: "give a shorter name",
}


def _explain(error: Exception) -> str:
    lab = sys.modules.get("dynabound.lab.errors")  # if it was not imported, it was not raised
    if isinstance(error, CommandError) or (lab and isinstance(error, lab.LabError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "dynabound").startswith("dynabound"):
        return str(error) if "pip install" in str(error) else _extras.missing(error, "lab")
    if isinstance(error, OSError):
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        return f"{named}; {_REMEDIES.get(error.errno or 0, 'give another folder, or make it writable')}"
    if isinstance(error, MemoryError):
        return "not enough memory; use a smaller model, batch or number of steps"
    return _report(error)


def _report(error: Exception) -> str:
    """Write the traceback to a file; return the line that names it."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    command = " ".join(sys.argv)
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="dynabound-error-", suffix=".txt", delete=False) as file:
            report = f"{command}\n\n{''.join(traceback.format_exception(error))}"
            file.write(report.encode(errors="backslashreplace"))
    except OSError:
        return f"internal error: {text}; the traceback could not be written"
    return f"internal error: {text}; the traceback is in {file.name}: please attach it to a report{_tracker()}"


def _tracker() -> str:
    """Where to report, if the package's metadata name an address."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for entry in metadata.metadata("dynabound").get_all("Project-URL") or ():
            label, _, address = entry.partition(", ")
            if label.lower() in ("issues", "bug tracker"):
                return f" at {address}"
    return ""


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return short(super().format(record))


def log_to_stderr() -> None:
    """Print dynabound's warnings on standard error, with terminal escapes made visible."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("dynabound: %(message)s"))
    logging.getLogger("dynabound").addHandler(handler)


def exists(path: Path) -> bool:
    """Whether ``path`` exists; OSError if that cannot be known, which ``Path.exists`` hides from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_folder(folder: Path, option: str = "--out") -> None:
    """Raise CommandError, before anything is run, unless files can be written into ``folder``, which need not exist."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if exists(path))
    except OSError as error:
        raise CommandError(f"{folder}: cannot be written ({error.strerror}); give another {option}") from None
    if not nearest.is_dir():
        raise CommandError(f"{folder}: cannot be written ({nearest} is not a folder); give another {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CommandError(f"{folder}: cannot be written (no permission in {nearest}); give another {option}")


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, so that a run can stop after the current step.

    A signal that was swallowed before is in the list already. The second one ends the process at once. Under
    ``torchrun`` it does not, because that forwards every signal it gets and kills processes that do not stop.
    """
    torchrun = bool(os.environ.get("WORLD_SIZE"))
    received = list(_interrupt.received)

    def note(number: int, _: Any) -> None:
        received.append(number)
        if not torchrun:
            for each, handler in before.items():
                signal.signal(each, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
