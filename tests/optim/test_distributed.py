"""Two processes with gloo: DDP, ZeroRedundancyOptimizer, FSDP2, distributed checkpoints."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

SCRIPT = Path(__file__).parents[1] / "helpers" / "distributed_checks.py"
CHECKS = [line[4:].partition("(")[0] for line in SCRIPT.read_text().splitlines() if line.startswith("def check_")]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch has no gloo"
    ),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Both ranks run all checks once, because starting them takes longer than the checks."""
    folder = tmp_path_factory.mktemp("distributed")
    ranks = [
        subprocess.Popen([sys.executable, SCRIPT, str(rank), folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(2)
    ]
    try:
        return [rank.communicate(timeout=1800)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("check", CHECKS)
def test_two_processes(check, run):
    if f"skipped {check}\n" in run[0]:
        pytest.skip("FSDP2 of this torch does not run without an accelerator")
    assert f"passed {check}\n" in run[0], "\n".join(run)
