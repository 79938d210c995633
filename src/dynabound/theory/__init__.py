"""The theory lab: the paper's theorems run, measured and drawn. Needs the extra ``lab``."""

from dynabound._extras import need

need("numpy")
need("numba")
