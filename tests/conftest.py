"""What pytest must know of this folder."""

collect_ignore = ["cases.py", "distributed_checks.py", "reference.py"]  # support, not tests
