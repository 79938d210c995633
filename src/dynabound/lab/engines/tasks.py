"""Work of a study that is not a run, in processes of its own: suggestions, and the demonstrations of the theory."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from dynabound.lab.engines.base import MAX_CRASHES, format_error, start_process
from dynabound.lab.errors import LabError

__all__ = ["run_tasks"]


def run_tasks(
    tasks: Sequence[Callable[[], object]], jobs: int, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Call all tasks, which store their own results, in ``jobs`` processes; ``progress`` gets the number completed.

    A process that dies is replaced; LabError if a task fails, or if its process dies ``MAX_CRASHES`` times.
    """
    waiting, crashes, done = list(range(len(tasks))), Counter[int](), 0
    running: dict[Any, tuple[Any, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                # Not a pool: its processes print a traceback if its semaphores are gone before they have started.
                connection, process = start_process(_work, tasks[task])
                running[connection] = process, task
            for connection in wait(list(running)):
                process, task = running.pop(connection)
                succeeded = _succeeded(connection)
                process.join()
                if succeeded:
                    done += 1
                    progress(done)
                    continue
                crashes[task] += 1
                waiting.append(task)
                if crashes[task] >= MAX_CRASHES:
                    raise LabError("a process that prepares the study died; run the same command again")
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def _succeeded(connection: Any) -> bool:
    """Whether a process has done its work; False if it died, LabError if it failed."""
    try:
        error: str = connection.recv()
    except (EOFError, OSError):
        return False
    finally:
        connection.close()
    if error:
        raise LabError(error.strip().rpartition("\n")[-1])  # the last line of a traceback is the error
    return True


def _work(connection: Any, task: Callable[[], object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what to do
    try:
        task()
        error = ""
    except Exception as problem:
        error = format_error(problem)
    with contextlib.suppress(OSError):  # the parent is gone
        connection.send(error)
