"""What pytest must know of this folder."""

import hypothesis

collect_ignore_glob = ["helpers/*", "golden/*"]

# A deadline would be a measurement, and a busy machine is no failure.
hypothesis.settings.register_profile("dynabound", deadline=None)
hypothesis.settings.load_profile("dynabound")
