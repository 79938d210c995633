"""Accelerate, timm and skorch: training, checkpoint and resume, bit for bit."""

import copy
import pickle

import pytest
import torch
from torch import nn

from dynabound import AdaBound, AdaBoundW, AMSBound
from dynabound.lens import LearningRateLens, effective_lr
from helpers.small_task import OPTIONS, make_data, make_loader, make_net, train, weights


def test_accelerate_resumes_bit_for_bit():
    accelerate = pytest.importorskip("accelerate")

    def start():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True)
        net = make_net()
        optimizer = AdaBound(net.parameters(), **OPTIONS)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
        prepared = accelerator.prepare(net, optimizer, make_loader(), schedule)
        lens = LearningRateLens(prepared[1], prepared[0], every=2)
        accelerator.register_for_checkpointing(lens)
        return accelerator, *prepared, lens

    def run(accelerator, model, optimizer, loader, schedule, lens, epochs):
        with lens:
            for _ in range(epochs):
                train(model, optimizer, 1, accelerator.backward, loader)
                schedule.step()
        return model, lens

    expected, whole = run(*start(), epochs=4)
    half = start()
    run(*half, epochs=2)
    half[0].save_state("state")
    rest = start()
    rest[0].load_state("state")
    model, lens = run(*rest, epochs=2)
    assert weights(model) == weights(expected)
    assert lens.records() == whole.records()
    optimizer = half[2]
    assert type(optimizer).__name__ == "AcceleratedOptimizer"
    weight = next(half[1].parameters())
    assert torch.equal(effective_lr(optimizer, weight), effective_lr(optimizer.optimizer, weight))


@pytest.mark.parametrize("name", ["adabound", "amsbound", "adaboundw", "lookahead_adabound"])
def test_timm_creates_and_resumes(name):
    pytest.importorskip("timm")
    from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers

    from dynabound.integrations.timm import register

    register()
    register()  # without a warning
    assert {"adabound", "amsbound", "adaboundw"} <= set(list_optimizers())
    assert get_optimizer_info("amsbound").opt_class is AMSBound

    def start():
        net = make_net()
        return net, create_optimizer_v2(net, name, weight_decay=0.01, betas=(0.8, 0.99), **OPTIONS)

    net, optimizer = start()
    with LearningRateLens(optimizer, net, every=2) as lens:
        train(net, optimizer, 4)
    inner = getattr(optimizer, "_base_optimizer", optimizer)
    assert type(inner) is {"amsbound": AMSBound, "adaboundw": AdaBoundW}.get(name, AdaBound)
    assert [group["weight_decay"] for group in inner.param_groups] == [0.0, 0.01]  # timm: not for biases
    assert lens.steps == [1, 3, 5, 7, 9, 11, 12]
    half, half_optimizer = start()
    train(half, half_optimizer, 2)
    torch.save([half.state_dict(), half_optimizer.state_dict()], "half.pt")
    rest, rest_optimizer = start()
    state = torch.load("half.pt", weights_only=True)
    rest.load_state_dict(state[0])
    rest_optimizer.load_state_dict(state[1])
    train(rest, rest_optimizer, 2)
    assert weights(rest) == weights(net)


def test_skorch_resumes_and_can_be_pickled():
    skorch = pytest.importorskip("skorch")

    class Lens(skorch.callbacks.Callback):
        def on_train_begin(self, net, **_):
            self.lens_ = LearningRateLens(net.optimizer_, net.module_, every=2).attach()

        def on_train_end(self, net, **_):
            self.lens_.detach()

    globals()["Lens"] = Lens  # pickle finds a class by its path
    Lens.__qualname__ = "Lens"
    inputs, labels = (tensor.numpy() for tensor in make_data())

    def start(epochs):
        return skorch.NeuralNetClassifier(
            make_net(), criterion=nn.CrossEntropyLoss, optimizer=AdaBound, optimizer__final_lr=0.1,
            optimizer__gamma=0.05, lr=0.01, max_epochs=epochs, batch_size=16, train_split=None, verbose=0,
            iterator_train__shuffle=False, callbacks=[("lens", Lens())],
        )  # fmt: skip

    expected = start(4).fit(inputs, labels)
    half = start(2).fit(inputs, labels)
    half.save_params(f_params="model.pt", f_optimizer="optimizer.pt")
    rest = start(2).initialize()
    rest.load_params(f_params="model.pt", f_optimizer="optimizer.pt")
    rest.partial_fit(inputs, labels)
    assert weights(rest.module_) == weights(expected.module_)
    for again in (pickle.loads(pickle.dumps(rest)), copy.deepcopy(rest)):
        lens = dict(again.callbacks_)["lens"].lens_
        assert lens.steps == [7, 9, 11, 12]
        assert weights(again.module_) == weights(expected.module_)
