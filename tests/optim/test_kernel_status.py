"""Whether there is a kernel, why not, and what the installation does without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynabound.optim import _fused, kernel_status

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
def test_status_with_a_kernel():
    status = kernel_status()
    assert status.available
    assert status.reason is None
    assert status.instruction_set == _fused.LEVELS[-1]
    assert status.threads == (torch.get_num_threads() if _fused._kernel.OPENMP else 1)


def load_without(monkeypatch, change):
    with monkeypatch.context() as patch:
        change(patch)
        reason = _fused._load()
    monkeypatch.setattr(_fused, "AVAILABLE", False)
    monkeypatch.setattr(_fused, "MISSING", reason)
    status = kernel_status()
    assert not status.available
    assert status.instruction_set is None
    return status.reason


def test_a_kernel_that_was_not_built(monkeypatch):
    reason = load_without(monkeypatch, lambda patch: patch.setattr(_fused, "find_spec", lambda name: None))
    assert reason.startswith("it was not built, because the installation found no C compiler")
    assert "pip install --force-reinstall --no-deps " in reason


def test_a_torch_that_is_too_old(monkeypatch):
    if not _fused.AVAILABLE:
        pytest.skip("the C kernel was not built")
    reason = load_without(monkeypatch, lambda patch: patch.delattr(torch.Tensor, "__dlpack_c_exchange_api__"))
    assert reason == f"torch {torch.__version__} has no DLPack exchange API; install torch >= 2.10"


def test_a_kernel_that_cannot_be_loaded(monkeypatch):
    if not _fused.AVAILABLE:
        pytest.skip("the C kernel was not built")

    def fail(name):
        raise ImportError("libgomp.so.1: cannot open shared object file")

    reason = load_without(monkeypatch, lambda patch: patch.setattr(_fused.importlib, "import_module", fail))
    assert reason.startswith("it cannot be loaded (libgomp.so.1: cannot open shared object file); pip install")


EMPTY_KERNEL = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel"};
PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
"""


def build(folder, compiler, kernel=None, **environment):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src/dynabound/optim", folder / "src/dynabound/optim", ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "src/dynabound/_version.py", folder / "src/dynabound")
    (folder / "src/dynabound/__init__.py").touch()
    if kernel:
        (folder / "src/dynabound/optim/_kernel.c").write_text(kernel)
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built"],
        cwd=folder,
        env={**os.environ, "CC": compiler, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="CC does not choose MSVC")
def test_an_installation_without_a_compiler(tmp_path):
    done = build(tmp_path, "no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert "dynabound: the fused kernel was not built: no working C compiler" in done.stderr
    assert not list(tmp_path.rglob("_kernel*.so"))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="CC does not choose MSVC")
def test_a_build_that_requires_the_kernel_fails_without_a_compiler(tmp_path):
    done = build(tmp_path, "no-such-compiler", DYNABOUND_REQUIRE_KERNEL="1")
    assert done.returncode != 0


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_build_with_a_compiler(tmp_path):
    """With a kernel that does nothing: the real one takes long, and the installation has compiled it."""
    done = build(tmp_path, "cc", EMPTY_KERNEL, DYNABOUND_REQUIRE_KERNEL="1")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("_kernel*.so"))
