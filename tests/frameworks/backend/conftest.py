"""Tests of dynabound.keras, on the backend that KERAS_BACKEND names."""

import pytest

# Warnings of Keras and its backends about each other, which we cannot fix.
IGNORED = ("ignore:__array__ implementation:DeprecationWarning",)


def pytest_collection_modifyitems(items):
    for item in items:
        for warning in IGNORED:
            item.add_marker(pytest.mark.filterwarnings(warning))
