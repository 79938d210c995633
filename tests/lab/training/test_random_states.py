"""Random states of accelerators, without having one."""

import pytest
import torch

from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.train import train
from dynabound.lab.training import loop


class Accelerator:
    """What ``torch.cuda`` does with random states; the current device is 0."""

    def __init__(self, size=16):
        self.states = [torch.full((size,), place, dtype=torch.uint8) for place in range(2)]

    def get_rng_state(self, device="cuda:0"):
        return self.states[torch.device(device).index].clone()

    def set_rng_state(self, state, device="cuda:0"):
        self.states[torch.device(device).index] = state.clone()


@pytest.fixture
def accelerator(monkeypatch):
    made = Accelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: made)
    monkeypatch.setattr(torch, "cuda", made)
    return made


def test_the_state_is_that_of_the_device_that_trains(accelerator):
    """The current device may be another one: a study gives every worker a GPU of its own."""
    device = torch.device("cuda:1")
    with loop.random_states_kept(device):
        states = loop._random_states(device)
        assert torch.equal(states[1], torch.ones(16, dtype=torch.uint8))
        loop._set_random_states(device, [states[0], states[1] + 6])
        assert [int(state[0]) for state in accelerator.states] == [0, 7]
    assert [int(state[0]) for state in accelerator.states] == [0, 1]


@pytest.mark.parametrize("saved", [[], [torch.ones(5056, dtype=torch.uint8)]], ids=["cpu", "mps"])
def test_a_run_goes_on_on_another_kind_of_device(accelerator, saved):
    loop._set_random_states(torch.device("cuda:1"), [torch.get_rng_state(), *saved])
    assert [int(state[0]) for state in accelerator.states] == [0, 1]


def test_devices_that_do_not_train_are_not_seeded(tmp_path, monkeypatch):
    """``torch.manual_seed`` would seed every accelerator, and nobody would put those back."""
    monkeypatch.setattr(torch, "manual_seed", lambda number: pytest.fail("seeded all devices"))
    before = torch.get_rng_state()
    train(RunSpec("digits", hidden=4, epochs=1, examples=64), Store(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
