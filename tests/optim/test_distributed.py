"""Two processes with gloo: DDP, ZeroRedundancyOptimizer, FSDP2, distributed checkpoints."""

from pathlib import Path

import pytest
import torch.distributed

from helpers import worker

SCRIPT = Path(__file__).parents[1] / "helpers" / "distributed_checks.py"
CHECKS = [line[4:].partition("(")[0] for line in SCRIPT.read_text().splitlines() if line.startswith("def check_")]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch has no gloo"
    ),
]


def run_checks(rank, folder):
    from helpers import distributed_checks  # takes long, and torch warns

    distributed_checks.run_all(rank, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Both ranks run all checks once, because starting them takes longer than the checks; what they print."""
    folder = tmp_path_factory.mktemp("distributed")
    worker.in_ranks(2, run_checks, str(folder))
    return [(folder / f"rank-{rank}.txt").read_text() for rank in range(2)]


@pytest.mark.parametrize("check", CHECKS)
def test_two_processes(check, run):
    if f"skipped {check}\n" in run[0]:
        pytest.skip("FSDP2 of this torch does not run without an accelerator")
    assert f"passed {check}\n" in run[0], "\n".join(run)
