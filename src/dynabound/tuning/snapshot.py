"""Restore a model exactly: weights, buffers, gradients, modes, flags and random states."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator, Tensor, nn


class Snapshot:
    """Everything that trials may change, with one copy of the trained parameters and of the buffers.

    Gradients are kept and not copied: a backward pass makes new ones. Parameters that are not trained are not copied
    either.
    """

    def __init__(self, model: nn.Module, trained: Iterable[Tensor], *loaders: Any) -> None:
        trained = list(trained)
        self._slots = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
        changing = {id(tensor): tensor for tensor in (*trained, *(buffer for *_, buffer in self._slots))
                    if tensor is not None}  # fmt: skip
        self._copies = [(tensor, tensor.detach().clone()) for tensor in changing.values()]
        params = {id(param): param for param in (*model.parameters(), *trained)}.values()
        self._params = [(param, param.grad, param.requires_grad) for param in params]
        self._modes = [(module, module.training) for module in model.modules()]
        self._devices = {tensor.device for tensor, _ in self._copies if tensor.device.type not in ("cpu", "meta")}
        self._generators = [(one, one.get_state()) for loader in loaders for one in _generators(loader)]
        self._random = _random_states(self._devices)

    def rewind(self) -> None:
        """Restore weights and buffers, and drop all gradients, for the start of a trial."""
        for module, name, buffer in self._slots:
            module._buffers[name] = buffer
        with torch.no_grad():
            for tensor, copy in self._copies:
                tensor.copy_(copy)
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients of the last step."""
        for param, _, _ in self._params:
            param.grad = None

    def seed(self, number: int) -> None:
        """Seed the generators whose states :meth:`restore` restores."""
        seed(number, self._devices)

    def restore(self) -> None:
        """Restore everything."""
        self.rewind()
        for param, grad, requires_grad in self._params:
            param.requires_grad_(requires_grad)
            param.grad = grad
        for module, training in self._modes:
            module.training = training
        for generator, state in self._generators:
            generator.set_state(state)
        _set_random_states(self._random)


def seed(number: int, devices: Iterable[torch.device]) -> None:
    """Seed the CPU and ``devices``; ``torch.manual_seed`` would seed all accelerators."""
    torch.default_generator.manual_seed(number)
    for device in devices:
        if device.type != "cpu":
            state = torch.Generator(device).manual_seed(number).get_state()
            torch.get_device_module(device).set_rng_state(state, *device_index(device))


def _generators(batches: Any) -> list[Generator]:
    """The random generators that a DataLoader draws from."""
    sampler = getattr(batches, "sampler", None)
    inner = getattr(getattr(batches, "batch_sampler", None), "sampler", None)
    found = [getattr(owner, "generator", None) for owner in (batches, sampler, inner)]
    return list({id(one): one for one in found if isinstance(one, Generator)}.values())


def _random_states(devices: Iterable[torch.device]) -> dict[Any, Any]:
    numpy = sys.modules.get("numpy")
    states: dict[Any, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    for device in devices:
        states[device] = torch.get_device_module(device).get_rng_state(*device_index(device))
    return states


def _set_random_states(states: dict[Any, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    for device, state in states.items():
        if isinstance(device, torch.device):
            torch.get_device_module(device).set_rng_state(state, *device_index(device))


def device_index(device: torch.device) -> tuple[torch.device, ...]:
    """The argument of a device module's functions; without it cuda:1 would use the state of the current device."""
    return () if device.type == "mps" else (device,)  # mps has one device and takes no argument
