"""A trainable of Ray Tune, in a module that its workers can import."""

import os
import tempfile
from pathlib import Path

import torch

from dynabound import AdaBound
from helpers.small_task import OPTIONS, make_net, train


def trainable(config):
    """Four epochs with a checkpoint after each; it fails once, after two, if ``config["fails"]`` names a file."""
    from ray import tune

    net = make_net()
    optimizer = AdaBound(net.parameters(), **OPTIONS)
    epoch = 0
    if tune.get_checkpoint():
        with tune.get_checkpoint().as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]
    while epoch < 4:
        train(net, optimizer, 1)
        epoch += 1
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, os.path.join(folder, "state.pt"))
            total = sum(param.double().sum().item() for param in net.parameters())
            tune.report({"total": total, "epoch": epoch}, checkpoint=tune.Checkpoint.from_directory(folder))
        if epoch == 2 and config["fails"] and not os.path.exists(config["fails"]):
            Path(config["fails"]).touch()
            raise RuntimeError("interrupted")
