"""Ctrl-C while a command is being imported. Imports almost nothing itself, so that it takes effect early."""

import os
import signal

__all__ = ["allow", "exit_at_once"]


def _leave(*_: object) -> None:
    os.write(2, b"dynabound: interrupted\n")
    os._exit(130)


def exit_at_once() -> None:
    """Until :func:`allow`, Ctrl-C ends the process at once: there is nothing to clean up yet.

    An exception in the middle of an import may be swallowed, or leave a module half imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the parent process ignores it
        signal.signal(signal.SIGINT, _leave)


def allow() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
