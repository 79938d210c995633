"""What pytest must know of this folder."""

import os

import hypothesis
import torch

collect_ignore_glob = ["helpers/*", "golden/*"]

# A deadline would be a measurement, and a busy machine is no failure.
hypothesis.settings.register_profile("dynabound", deadline=None)
hypothesis.settings.load_profile("dynabound")

# On a busy machine threads that wait for each other make tests 5 to 40 times slower.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

# By default Ray's workers wait for all other processes of a busy machine.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112


def pytest_collection_modifyitems(items):
    """Ray's tests first: one process runs them all, because they share a cluster, and takes as long as the others."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)
