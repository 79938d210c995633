"""Training in another process, which may be killed. Forked from a server that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import torch

from dynabound.lab.checkpoints import file
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.tasks import datasets
from dynabound.lab.train import train
from dynabound.lab.training import distributed

CONTEXT = multiprocessing.get_context("forkserver")
# torch imports its compiler when the first optimizer is made, which takes longer than these runs.
CONTEXT.set_forkserver_preload(
    ["dynabound.cli.runs", "dynabound.lab.checkpoints.sharded", "sklearn.datasets", "torch._dynamo"]
)


def start(target, *args):
    process = CONTEXT.Process(target=_quietly, args=(target, *args))
    process.start()
    return process


def run(target, *args) -> int:
    """The exit code of ``target`` in a process of its own: negative if a signal killed it."""
    process = start(target, *args)
    process.join(timeout=1800)
    assert process.exitcode is not None, "the worker hangs"
    return process.exitcode


def _quietly(target, *args) -> None:
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    target(*args)


def train_and_die(fields: dict, out: str, after: int, where: str, number: int, fsdp: bool = False) -> None:
    """Train, and send ``number`` to this process at its ``after``-th step, or ``after``-th touch of a file."""
    remaining = after

    def count(*_) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), number)

    if where == "file":
        sys.addaudithook(lambda event, args: _is_file_of_run(event, args, out) and count())
    progress = count if where == "step" else None
    with distributed.joined("cpu", group=fsdp):
        train(RunSpec(**fields), Store(out), fsdp=fsdp, checkpoint_steps=3, progress=progress)


def _is_file_of_run(event: str, args: tuple, out: str) -> bool:
    return event in ("open", "os.rename", "os.remove") and str(args[0]).startswith(out)


def command_and_signal(arguments: list[str], after: int, number: int, times: int = 1, torchrun: bool = False) -> None:
    """``dynabound ARGUMENTS`` with a signal that arrives at its ``after``-th step, once or more often."""
    if torchrun:
        os.environ["WORLD_SIZE"] = "1"
    from dynabound.__main__ import main
    from dynabound.lab.training import loop

    step, count = loop.Training._step, iter(range(1, 10**9))

    def counted(self, batch):
        if next(count) == after:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return step(self, batch)

    loop.Training._step = counted
    sys.argv = ["dynabound", *arguments]
    main()


def train_on_full_disk(fields: dict, out: str, size: int) -> None:
    """Exit with 3 if the checkpoint does not fit and the error says so."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    _train_without_room(fields, out)


def _train_without_room(fields: dict, out: str, fsdp: bool = False) -> None:
    try:
        train(RunSpec(**fields), Store(out), fsdp=fsdp, checkpoint_steps=3)
    except LabError as error:
        sys.exit(3 if "cannot be written" in str(error) and "--resume" in str(error) else 4)


def train_on_one_full_disk(rank: int, fields: dict, out: str, size: int) -> None:
    """The same in several ranks; the last one has no disk space."""
    with distributed.joined("cpu"):
        if rank == distributed.world_size() - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _train_without_room(fields, out, fsdp=True)


def train_and_die_in_shards(rank: int, fields: dict, out: str) -> None:
    """Rank 1 is killed when it has written its shards, before the others know."""
    from dynabound.lab.checkpoints import sharded

    if rank == 1:
        sharded.digest = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    with distributed.joined("cpu"):
        train(RunSpec(**fields), Store(out), fsdp=True, checkpoint_steps=3)


def go_on_where_one_misreads(rank: int, fields: dict, out: str) -> None:
    """Rank 1 cannot read the newest checkpoint, which is intact."""
    read = file.read

    def misread(path):
        file.read = read
        raise DamagedError("a fault of this machine")

    if rank == 1:
        file.read = misread
    train_rank(rank, fields, out, True, 1)


def go_on_in_folders_of_their_own(rank: int, fields: dict, nodes: str) -> None:
    """Exit with 3 if the error says what is wrong."""
    os.chdir(f"{nodes}/{rank}")
    try:
        train_rank(rank, fields, "runs", True, 1)
    except LabError as error:
        sys.exit(3 if "000003.pt" in str(error) and "--out must be a folder that" in str(error) else 4)


def train_as_nobody(fields: dict, out: str) -> None:
    """Exit with 3 if the folder cannot be written to and the error says so."""
    data = datasets.load(fields["task"])
    datasets.load = lambda *_: data
    with (
        tempfile.TemporaryDirectory() as elsewhere
    ):  # imports all it needs: the user "nobody" may be unable to read Python
        train(RunSpec(**{**fields, "epochs": 1, "decay_after": None}), Store(elsewhere))
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        train(RunSpec(**fields), Store(out))
    except LabError as error:
        sys.exit(3 if "cannot be written (Permission denied)" in str(error) and "--out" in str(error) else 4)


def train_in_bf16(fields: dict, out: str) -> None:
    """In a process of its own: oneDNN chooses its instructions once; some virtual machines report unsupported ones."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
    dtypes = set()
    note = torch.nn.modules.module.register_module_forward_hook(
        lambda *call: dtypes.add(getattr(call[2], "dtype", None))
    )
    with note:
        train(RunSpec(**fields), Store(out))
    assert torch.bfloat16 in dtypes


def hold_lock(fields: dict, out: str, held, release) -> None:
    with Store(out).run(RunSpec(**fields)).lock():
        held.set()
        release.wait()


def train_rank(rank: int, fields: dict, out: str, fsdp: bool, stop_after: int) -> None:
    """One of several ranks; the last one asks to stop after ``stop_after`` checks."""
    asked = iter(range(1, 10**9))
    with distributed.joined("cpu", group=fsdp):
        last = distributed.world_size() - 1  # only one rank wants to stop: all must
        train(RunSpec(**fields), Store(out), fsdp=fsdp, stop=lambda: next(asked) >= stop_after and rank == last)


def in_ranks(count: int, target, *args) -> list[int]:
    """The exit codes of ``target(rank, *args)`` in ``count`` processes that have found each other."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [start(_as_rank, rank, count, f"{folder}/meeting", target, *args) for rank in range(count)]
        for worker in workers:
            worker.join(timeout=1800)
    return [worker.exitcode for worker in workers]


def _as_rank(rank: int, count: int, meeting: str, target, *args) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), distributed.RENDEZVOUS_FILE: meeting}
    target(rank, *args)


def train_in_ranks(fields: dict, out: Path, count: int = 2, fsdp: bool = False, stop_after: int = 10**9) -> None:
    assert in_ranks(count, train_rank, fields, str(out), fsdp, stop_after) == [0] * count


KILL, INT, TERM = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
