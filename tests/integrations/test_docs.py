"""Every Python block of docs/integrations.md runs, section by section."""

import os
import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
PREAMBLE, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
NEEDS = {
    "Lightning": ["lightning"],
    "Transformers": ["transformers", "accelerate"],
    "Accelerate": ["accelerate"],
    "timm": ["timm"],
    "skorch": ["skorch"],
    "Optuna": ["optuna"],
    "Ray Tune": ["ray.tune"],
    "TensorBoard, W&B, MLflow": ["tensorboard", "wandb", "mlflow"],
    "Notebooks": ["matplotlib"],
}
FILES = {
    "Lightning": ["half.ckpt", "evolution.png", "logs"],
    "Transformers": ["gpt2/checkpoint-4/learning_rates.pt", "gpt2/checkpoint-8/learning_rates.pt"],
    "Accelerate": ["state"],
    "timm": ["checkpoint.pt"],
    "skorch": ["model.pt"],
    "Optuna": ["study.db"],
    "Ray Tune": ["ray/adabound"],
    "TensorBoard, W&B, MLflow": ["runs", "wandb", "mlflow.db"],
}


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run(section):
    name, _, text = section.partition("\n")
    for package in NEEDS[name]:
        pytest.importorskip(package)
    namespace = {"__name__": "__main__"}
    for code in (*blocks(PREAMBLE), *blocks(text)):
        exec(compile(code, f"docs/integrations.md, {name}", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("section", SECTIONS, ids=[section.partition("\n")[0] for section in SECTIONS])
def test_the_examples_run(section, request):
    if section.startswith("Ray"):
        request.getfixturevalue("local_ray")
    namespace = run(section)
    for file in FILES.get(section.partition("\n")[0], []):
        assert os.path.exists(file), file
    lens = namespace.get("lens")
    assert lens is None or len(lens.steps) >= 2
    if section.startswith("Optuna"):
        assert len(namespace["study"].trials) == 6
    if section.startswith("Ray"):
        assert len(namespace["results"]) == 2
        assert not namespace["results"].errors


def test_every_framework_has_an_example():
    assert [section.partition("\n")[0] for section in SECTIONS] == list(NEEDS)
    assert all(blocks(section) for section in SECTIONS)
    assert torch.get_num_threads() == 1
