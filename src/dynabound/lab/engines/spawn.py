"""One run in several processes of this machine, as ``torchrun`` would start them."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from dynabound.lab.engines.base import PROGRESS_INTERVAL, CrashedError, format_error, start_process
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import LockedError, Store
from dynabound.lab.train import Progress, train
from dynabound.lab.training import distributed

__all__ = ["train_on_ranks"]

_REPORT_TIMEOUT = 5.0  # seconds for the other ranks to report what happened to them after one has failed


class _RankError(LabError):
    """The error that a rank reports."""


def train_on_ranks(
    spec: RunSpec,
    store: Store,
    *,
    ranks: int,
    threads: int,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
    **options: Any,
) -> str:
    """:func:`~dynabound.lab.train.train` in ``ranks`` processes of ``threads`` threads each; return the run's state.

    Raise CrashedError if a rank dies; the others are killed.
    """
    connections, processes = dict[Any, int](), list[Any]()
    folder = tempfile.TemporaryDirectory(prefix="dynabound-")  # private, unlike a free port
    try:
        for rank in range(ranks):
            environment = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                distributed.RENDEZVOUS_FILE: f"{folder.name}/rendezvous",
            }
            connection, process = start_process(
                _run_rank, environment, threads, spec.to_dict(), str(store.root), options
            )
            processes.append(process)
            connections[connection] = rank
        return _supervise(connections, processes, progress, stop)
    finally:
        for process in processes:
            process.kill()
            process.join()
        folder.cleanup()


def _supervise(
    connections: dict[Any, int], processes: list[Any], progress: Callable[[Progress], None], stop: Callable[[], bool]
) -> str:
    """Receive from all ranks until each has reported how it ended."""
    reports: dict[int, tuple[float, str, str]] = {}
    stopping, deadline = False, float("inf")
    while connections and time.monotonic() < deadline:
        if not stopping and stop():
            stopping = True
            for connection in connections:
                with contextlib.suppress(OSError):  # the process is dead; recv() will notice
                    connection.send(None)
        ready: list[Any] = wait(list(connections), PROGRESS_INTERVAL)
        for connection in ready:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                rank = connections[connection]
                processes[rank].join()
                raise CrashedError(f"its rank {rank} died (exit code {processes[rank].exitcode})") from None
            if isinstance(message, Progress):
                progress(message)
                continue
            reports[connections.pop(connection)] = message
            if message[1] != "ended":
                deadline = min(deadline, time.monotonic() + _REPORT_TIMEOUT)
    for _, outcome, text in sorted(reports.values()):  # the earliest failure has caused the others
        if outcome == "locked":
            raise LockedError(text)
        if outcome == "failed":
            raise _RankError(text)
    return reports[0][2]


def _run_rank(
    connection: Connection,
    environment: dict[str, Any],
    threads: int,
    fields: dict[str, Any],
    root: str,
    options: dict[str, Any],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what to do
    torch.set_num_threads(threads)
    os.environ |= {key: str(value) for key, value in environment.items()}

    def progress(message: Progress) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; poll() will notice
            connection.send(message)

    with contextlib.ExitStack() as group:
        try:
            group.enter_context(distributed.joined(options["device"]))
            # Any message, or the end of the connection, is the request to stop.
            result = train(RunSpec.from_dict(fields), Store(root), progress=progress, stop=connection.poll, **options)
            outcome, text = "ended", result.state
        except LockedError as error:
            outcome, text = "locked", str(error)
        except Exception as error:
            outcome, text = "failed", format_error(error)
        with contextlib.suppress(OSError):
            # Before leaving the process group, which makes the other ranks fail.
            connection.send((time.monotonic(), outcome, text))
