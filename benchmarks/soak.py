"""A long reproduction with a fault every minute, which must end in the report of an undisturbed one.

    python benchmarks/soak.py [--minutes 120] [--every 60] [--seed 0] [--engine local|ray] [--out DIR] [STUDY ...]

First the studies are reproduced without faults, in ``DIR/undisturbed``. Then they are reproduced in ``DIR/round-1``,
``DIR/round-2`` … until the time is up, with a random fault every ``--every`` seconds; a command that ends before the
work is done is run again. At the end of each round every run's metrics, but their times, and the report's numbers and
verdicts must equal the undisturbed ones in every bit. Without ``--engine``, rounds alternate: local, then Ray.

Prints what was injected and survived; exit code 1 if anything differs, a traceback was printed or a process was left
behind. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynabound.lab.store import Store

TOKEN = f"DYNABOUND_SOAK={secrets.token_hex(8)}"
"""In the environment of all our processes, also of those whose parent has died."""
PAUSE = 5.0
"""Seconds that a stopped process or a full disk lasts."""
PATIENCE = 3600.0
"""Seconds after the last fault in which a round must end; otherwise it hangs."""
EXPECTED = {0, 1, 130, 143, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM}


@dataclass
class Process:
    """A process of ours, as /proc shows it."""

    pid: int
    parent: int
    command: str


def processes() -> list[Process]:
    """All processes that have the token."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is another user's
            if TOKEN.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found.append(Process(int(folder.name), parent, command))
    return found


def workers() -> list[int]:
    """Processes that train: forked from the fork server, or Ray's."""
    ours = {process.pid: process for process in processes()}
    server = "multiprocessing.forkserver"
    forked = [
        p.pid for p in ours.values() if server in p.command and p.parent in ours and server in ours[p.parent].command
    ]
    return forked + [p.pid for p in ours.values() if p.command.startswith("ray::")]


def nodes() -> list[int]:
    """Ray's own processes."""
    return [p.pid for p in processes() if Path(p.command.split(" ")[0]).name in ("raylet", "gcs_server")]


