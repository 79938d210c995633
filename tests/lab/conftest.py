"""One thread: bits must not depend on how busy the machine is, nor tests wait for threads that it has no core for."""

import pytest
import torch

from dynabound.lab.store import Store
from helpers import tiny_studies


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny(monkeypatch):
    """The study of MNIST on a tiny perceptron."""
    return tiny_studies.make_tiny(monkeypatch)


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A folder with the finished runs of :func:`tiny`, which tests only read."""
    out = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as monkeypatch:
        study = tiny_studies.make_tiny(monkeypatch)
        tiny_studies.complete([study], Store(out / "runs"), tiny_studies.InProcess())
    return out
