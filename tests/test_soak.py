"""The benchmark that injects faults ends."""

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_command_that_always_fails_is_not_restarted_for_ever(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", module)  # its dataclasses look there
    spec.loader.exec_module(module)
    soak, starts = module.Soak(random.Random(0), tmp_path / "log"), []

    def start(_):
        starts.append(1)
        assert len(starts) < 100, "restarted for ever"
        soak.driver = subprocess.Popen(["false"])

    monkeypatch.setattr(soak, "start", start)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    soak.round(["reproduce"], 1, time.monotonic())
    assert soak.problems == ["hangs, or always fails: dynabound reproduce"]
