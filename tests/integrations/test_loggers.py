"""TensorBoard, W&B offline, MLflow local and Jupyter: what the lens writes can be read back."""

import base64
from pathlib import Path

import pytest

from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from dynabound.lens.forecast import forecast
from helpers.small_task import OPTIONS, make_net, train


def record(**options):
    net = make_net()
    optimizer = AdaBound(net.parameters(), **OPTIONS)
    with LearningRateLens(optimizer, net, every=2, **options) as lens:
        train(net, optimizer, 2)
    return lens


def test_tensorboard_has_every_number():
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    lens = record()
    with SummaryWriter("runs") as writer:
        lens.to_tensorboard(writer)
        writer.add_figure("funnel", lens.funnel(), close=False)
    events = EventAccumulator("runs")
    events.Reload()
    assert len(events.Tags()["scalars"]) == 4 * len(lens.columns)
    for column in ("lower", "upper", "median"):
        points = events.Scalars(f"learning_rate/0.weight/{column}")
        assert [point.step for point in points] == lens.steps
        assert [point.value for point in points] == pytest.approx(lens.series("0.weight", column).tolist())
    assert events.Tags()["images"] == ["funnel"]


def test_wandb_takes_numbers_and_figures():
    wandb = pytest.importorskip("wandb")
    # An absolute path: W&B writes from a process that an earlier test may have started in another folder.
    run = wandb.init(project="adabound", mode="offline", dir=Path.cwd())
    lens = record(on_look=lambda step, rows: run.log({name: row["median"] for name, row in rows.items()}, step=step))
    for figure in (lens.heatmap(), lens.evolution(), lens.funnel(), forecast().figure()):
        image = wandb.Image(figure)
        assert image.image.size == tuple(int(side) for side in figure.get_size_inches() * figure.dpi)
    run.log({"funnel": image})  # ends the last step, so that it counts
    assert run.summary["2.bias"] == lens.latest()["2.bias"]["median"]
    run.finish()
    assert list(Path("wandb").rglob("*.png"))
    assert list(Path("wandb").rglob("*.wandb"))


def test_mlflow_keeps_numbers_and_figures():
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    with mlflow.start_run() as run:
        lens = record(
            on_look=lambda step, rows: mlflow.log_metrics(
                {name: row["median"] for name, row in rows.items()}, step=step
            )
        )
        mlflow.log_figure(lens.funnel(), "funnel.png")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "0.weight")
    assert [metric.step for metric in history] == lens.steps
    assert [metric.value for metric in history] == lens.series("0.weight", "median").tolist()
    path = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="funnel.png"))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_pandas_reads_records():
    pandas = pytest.importorskip("pandas")
    lens = record()
    table = pandas.DataFrame(lens.records()).pivot(index="step", columns="parameter", values="median")
    assert table["2.weight"].tolist() == lens.series("2.weight", "median").tolist()


TASK = """
from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from helpers.small_task import OPTIONS, make_net, train

def record():
    net = make_net()
    optimizer = AdaBound(net.parameters(), **OPTIONS)
    with LearningRateLens(optimizer, net, every=2) as lens:
        train(net, optimizer, 2)
    return lens
"""
CELLS = [
    "from notebook_task import record\nlens = record()",
    "lens",
    "lens.heatmap()",
    "lens.evolution()",
    "lens.funnel()",
    "from dynabound.lens.forecast import forecast\nforecast()",
    "forecast().figure()",
    "from dynabound.bounds import certificate\ncertificate()",
]


def test_a_notebook_shows_tables_and_figures():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    Path("notebook_task.py").write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n" + TASK)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "."}}).execute()
    shown = [cell["outputs"][0]["data"] for cell in notebook.cells[1:]]
    kinds = ["text/html" if "text/html" in data else "image/png" if "image/png" in data else "text" for data in shown]
    assert kinds == ["text/html", *["image/png"] * 3, "text/html", "image/png", "text/html"]
    assert all(len(cell["outputs"]) == 1 for cell in notebook.cells[1:]), "nothing is shown twice"
    assert "0.weight" in shown[0]["text/html"]
    for data in shown:
        if "image/png" in data:
            assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
