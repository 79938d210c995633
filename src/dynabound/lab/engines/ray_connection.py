"""Connecting to a Ray cluster, or starting a Ray on this machine."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dynabound
from dynabound._extras import missing
from dynabound.lab.engines.base import cores
from dynabound.lab.errors import LabError

__all__ = ["check_reachable", "connect"]


def connect(address: str | None, modules: Sequence[str]) -> tuple[Any, bool]:
    """The module ``ray``, connected, and whether this call has connected it. An existing connection is used."""
    # Ray reads these variables when it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise it reports dead workers on standard output
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # without clusters it binds to 127.0.0.1 alone
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise LabError(f"--engine ray: {missing(error, 'ray')}") from None
    if ray.is_initialized():
        return ray, False
    code = [Path(dynabound.__file__).parent, *filter(None, map(_source_path, modules))]
    options: dict[str, Any] = {"runtime_env": {"py_modules": list(map(str, code))}, "logging_level": logging.ERROR}
    options["log_to_driver"] = False  # the terminal shows the progress of the runs
    if address is None:
        quiet = {"enable_metrics_collection": False}  # it would listen on all interfaces
        ray.init("local", num_cpus=cores(), include_dashboard=False, _system_config=quiet, **options)
        return ray, True
    try:
        check_reachable(address)
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).partition("\n")[0]
        raise LabError(
            f"--address {address}: no Ray answers ({reason}); start one (ray start --head), or leave out --address. "
            "If it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from None
    return ray, True


def check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at ``address``: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _source_path(name: str) -> Path | None:
    """Where the code of a module is, to be sent to the nodes; None for an installed one, which they must have too."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise LabError(f"module {name}: cannot be imported ({error})") from None
    path = Path(module.__path__[0] if hasattr(module, "__path__") else str(module.__file__))
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return None if any(path.is_relative_to(folder) for folder in installed) else path
