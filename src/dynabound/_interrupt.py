"""Ctrl-C and SIGTERM during a command. Imports almost nothing itself, so that it takes effect early."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

__all__ = ["allow", "check", "exit_at_once", "load", "received", "reset"]

received: list[int] = []
"""The signals since :func:`allow`, also those whose KeyboardInterrupt was swallowed by somebody's ``except``."""
_DEFAULT: dict[int, Callable[[int, FrameType | None], object] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def _leave(number: int, _: FrameType | None) -> None:
    os.write(2, b"dynabound: terminated\n" if number == signal.SIGTERM else b"dynabound: interrupted\n")
    os._exit(128 + number)


def _raise(number: int, _: FrameType | None) -> None:
    received.append(number)
    signal.signal(number, _DEFAULT[number])  # the second one is Python's
    raise KeyboardInterrupt


def _replace(before: tuple[object, ...], after: object) -> None:
    """Set the handler ``after``, or Python's own if it is None, where it is one of ``before``."""
    for number, default in _DEFAULT.items():
        if signal.getsignal(number) in (default if each is None else each for each in before):
            try:
                signal.signal(number, default if after is None else after)  # type: ignore[arg-type]
            except ValueError:  # not in the main thread, where alone a handler can be set
                return


def exit_at_once() -> None:
    """Until :func:`allow`, a signal ends the process at once: there is nothing to clean up yet.

    An exception in the middle of an import may be swallowed, or leave a module half imported. A signal that the
    parent process ignores stays ignored.
    """
    _replace((None,), _leave)


def allow() -> None:
    """From here on the first Ctrl-C, or SIGTERM, raises KeyboardInterrupt."""
    _replace((None, _leave), _raise)


def check() -> None:
    """Raise KeyboardInterrupt if one was raised before, and swallowed."""
    if received:
        raise KeyboardInterrupt


def reset() -> None:
    """Forget the signals, and give them back to Python."""
    received.clear()
    _replace((_leave, _raise), None)


def load(module: str) -> None:
    """Import a large module late, but before there is anything to clean up: a signal still ends the process."""
    if module not in sys.modules:
        _replace((_raise,), _leave)
        try:
            __import__(module)
        finally:
            _replace((_leave,), _raise)
