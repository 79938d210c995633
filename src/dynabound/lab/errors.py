"""What the laboratory raises when the fault is not its own."""

__all__ = ["LabError"]


class LabError(Exception):
    """A fault that its reader can repair: one line that names the thing, what was expected, and the remedy."""
