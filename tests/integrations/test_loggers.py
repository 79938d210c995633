"""TensorBoard, W&B offline, MLflow local and Jupyter: what the lens writes can be read back."""

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
