"""One thread: bits must not depend on how busy the machine is, nor tests wait for threads that it has no core for."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
