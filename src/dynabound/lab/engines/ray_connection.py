"""Connecting to a Ray cluster, or starting a private Ray on this machine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dynabound
from dynabound._extras import missing
from dynabound.lab.engines.base import cores
from dynabound.lab.errors import LabError

__all__ = ["check_reachable", "connected"]


@contextlib.contextmanager
def connected(address: str | None, modules: Sequence[str]) -> Iterator[Any]:
    """The module ``ray``, connected. An existing connection is used, and left open.

    Without an address, or with "local", Ray is started on this machine for this process alone.
    """
    private = address in (None, "", "local")
    ray = _import_ray(private)
    if ray.is_initialized():
        yield ray
        return
    code = [Path(dynabound.__file__).parent, *filter(None, map(_source_path, modules))]
    options: dict[str, Any] = {"runtime_env": {"py_modules": list(map(str, code))}, "logging_level": logging.ERROR}
    options["log_to_driver"] = False  # the terminal shows the progress of the runs
    with contextlib.ExitStack() as stack:
        try:
            # Without a folder of their own, Ray's workers would import files of this process's working directory.
            empty = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynabound-"))
            options["runtime_env"]["working_dir"] = empty
            if private:
                options |= stack.enter_context(_private_options(ray))
            else:
                check_reachable(str(address))
            stack.callback(ray.shutdown)
            with _own_sigterm():
                ray.init(**{"address": address, **options})
        except Exception as error:  # Ray raises Exception itself if a node has not started after 30 s
            raise LabError(_connection_error(address, private, str(error).partition("\n")[0])) from None
        yield ray


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM. Ray replaces it by one that prints a stack of addresses and aborts."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only there can a handler be set
            signal.signal(signal.SIGTERM, handler)


def _connection_error(address: str | None, private: bool, reason: str) -> str:
    if private:
        return (
            f"--engine ray: Ray cannot be started on this machine ({reason}); "
            "run the same command again when the machine is less busy, use --engine local, or give --address"
        )
    return (
        f"--address {address}: no Ray answers ({reason}); start one (ray start --head), or leave out --address. "
        "If it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    )


def _import_ray(private: bool) -> Any:
    # Ray reads these variables when it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise it reports dead workers on standard output
    if private:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # without clusters it binds to 127.0.0.1 alone
    try:
        import ray
    except ModuleNotFoundError as error:
        raise LabError(f"--engine ray: {missing(error, 'ray')}") from None
    if private:  # somebody may have imported it before
        setattr(importlib.import_module("ray._private.ray_constants"), "ENABLE_RAY_CLUSTER", False)  # noqa: B010
    return ray


@contextlib.contextmanager
def _private_options(ray: Any) -> Iterator[dict[str, Any]]:
    """The options of a Ray that other users of this machine cannot use; otherwise they could run code as this user.

    It listens on 127.0.0.1, asks for a random token that only this process and its children know, and keeps its files
    in a folder that is closed to others. Ray makes its own folder writable for everyone, so that folder is inside a
    private one. The path must be short, because it contains Unix sockets.
    """
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    parent = os.environ.get("RAY_TMPDIR", "/tmp" if os.name == "posix" else None)
    with (
        tempfile.TemporaryDirectory(prefix="dynabound-", dir=parent, ignore_cleanup_errors=True) as folder,
        _environment(ray, variables),
    ):
        yield {
            "address": "local",
            "num_cpus": cores(),
            "include_dashboard": False,
            "_temp_dir": str(Path(folder) / "ray"),
            "_system_config": {
                "enable_metrics_collection": False,  # it would listen on all interfaces
                "worker_register_timeout_seconds": 600,  # on a loaded machine a process may need more than Ray's 60
                # Processes that are started beforehand have no code of ours, and would be started in vain.
                "enable_worker_prestart": False,
                "prestart_worker_first_driver": False,
            },
        }


@contextlib.contextmanager
def _environment(ray: Any, variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    _read_environment(ray)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)
        _read_environment(ray)


def _read_environment(ray: Any) -> None:
    """Let Ray read its settings again, which it has read at import; Ray does the same after a change of the token."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at ``address``: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _source_path(name: str) -> Path | None:
    """Where the code of a module is, to be sent to the nodes; None for an installed one, which they must have too."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a foreign module may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise LabError(f"module {name!r}: cannot be imported ({reason}); install or repair it here") from None
    file = module.__path__[0] if hasattr(module, "__path__") else getattr(module, "__file__", None)
    if file is None:  # built into Python
        return None
    path = Path(file)
    installed = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    return None if any(path.is_relative_to(folder) for folder in installed) else path
