"""Set-up of the tests with other frameworks: offline, one thread, in an empty folder."""

import os
import sys
from pathlib import Path

import pytest
import torch

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
os.environ.update(OFFLINE)  # before the frameworks are imported


def _add_torchvision():
    """Find torchvision, which timm needs, also where torch is built without CUDA.

    PyPI's wheel of torchvision is built for CUDA, so that its operators are missing there, and importing it fails. The
    Makefile puts it into a folder of its own; the two operators that it needs at import are declared here.
    """
    folder = Path(sys.prefix) / "torchvision"
    if folder.is_dir():
        sys.path.append(str(folder))
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        pass
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_add_torchvision()


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integrations)


@pytest.fixture(autouse=True)
def quiet_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def local_ray():
    """A Ray of one worker of our own, whatever else runs on this machine."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.tune")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield ray
    ray.shutdown()
