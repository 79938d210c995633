"""The laboratory's errors: each is one line that says what is wrong, what is allowed, and what to do."""


class LabError(Exception):
    """A fault that the user can repair; the command line prints it without a traceback."""


class StoreError(LabError):
    """A run folder cannot be read, written or locked."""


class LockedError(StoreError):
    """Another process trains the run."""


class DamagedError(Exception):
    """A file is not what was written. Handled inside the laboratory: an older file takes its place."""