@dataclass
class Soak:
    """The running command, the faults injected into it, and its outcome."""

    choose: random.Random
    log: Path
    driver: subprocess.Popen[bytes] | None = None
    injected: collections.Counter[str] = field(default_factory=collections.Counter)
    commands: collections.Counter[int] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)

    def start(self, arguments: list[str]) -> None:
        key, _, value = TOKEN.partition("=")
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "dynabound", *arguments]
            # A shell may start us with SIGINT ignored, which children inherit.
            default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
            self.driver = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, key: value}, start_new_session=True,
                preexec_fn=default,
            )  # fmt: skip

    def one_of(self, pids: list[int]) -> list[int]:
        return [self.choose.choice(sorted(pids))] if pids else []

    def signal(self, pids: list[int], *numbers: int) -> bool:
        """Send signals, ``PAUSE`` apart; whether there was a process to send them to."""
        for place, number in enumerate(numbers):
            time.sleep(PAUSE if place else 0)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return bool(pids)

    def fill_disk(self) -> bool:
        """Let no process write to a file for a while: what it gets is the error of a file that is too large."""
        for limit in (0, resource.RLIM_INFINITY):
            pids = [p.pid for p in processes() if p.pid not in nodes()]
            for pid in pids:
                with contextlib.suppress(OSError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            time.sleep(PAUSE if limit == 0 else 0)
        return bool(pids)

    def faults(self, ray: bool) -> dict[str, Callable[[], bool]]:
        assert self.driver
        driver = [self.driver.pid]
        known = {
            "worker killed": lambda: self.signal(self.one_of(workers()), signal.SIGKILL),
            "worker stopped, then continued": lambda: self.signal(
                self.one_of(workers()), signal.SIGSTOP, signal.SIGCONT
            ),
            "worker stopped, then killed": lambda: self.signal(self.one_of(workers()), signal.SIGSTOP, signal.SIGKILL),
            "all workers killed": lambda: self.signal(workers(), signal.SIGKILL),
            "driver killed": lambda: self.signal(driver, signal.SIGKILL),
            "driver interrupted (SIGINT)": lambda: self.signal(driver, signal.SIGINT),
            "driver terminated (SIGTERM)": lambda: self.signal(driver, signal.SIGTERM),
            "driver stopped, then continued": lambda: self.signal(driver, signal.SIGSTOP, signal.SIGCONT),
            "disk full": self.fill_disk,
        }
        if ray:
            known["Ray node killed (raylet or gcs_server)"] = lambda: self.signal(self.one_of(nodes()), signal.SIGKILL)
        return known

    def inject(self, ray: bool) -> None:
        """Inject a random fault, of those for which there is a process."""
        known = self.faults(ray)
        for name in self.choose.sample(sorted(known), len(known)):
            if known[name]():
                self.injected[name] += 1
                print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
                return

    def round(self, arguments: list[str], every: float, deadline: float) -> None:
        """Run a command until it succeeds, with faults before ``deadline``."""
        started, ray = time.monotonic(), "ray" in arguments
        while True:
            self.start(arguments)
            assert self.driver
            code = None
            while code is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = self.driver.wait(every * self.choose.uniform(0.5, 1.5))
                if code is None and time.monotonic() < deadline:
                    self.inject(ray)
                elif code != 0 and time.monotonic() - max(started, deadline) > PATIENCE:
                    self.problems.append(f"hangs, or always fails: dynabound {' '.join(arguments)}")
                    return
            self.commands[code] += 1
            if code not in EXPECTED:
                self.problems.append(f"exit code {code}: dynabound {' '.join(arguments)}")
            if code == 0:
                return


def results(out: Path) -> dict[str, Any]:
    """Every run's state and metrics, and the report, without times."""
    runs = {run.name: (run.status(), run.metrics()) for run in Store(out / "runs").runs()}
    report = json.loads((out / "demo" / "report.json").read_text())
    kept = {"runs": runs, "studies": report["studies"]}
    without: dict[str, Any] = json.loads(
        json.dumps(kept), object_hook=lambda d: {k: v for k, v in d.items() if k != "seconds"}
    )
    return without


def compare(name: str, found: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    """What differs between two :func:`results`."""
    for part in ("runs", "studies"):
        ours, theirs = ({str(k): v for k, v in (p.items() if isinstance(p, dict) else enumerate(p))}
                        for p in (found[part], expected[part]))  # fmt: skip
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                yield f"{name}: {part} {key} differs"


def leftovers() -> Iterator[str]:
    """Processes that still live a while after their commands have ended; they are killed."""
    deadline = time.monotonic() + 90
    while processes() and time.monotonic() < deadline:
        time.sleep(1)
    for process in processes():
        yield f"left behind: {process.command[:100]}"
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="*", default=["mnist"], metavar="STUDY")
    parser.add_argument("--minutes", type=float, default=120, help="inject faults for this long (default 120)")
    parser.add_argument("--every", type=float, default=60, help="mean seconds between faults (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "ray"), help="default: both, in turns")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time on the local engine (default 2)")
    parser.add_argument("--out", type=Path, default=Path("soak"))
    return parser.parse_args()


def main() -> int:
    """Reproduce undisturbed, then with faults; the exit code."""
    given = parse()
    engines = [given.engine] if given.engine else ["local", "ray"]
    if "ray" in engines and importlib.util.find_spec("ray") is None:
        print("skipped: Ray is not installed")
        engines.remove("ray")
    given.out.mkdir(parents=True, exist_ok=True)
    soak = Soak(random.Random(given.seed), given.out / "output.txt")
    soak.log.write_bytes(b"")
    base = ["reproduce", *given.studies, "--json"]
    print(f"undisturbed: dynabound {' '.join(base)}", flush=True)
    soak.round([*base, f"--jobs={given.jobs}", f"--out={given.out / 'undisturbed'}"], 60, time.monotonic())
    expected = results(given.out / "undisturbed")
    soak.commands.clear()
    started = time.monotonic()
    deadline, rounds = started + 60 * given.minutes, 0
    while time.monotonic() < deadline and not soak.problems:
        out = given.out / f"round-{rounds + 1}"
        shutil.rmtree(out, ignore_errors=True)
        engine = engines[rounds % len(engines)]
        options = ["--engine", "ray"] if engine == "ray" else [f"--jobs={given.jobs}"]
        soak.round([*base, *options, f"--out={out}"], given.every, deadline)
        if not soak.problems:
            rounds += 1
            soak.problems += compare(f"round {rounds} ({engine})", results(out), expected)
            print(f"round {rounds} ({engine}): compared", flush=True)
    soak.problems += leftovers()
    text = soak.log.read_text(errors="replace")
    soak.problems += [f"{soak.log}: {word}" for word in ("Traceback", "internal error") if word in text]
    show(soak, rounds, len(expected["runs"]), (time.monotonic() - started) / 60, given)
    return 1 if soak.problems else 0


def show(soak: Soak, rounds: int, runs: int, minutes: float, given: argparse.Namespace) -> None:
    """Print what was survived."""
    print(
        f"\nseed {given.seed}, {minutes:.0f} minutes, a fault every {given.every:g} s: {soak.injected.total()} faults"
    )
    for name, times in sorted(soak.injected.items()):
        print(f"  {times:4} {name}")
    ends = ", ".join(f"{times} with {code}" for code, times in sorted(soak.commands.items()))
    print(f"commands ended: {ends}")
    differ = any(problem.endswith("differs") for problem in soak.problems)
    equal = "NOT equal to the undisturbed one" if differ else "equal to the undisturbed one in every bit"
    print(f"{rounds} rounds of {runs} runs and their report: {equal}")
    for problem in soak.problems:
        print(f"PROBLEM: {problem}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:  # also after Ctrl-C
        for process in processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
