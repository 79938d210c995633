"""Step time and memory beside other packages: ``python benchmarks/step.py [--help]``, the same as ``dynabound bench``."""

import sys

from dynabound.cli import app

if __name__ == "__main__":
    app(["bench", *sys.argv[1:]])
