"""What is imported when, and what is said where something is missing."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynabound import bounds

FRAMEWORKS = ("torch", "jax", "optax", "keras", "tensorflow", "numpy")


def loaded(code, backend="jax"):
    """The frameworks that a fresh interpreter has loaded after ``code``."""
    code += f"\nimport sys, json; print(json.dumps([name for name in {FRAMEWORKS} if name in sys.modules]))"
    output = subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": backend}, text=True, stderr=subprocess.DEVNULL
    )
    return set(json.loads(output.splitlines()[-1]))


def test_dynabound_loads_no_framework():
    assert loaded("import dynabound, dynabound.bounds; dynabound.__version__; dir(dynabound)") == set()
    assert "torch" in loaded("import dynabound; dynabound.AdaBound")
    assert "torch" in loaded("import dynabound; dynabound.optim.AdaBound")


def test_optax_loads_no_torch():
    code = "import jax.numpy as jnp; from dynabound.optax import *\n"
    code += "tx = adabound(); s = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[1]; effective_lr(s)\n"
    code += "suggest(jnp.ones(2), lambda p, x: (x * p**2).sum(), [jnp.ones(2)] * 5, 100)"
    assert loaded(code) & {"torch", "keras", "tensorflow"} == set()


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_keras_loads_only_its_backend(backend):
    """No more than Keras itself, which for some backends looks at other frameworks too."""
    step = "v = keras.Variable([1.0]); o = {}(); o.build([v]); o.apply([keras.ops.ones(1)])"
    ours = loaded("import keras\nfrom dynabound.keras import AdaBound\n" + step.format("AdaBound"), backend)
    assert ours == loaded("import keras\n" + step.format("keras.optimizers.Adam"), backend)


BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
try: {}
except ImportError as error: print(error)
"""


@pytest.mark.parametrize(
    ("missing", "code", "extras"),
    [
        ("torch", "from dynabound import AdaBound", ["torch", "optax", "keras"]),
        ("torch", "import dynabound; dynabound.AMSBound", ["torch", "optax", "keras"]),
        ("jax", "import dynabound.optax", ["optax"]),
        ("optax", "import dynabound.optax", ["optax"]),
        ("keras", "import dynabound.keras", ["keras"]),
    ],
)
def test_a_missing_framework_is_named_with_its_remedy(missing, code, extras):
    output = subprocess.check_output([sys.executable, "-c", BLOCK.format({missing}, code)], text=True)
    for extra in extras:
        assert f"pip install 'dynabound[{extra}]'" in output


@pytest.mark.parametrize("page", ["optax", "keras"])
def test_every_exported_name_is_documented(page):
    module = importlib.import_module(f"dynabound.{page}")
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    for name in module.__all__:
        assert getattr(module, name).__doc__
        assert name in text, f"dynabound.{page}.{name} is not in docs/{page}.md"


def test_an_unknown_name_is_an_attribute_error():
    import dynabound

    with pytest.raises(AttributeError, match="no attribute 'AdaBond'"):
        dynabound.AdaBond  # noqa: B018


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear", ("constant", 0.5, 2.0)])
def test_the_bounds_of_every_framework(family):
    """Numbers and the arrays of all frameworks, in float64: the same bounds."""
    import jax.numpy as jnp
    import tensorflow as tf
    import torch

    for step in (1, 99, 100, 101, 10**6):
        wanted = bounds.evaluate(family, 0.01, step)
        kinds = [np.float64(step), np.array(float(step)), jnp.asarray(float(step)), torch.tensor(float(step)).double()]
        for t in (*kinds, tf.constant(float(step), tf.float64)):
            found = [float(np.asarray(value)) for value in bounds.evaluate(family, 0.01, t)]
            np.testing.assert_allclose(found, wanted, rtol=1e-14)
