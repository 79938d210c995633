"""The theory lab: the paper's theorems, simulated, measured and drawn. Needs the extra ``theory``."""

from dynabound._extras import need

need("numpy", "theory")
