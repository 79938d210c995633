"""What pytest must know of this folder."""

import hypothesis
import torch

collect_ignore_glob = ["helpers/*", "golden/*"]

# A deadline would be a measurement, and a busy machine is no failure.
hypothesis.settings.register_profile("dynabound", deadline=None)
hypothesis.settings.load_profile("dynabound")

torch.set_num_threads(
    1
)  # threads that wait for each other on a busy machine make tests take five times as long, or forty
