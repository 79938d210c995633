"""What is refused before the first process and the first write, in one line."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dynabound.cli import app


@pytest.fixture
def refuse(tmp_path, monkeypatch):
    """Run a command that must be refused with one line and leave nothing behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments):
        before = sorted(tmp_path.rglob("*"))
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 1, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("dynabound: ")
        assert "internal error" not in line
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return call


@pytest.mark.parametrize("command", ["train digits", "tune digits", "tune digits --engine=ray"])
@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim:LBFGS",
        "torch.optim:SparseAdam",
        "pytorch_optimizer:AdaHessian",
        "nomod:C",
        "..:x",
        "helpers.broken:C",
        "helpers.leaves:C",
        "torch.optim:Optimizer",
    ],
)
def test_optimizers_that_cannot_train(refuse, command, optimizer):
    assert optimizer in refuse(*command.split(), f"--optimizer={optimizer}")


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adabound"])
def test_differentiable_steps(refuse, optimizer):
    line = refuse("train", "digits", f"--optimizer={optimizer}", "--opt=differentiable=true")
    assert f"--optimizer {optimizer}: cannot make a step on cpu" in line


def test_capturable_steps_on_a_cpu(refuse):
    assert "capturable" in refuse("train", "digits", "--optimizer=adam", "--opt=capturable=true")


@pytest.mark.parametrize("command", ["train", "tune"])
def test_rates_of_an_optimizer_whose_rates_are_unknown(refuse, command):
    line = refuse(command, "digits", "--rates", "--optimizer=pytorch_optimizer:Lion")
    assert "--rates with --optimizer pytorch_optimizer:Lion: " in line
    assert "register" in line


@pytest.mark.parametrize("device", ["nope", "cuda:7", "meta", "hpu", "privateuseone", "vulkan"])
@pytest.mark.parametrize("command", [["train", "digits"], ["tune", "digits"], ["reproduce", "mnist"]])
def test_devices_that_cannot_compute(refuse, command, device):
    assert f"device='{device}': cannot be used here" in refuse(*command, f"--device={device}")


def test_a_model_that_no_memory_can_hold(refuse):
    assert "not enough memory; use a smaller model" in refuse("train", "digits", f"--hidden={10**13}", "--epochs=1")


@pytest.mark.parametrize(
    "command", [["train", "mnist"], ["tune", "mnist"], ["reproduce", "mnist", "--scale=laptop"], ["data", "list"]]
)
def test_data_folders_that_cannot_be_read(refuse, command, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)  # as from Python 3.14 on: they hide errors
    monkeypatch.setattr(Path, "is_file", os.path.isfile)
    assert "cannot be read (File name too long); give another one" in refuse(*command, f"--data-dir={'x' * 300}")


@pytest.mark.parametrize("command", ["train digits", "tune digits", "reproduce mnist", "reproduce mnist --plan",
                                     "reproduce mnist --dry-run", "runs", "report"])  # fmt: skip
def test_names_that_are_too_long(refuse, command):
    assert "File name too long" in refuse(*command.split(), f"--out={'x' * 300}")


@pytest.mark.parametrize("command", ["tune digits", "reproduce mnist"])
def test_a_ray_that_is_not_there(refuse, command):
    pytest.importorskip("ray", reason="needs Ray: pip install 'dynabound[ray]'")
    assert "no Ray answers" in refuse(*command.split(), "--engine=ray", "--address=127.0.0.1:1")
