"""Digits trained with torch and with Optax: the same losses. Keras's are in backend/test_keras_contract.py."""

import numpy as np
import pytest

from helpers.framework_training import optax_losses, torch_losses


@pytest.mark.parametrize("kind", ["perceptron", "convolutions"])
def test_the_same_losses(kind):
    wanted = torch_losses(kind)
    assert wanted[-1] < 0.8 * wanted[0]  # it has learned, so that the losses depend on every update
    np.testing.assert_allclose(optax_losses(kind), wanted, rtol=1e-9)
