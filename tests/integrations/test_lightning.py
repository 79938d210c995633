import csv
import functools
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import dynabound
from dynabound import AdaBound
from dynabound.lens import LearningRateLens, effective_lr
from helpers.small_task import OPTIONS, learnable_loader, make_loader, make_net, train, weights

pl = pytest.importorskip("lightning.pytorch")
from dynabound.integrations.lightning import LensCallback, suggest  # noqa: E402


class Classifier(pl.LightningModule):
    def __init__(self, two_optimizers=False):
        super().__init__()
        self.net = make_net()
        self.two_optimizers = two_optimizers
        self.automatic_optimization = not two_optimizers

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        if not self.two_optimizers:
            return loss
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return None

    def configure_optimizers(self):
        if self.two_optimizers:
            return [AdaBound(self.net[0].parameters()), torch.optim.Adam(self.net[2].parameters())]
        optimizer = AdaBound(self.parameters(), **OPTIONS)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


def fit(epochs, callback, module=None, logger=False, **options):
    module = module or Classifier()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[callback],
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, make_loader(), **options)
    return trainer, module


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit():
    whole, half, rest = (LensCallback(every=2) for _ in range(3))
    _, expected = fit(5, whole)
    trainer, _ = fit(2, half)
    trainer.save_checkpoint("half.ckpt")
    _, resumed = fit(5, rest, ckpt_path="half.ckpt")
    assert weights(resumed) == weights(expected)
    assert rest.lens.records() == whole.lens.records()
    assert whole.lens.steps == [1, 3, 5, 7, 9, 11, 13, 15]
    assert half.lens.steps == [1, 3, 5, 6]


def test_a_new_fit_after_a_resumed_one_starts_a_new_record():
    trainer, _ = fit(2, LensCallback(every=2))
    trainer.save_checkpoint("half.ckpt")
    callback = LensCallback(every=2)
    fit(3, callback, ckpt_path="half.ckpt")
    assert callback.lens.steps == [1, 3, 5, 7, 9]
    fit(1, callback)
    assert callback.lens.steps == [1, 3]


def test_the_loggers_get_the_rates():
    seen = []
    callback = LensCallback(every=2, log=("min", "max"), on_look=lambda step, record: seen.append(step))
    fit(2, callback, logger=pl.loggers.CSVLogger("logs"))
    (path,) = Path("logs").rglob("metrics.csv")
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if row.get("learning_rate/net.0.weight/max")]
    assert [int(row["step"]) for row in rows] == callback.lens.steps == seen
    written = [float(row["learning_rate/net.0.weight/max"]) for row in rows]
    assert written == pytest.approx(callback.lens.series("net.0.weight", "max").tolist())
    assert "learning_rate/net.0.weight/median" not in rows[0]


@pytest.mark.parametrize("log", ["median", None])
def test_columns_to_log_are_a_sequence(log):
    with pytest.raises(TypeError, match=rf"log={log!r}: must be a sequence of columns"):
        LensCallback(log=log)


def test_unknown_columns_to_log_are_refused_before_the_first_step():
    callback = LensCallback(log=("min", "q10"))
    with pytest.raises(ValueError, match=r"log='q10': must be one of min, q5, q25, .*inf"):
        fit(1, callback)
    assert callback.lens.steps == []
    fit(1, LensCallback(log=["q10"], make_lens=functools.partial(LearningRateLens, quantiles=(0.1,))))


def test_every_optimizer_has_a_lens():
    callback = LensCallback(every=1, make_lens=functools.partial(LearningRateLens, quantiles=(0.9,)))
    with pytest.raises(RuntimeError, match=r"training has not begun: pass the callback to a Trainer, and call fit\(\)"):
        callback.lens  # noqa: B018
    _, module = fit(1, callback, Classifier(two_optimizers=True))
    assert [lens.optimizer_name for lens in callback.lenses] == ["AdaBound", "Adam"]
    assert [list(lens.shapes) for lens in callback.lenses] == [
        ["net.0.weight", "net.0.bias"],
        ["net.2.weight", "net.2.bias"],
    ]
    assert callback.lens.columns[:4] == ("min", "median", "q90", "max")
    wrapped = module.optimizers()[0]
    assert type(wrapped).__name__ != "AdaBound"
    weight = module.net[0].weight
    assert torch.equal(effective_lr(wrapped, weight), effective_lr(wrapped.optimizer, weight))


def test_fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)

    def start():
        net = make_net()
        model, optimizer = fabric.setup(net, AdaBound(net.parameters(), **OPTIONS))
        return model, optimizer, LearningRateLens(optimizer, model, every=2)

    model, optimizer, lens = start()
    with lens:
        train(model, optimizer, 4, fabric.backward)
    expected = weights(model)
    assert list(lens.shapes) == ["0.weight", "0.bias", "2.weight", "2.bias"]

    model, optimizer, half = start()
    with half:
        train(model, optimizer, 2, fabric.backward)
    fabric.save("state", {"model": model, "optimizer": optimizer, "lens": half.state_dict()})
    model, optimizer, rest = start()
    rest.load_state_dict(fabric.load("state", {"model": model, "optimizer": optimizer})["lens"])
    with rest:
        train(model, optimizer, 2, fabric.backward)
    assert weights(model) == expected
    assert rest.records() == lens.records()
    assert os.path.exists("state")


class Logging(Classifier):
    """Returns a dictionary, and logs."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("loss", loss)
        return {"loss": loss}


class Short(Classifier):
    """Does without the index of the batch."""

    def training_step(self, batch):
        return super().training_step(batch, 0)


@pytest.mark.parametrize("kind", [Classifier, Logging, Short])
def test_suggest_is_that_of_torch_and_leaves_the_module_alone(kind):
    module = kind()
    before = weights(module)
    found = suggest(module, learnable_loader(), 200, clip=1.0, amsbound=True)
    assert weights(module) == before
    wanted = dynabound.suggest(
        make_net(),
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]),
        learnable_loader(),
        200,
        clip=1.0,
        amsbound=True,
    )
    assert found == wanted


def test_a_fit_after_suggest_is_the_same():
    module = Classifier()
    suggest(module, learnable_loader(), 200)
    fit(2, pl.Callback(), module)
    _, plain = fit(2, pl.Callback())
    assert weights(module) == weights(plain)


def test_suggest_needs_automatic_optimization():
    with pytest.raises(ValueError, match=r"call dynabound\.suggest with a loss function"):
        suggest(Classifier(two_optimizers=True), learnable_loader(), 200)
    with pytest.raises(TypeError, match="suggest takes the options betas"):
        suggest(Classifier(), learnable_loader(), 200, beta=0.9)
