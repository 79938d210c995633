"""List the files and functions of dynabound that a command enters, in order: a way into the code.

    python benchmarks/call_path.py train digits --epochs 1

Counted with sys.setprofile, in this process and its threads: every named function once. What runs while a module is
imported, comprehensions and lambdas are left out, and so are worker processes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import dynabound
from dynabound.__main__ import main as dynabound_main

SOURCE = str(Path(dynabound.__file__).parent) + "/"


def entered(call: Callable[[], object]) -> dict[str, list[str]]:
    """The functions that ``call`` enters, by file."""
    found: dict[str, dict[str, None]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or "<" in code.co_name:
            return
        file, name = code.co_filename.removeprefix(SOURCE), getattr(code, "co_qualname", code.co_name)  # of 3.11
        if name not in found.get(file, ()) and not _importing(frame):
            found.setdefault(file, {})[name] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    except SystemExit:  # how every command ends
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as in the manual of Python
    return {file: list(names) for file, names in found.items()}


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Run the command, then print what it entered."""
    sys.argv[0] = "dynabound"
    found = entered(dynabound_main)
    for file, names in found.items():
        print(f"{file}\n    {', '.join(names)}")
    print(f"\n{sum(map(len, found.values()))} functions in {len(found)} files")


if __name__ == "__main__":
    main()
