"""The lab's errors: each is one line that says what is wrong, what is allowed, and what to do."""


class LabError(Exception):
    """An error that the user can correct; the command line prints it without a traceback."""


class StoreError(LabError):
    """A run folder cannot be read, written or locked."""


class LockedError(StoreError):
    """Another process trains the run."""


class DamagedError(Exception):
    """A file has changed since it was written. Handled inside the lab: an older file is used instead."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; of an OSError without the file's name."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.partition("\n")[0][:300]
