"""A limit on the time that a call may take."""

import contextlib
import signal

import pytest

SECONDS = 60
"""Of CPU time, which does not depend on what else the machine does; and ten times as much on the clock."""


@contextlib.contextmanager
def time_limit(what):
    """Fail if the body takes longer than ``SECONDS``; ``what`` is shown."""

    def expired(*_):
        pytest.fail(f"hangs: {what}")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before = {number: signal.signal(number, expired) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
