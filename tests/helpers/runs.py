"""What tests ask of stored runs, and ways to damage their files."""

import pytest
import torch

DAMAGES = {
    "empty": lambda body: b"",
    "truncated": lambda body: body[: len(body) // 2],
    "one bit": lambda body: body[:-100] + bytes([body[-100] ^ 1]) + body[-99:],
    "text": lambda body: b"hello",
}


def without_seconds(metrics):
    return [{key: value for key, value in line.items() if key not in ("seconds", "cpu_seconds")} for line in metrics]


def assert_same_run(run, other):
    assert run.status() == other.status()
    assert run.status()["state"] == "finished"
    assert without_seconds(run.metrics()) == without_seconds(other.metrics())
    ours, theirs = run.load_checkpoint(), other.load_checkpoint()
    torch.testing.assert_close(ours["model"], theirs["model"], rtol=0, atol=0)
    torch.testing.assert_close(ours["optimizer"]["state"], theirs["optimizer"]["state"], rtol=0, atol=0)
    assert ours["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    torch.testing.assert_close(ours["ranks"][0]["random"], theirs["ranks"][0]["random"], rtol=0, atol=0)


def assert_follows(run, expected):
    for line, other in zip(run.metrics(), expected.metrics(), strict=True):
        for key in ("train_loss", "test_loss"):
            assert line[key] == pytest.approx(other[key], rel=1e-5)
    weights, others = run.load_checkpoint()["model"], expected.load_checkpoint()["model"]
    torch.testing.assert_close(weights, others, rtol=1e-4, atol=1e-5)
