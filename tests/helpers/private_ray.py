"""What another user of this machine could find out about the Ray that an engine starts for itself, and its signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from dynabound.lab.engines.ray import RayEngine


def inspect(address: str, folder: str) -> None:
    """Start Ray with its files in ``folder``, without a home directory, and write what can be seen to found.json."""
    import psutil
    import ray  # as an optimizer's module may do, before the engine sets the variables that it reads

    os.environ |= {"HOME": "/nonexistent", "RAY_TMPDIR": folder}
    os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    with RayEngine(address) as engine:
        os.kill(os.getpid(), signal.SIGTERM)
        token, gcs = os.environ["RAY_AUTH_TOKEN"], ray.get_runtime_context().gcs_address
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        pids = {process.pid for process in processes}
        tcp = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in pids]
        found = {
            "listening": sorted({connection.laddr.ip for connection in tcp}),
            "modes": [path.stat().st_mode & 0o777 for path in Path(folder).iterdir()],
            "commands_with_token": [process.cmdline() for process in processes if token in " ".join(process.cmdline())],
            "files_with_token": [str(path) for path in Path(folder).rglob("*") if token.encode() in contents(path)],
            "jobs": engine.jobs,
            "signals": received,
            "imports_from_here": os.getcwd() in ray.get(ray.remote(lambda: sys.path).remote()),
        }
        stranger = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
        command = [sys.executable, "-c", f"import ray; ray.init({gcs!r}); print('connected')"]
        found["stranger"] = subprocess.run(command, capture_output=True, text=True, timeout=3000, env=stranger).stdout
    Path(folder, "found.json").write_text(json.dumps(found))


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""
