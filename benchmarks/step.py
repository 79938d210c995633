"""Step time and memory beside other packages, the same as ``dynabound bench``: ``python benchmarks/step.py --help``."""

import sys

from dynabound.cli import app

if __name__ == "__main__":
    app(["bench", *sys.argv[1:]])
