"""A module that ends the process when it is imported."""

import sys

sys.exit(7)
