"""The theory lab: the paper's theorems played, measured and drawn. Needs the extra ``lab``."""

try:
    import numba as _numba  # noqa: F401
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError as error:
    message = f"dynabound.theory needs {error.name}: pip install 'dynabound[lab]'"
    raise ModuleNotFoundError(message, name=error.name) from error
