"""What every command prints: lines, tables, JSON, and one line with an exit code if it fails."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import logging
import signal
import sys
import tempfile
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from dynabound import _extras

_LONGEST = 1000
_RESUMABLE = ("train", "reproduce", "tune", "report")


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


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a command handles like Ctrl-C."""


def terminate(number: int, _: FrameType | None) -> None:
    """The handler of SIGTERM; the second one ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


@contextlib.contextmanager
def one_line(command: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Turn an exception of a command into one line and an exit code: 130 for Ctrl-C, 143 for SIGTERM, otherwise 1.

    An unexpected error is a defect: its traceback is written to a file, which the line names.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        what, code = ("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)
        _print_error(what + ("; run the same command again to resume" if command() in _RESUMABLE else ""))
        raise typer.Exit(code) from None
    except Exception as error:
        # typer's own errors, which it handles itself
        if isinstance(error, (typer.Abort, BrokenPipeError)) or hasattr(error, "exit_code"):
            raise
        _print_error(_explain(error, command()))
        raise typer.Exit(error.code if isinstance(error, CommandError) else 1) from None


def _print_error(message: str) -> None:
    print(f"dynabound: {short(message)}", file=sys.stderr, flush=True)


_REMEDIES = {
    errno.ENOSPC: "make room, or write to another disk",
    errno.EDQUOT: "make room, or write to another disk",
    errno.EACCES: "change its permissions, or give another folder",
    errno.EROFS: "give another folder",
    errno.ENAMETOOLONG: "give a shorter name",
}


def _explain(error: Exception, command: str | None) -> str:
    lab = sys.modules.get("dynabound.lab.errors")  # if it was not imported, it was not raised
    if isinstance(error, CommandError) or (lab and isinstance(error, lab.LabError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "dynabound").startswith("dynabound"):
        return str(error) if "pip install" in str(error) else _extras.missing(error, _extras.of_command(command))
    if isinstance(error, OSError):
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        return f"{named}; {_REMEDIES.get(error.errno or 0, 'give another folder, or make it writable')}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
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
    return f"internal error: {text}; the traceback is in {file.name}: please attach it to a report"


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return short(super().format(record))


def log_to_stderr() -> None:
    """Print dynabound's warnings on standard error, with terminal escapes made visible."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("dynabound: %(message)s"))
    logging.getLogger("dynabound").addHandler(handler)


def echo(text: object, err: bool = False) -> None:
    """Print a line; terminal escapes in it are shown, not executed."""
    # Not typer.echo, which writes UTF-8 where the encoding is ASCII.
    print(printable(text, lines=True), file=sys.stderr if err else sys.stdout, flush=True)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    echo(json.dumps(value))


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], wrap: str = "", width: int = 120) -> None:
    """Print rows without interpreting markup; only the column ``wrap`` may be broken into lines."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=bool(wrap) and column != wrap)
    for row in rows:
        table.add_row(*(Text(short(cell)) for cell in row))
    show(table, width)


@contextlib.contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """A bar on standard error; yields start(text), which returns update(done, total) and ends the bar before."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:

        def start(text: str) -> Callable[[int, int], None]:
            for task in bar.task_ids:
                bar.remove_task(task)
            new = bar.add_task(escape(printable(text)), total=None)
            return lambda done, total: bar.update(new, completed=done, total=total)

        yield start


def show(renderable: RenderableType, width: int = 120) -> None:
    """Print in the width of the terminal, or in ``width`` if there is none."""
    Console(highlight=False, width=None if sys.stdout.isatty() else width).print(renderable)


_ASCII = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "eps", "η": "eta", "Δ": "Delta", "Σ": "Sum",
    "√": "sqrt ", "∞": "inf", "∑": "sum", "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "±": "+-", "≤": "<=",
    "≥": ">=", "≈": "~", "→": "->", "…": "...", "’": "'", "“": '"', "”": '"', "█": "#",
}  # fmt: skip


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()  # β₂ is beta2
    return _ASCII.get(character) or plain or "?"


def fall_back_to_ascii() -> None:
    """Never fail to print: characters that the encoding lacks are written in ASCII.

    >>> codecs.register_error("dynabound-ascii", _replace)
    >>> "α* = 0.1, β₂ ≥ 0 …".encode("ascii", "dynabound-ascii").decode()
    'alpha* = 0.1, beta2 >= 0 ...'
    """
    codecs.register_error("dynabound-ascii", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="dynabound-ascii")
