"""AdaBound and AMSBound as Keras 3 optimizers, on the TensorFlow, JAX and torch backends.

Loads Keras and its configured backend. Import this module before ``keras.saving.load_model``.
"""

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"dynabound.keras needs {error.name}: pip install 'dynabound[keras]' and the backend, "
        "one of tensorflow, jax and torch, that KERAS_BACKEND names",
        name=error.name,
    ) from error

from dynabound.keras.adabound import AdaBound, AMSBound
from dynabound.keras.suggest import suggest

__all__ = ["AMSBound", "AdaBound", "suggest"]
