"""What pytest must know of this folder."""

collect_ignore_glob = ["cases.py", "distributed_checks.py", "reference.py", "*/lab_worker.py", "*/lens_training.py"]
