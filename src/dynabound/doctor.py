"""``dynabound doctor``: versions, the kernel or why there is none, devices and extras. Needs no extra itself."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib import metadata
from typing import Any

from dynabound._extras import pip_command
from dynabound._version import __version__

__all__ = ["diagnose", "main"]

_HIDDEN = ("dev", "docs", "frameworks", "gpu", "integrations", "peers")  # for work on dynabound itself


def diagnose() -> dict[str, Any]:
    """What dynabound finds on this machine, for JSON."""
    found: dict[str, Any] = {
        "dynabound": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    return {**found, **_torch(), "extras": _extras()}


def _torch() -> dict[str, Any]:
    """Torch's version, devices and threads, and the kernel."""
    try:
        import torch

        from dynabound.optim import kernel_status
    except ModuleNotFoundError as error:
        return {"torch": None, "reason": f"{error.name} is not installed: {pip_command('torch')}"}
    status = kernel_status()
    devices = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return {
        "torch": torch.__version__,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "backends": [*(["fused"] if status.available else []), "foreach", "loop"],
        "kernel": {"available": status.available, "reason": status.reason, "instruction_set": status.instruction_set,
                   "threads": status.threads, "gpu": status.gpu, "gpu_reason": status.gpu_reason},
    }  # fmt: skip


def _extras() -> dict[str, dict[str, Any]]:
    """For each extra, the version of each of its packages; None if the package is missing."""
    try:
        requirements = metadata.requires("dynabound") or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, dict[str, Any]] = {}
    for requirement in requirements:
        match = re.match(r"""([\w.-]+).*extra\s*==\s*['"](\w+)['"]""", requirement)
        if match and match[2] not in _HIDDEN and match[1] != "dynabound":
            extras.setdefault(match[2], {})[match[1]] = _version(match[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"dynabound   {found['dynabound']}, Python {found['python']}, {found['platform']}, {found['cores']} cores"]
    if found["torch"] is None:
        lines.append(f"torch       {found['reason']}")
    else:
        kernel = found["kernel"]
        lines += [
            f"torch       {found['torch']}, {found['threads']} threads, devices: {', '.join(found['devices'])}",
            f"kernel      {kernel['instruction_set']}, {kernel['threads']} threads" if kernel["available"]
            else f"kernel      missing: {kernel['reason']}",
            "gpu kernel  Triton, with fused=True" if kernel["gpu"] else f"gpu kernel  not used: {kernel['gpu_reason']}",
            f"backends    {', '.join(found['backends'])}",
        ]  # fmt: skip
    for extra, packages in found["extras"].items():
        if extra == "torch":  # the second line has it
            continue
        absent = [name for name, version in packages.items() if version is None]
        known = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        state = f"missing {', '.join(absent)}: {pip_command(extra)}" if absent else known
        lines.append(f"{extra:11} {state}")
    return lines


def main(as_json: bool = False) -> None:
    """Print the diagnosis."""
    found = diagnose()
    sys.stdout.write((json.dumps(found) if as_json else "\n".join(_lines(found))) + "\n")
