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

from dynabound.lab import distributed
from dynabound.lab.engines.local import REFRESH, DiedError, explain, processes
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import LockedError, Store
from dynabound.lab.train import Progress, train

__all__ = ["train_on_ranks"]

_PATIENCE = 5.0  # seconds for the other ranks to say what happened to them when one has failed


class _RankError(LabError):
    """What a rank says about its failure."""


def train_on_ranks(
    spec: RunSpec,
    store: Store,
    *,
    count: int,
    threads: int,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
    **options: Any,
) -> str:
    """:func:`~dynabound.lab.train.train` in ``count`` processes of ``threads`` threads each; the run's state.

    A rank that dies takes the others with it: DiedError.
    """
    context, lines, members = processes(), dict[Any, int](), list[Any]()
    folder = tempfile.TemporaryDirectory(prefix="dynabound-")  # unlike a free port, it is nobody else's
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            place = {
                "RANK": number,
                "LOCAL_RANK": number,
                "WORLD_SIZE": count,
                distributed.RENDEZVOUS_FILE: f"{folder.name}/meeting",
            }
            arguments = (theirs, place, threads, spec.to_dict(), str(store.root), options)
            members.append(context.Process(target=_rank, args=arguments, daemon=True))
            members[-1].start()
            theirs.close()  # or else the end of the process would not be the end of the line
            lines[ours] = number
        return _supervise(lines, members, progress, stop)
    finally:
        for member in members:
            member.kill()
            member.join()
        folder.cleanup()


def _supervise(
    lines: dict[Any, int], members: list[Any], progress: Callable[[Progress], None], stop: Callable[[], bool]
) -> str:
    """Listen to all ranks until each has said how it ended."""
    answers: dict[int, tuple[float, str, str]] = {}
    told, deadline = False, float("inf")
    while lines and time.monotonic() < deadline:
        if not told and stop():
            told = True
            for line in lines:
                with contextlib.suppress(OSError):  # its end will be heard
                    line.send(None)
        ready: list[Any] = wait(list(lines), REFRESH)
        for line in ready:
            try:
                word = line.recv()
            except (EOFError, OSError):
                number = lines[line]
                members[number].join()
                raise DiedError(f"its rank {number} died (exit code {members[number].exitcode})") from None
            if isinstance(word, Progress):
                progress(word)
                continue
            answers[lines.pop(line)] = word
            if word[1] != "ended":
                deadline = min(deadline, time.monotonic() + _PATIENCE)
    for _, kind, text in sorted(answers.values()):  # the first is the reason of the others
        if kind == "locked":
            raise LockedError(text)
        if kind == "failed":
            raise _RankError(text)
    return answers[0][2]


def _rank(
    line: Connection, place: dict[str, Any], threads: int, fields: dict[str, Any], root: str, options: dict[str, Any]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the launcher tells what to do
    torch.set_num_threads(threads)
    os.environ |= {key: str(value) for key, value in place.items()}

    def progress(word: Progress) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, as poll() is about to find out
            line.send(word)

    with contextlib.ExitStack() as group:
        try:
            group.enter_context(distributed.joined(options["device"]))
            # Anything on the line, even its end, is the wish to stop.
            result = train(RunSpec.from_dict(fields), Store(root), progress=progress, stop=line.poll, **options)
            kind, text = "ended", result.state
        except LockedError as error:
            kind, text = "locked", str(error)
        except Exception as error:
            kind, text = "failed", explain(error)
        with contextlib.suppress(OSError):
            line.send((time.monotonic(), kind, text))  # before leaving the others, who will fail of that
