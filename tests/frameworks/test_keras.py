"""The tests of backend/, in one process for each of Keras's backends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(3600)  # all tests of a backend: minutes, and far more on a machine that is busy
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_keras(backend):
    folder = Path(__file__).parent / "backend"
    command = [sys.executable, "-m", "pytest", "-q", str(folder)]
    run = subprocess.run(
        command, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]
