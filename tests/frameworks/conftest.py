"""Tests that need JAX, Optax, Keras and TensorFlow; ``make frameworks`` has an environment with all of them."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # parity is held in float64; float32 tests say so
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# Keras has one backend per process: test_keras.py runs this folder in one process for each.
collect_ignore = [] if "KERAS_BACKEND" in os.environ else ["backend"]
