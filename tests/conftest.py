"""What pytest must know of this folder."""

import os

import hypothesis
import torch

collect_ignore_glob = ["helpers/*", "golden/*"]

# A deadline would be a measurement, and a busy machine is no failure.
hypothesis.settings.register_profile("dynabound", deadline=None)
hypothesis.settings.load_profile("dynabound")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # threads of several workers that wait for each other make tests take five times as long
