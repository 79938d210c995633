"""A module that fails when it is imported."""

raise RuntimeError("first line\nsecond line")
