"""What pytest must know of this folder."""

collect_ignore_glob = [
    "cases.py",
    "distributed_checks.py",
    "deadly.py",
    "reference.py",
    "*/lab_worker.py",
    "*/lens_training.py",
    "*/study_cases.py",
]
