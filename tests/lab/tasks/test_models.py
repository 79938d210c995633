import math

import pytest
import torch
import torch.nn.functional as F

from dynabound.lab.tasks.models import DenseNet121, LanguageModel, Perceptron, ResNet34


def parameters(model):
    return sum(param.numel() for param in model.parameters())


def lstm_parameters(vocabulary, hidden, layers):
    return 2 * vocabulary * hidden + vocabulary + layers * (8 * hidden * hidden + 8 * hidden)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda: Perceptron(784, 100), 784 * 100 + 100 + 100 * 10 + 10),
        (ResNet34, 21_282_122),
        (DenseNet121, 6_956_298),
        *((lambda n=n: LanguageModel(1000, 20, n), lstm_parameters(1000, 20, n)) for n in (1, 2, 3)),
    ],
)
def test_number_of_parameters(make, number):
    with torch.device("meta"):
        assert parameters(make()) == number


@pytest.mark.parametrize("model", [ResNet34, DenseNet121])
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (1, 8)])
def test_images_of_every_task_become_logits(model, channels, size):
    with torch.device("meta"):
        logits = model(classes=7, channels=channels, width=1 / 8)(torch.zeros(2, channels, size, size))
    assert logits.shape == (2, 7)


@pytest.mark.parametrize("model", [ResNet34, DenseNet121])
def test_width_scales_the_parameters_by_its_square(model):
    with torch.device("meta"):
        ratio = parameters(model(width=0.5)) / parameters(model(width=1.0))
    assert ratio == pytest.approx(0.25, rel=0.03)


def test_resnet_and_densenet_have_as_many_layers_as_their_names_say():
    for model, layers in ((ResNet34, 34), (DenseNet121, 121)):
        with torch.device("meta"):
            modules = list(model().modules())
        weighted = [m for m in modules if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
        shortcuts = 3 if model is ResNet34 else 0  # projections are not counted
        assert len(weighted) - shortcuts == layers


@pytest.mark.parametrize("model", [ResNet34, DenseNet121])
def test_convolutions_start_as_he_says(model):
    torch.manual_seed(0)
    for module in model(width=0.25).modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 4000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)


def test_lstm_starts_as_zaremba_says():
    torch.manual_seed(0)
    for weight in LanguageModel(100, 200, 2).parameters():
        assert 0.09 < weight.abs().max().item() <= 0.1


IMAGE_MODELS = {
    "perceptron": lambda: Perceptron(64, 32),
    "resnet34": lambda: ResNet34(channels=1, width=1 / 16),
    "densenet121": lambda: DenseNet121(channels=1, width=1 / 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", IMAGE_MODELS.values(), ids=IMAGE_MODELS)
def test_overfits_one_batch(make):
    torch.manual_seed(0)
    model, x, y = make(), torch.randn(16, 1, 8, 8), torch.randint(10, (16,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_language_model_overfits_one_batch(layers):
    torch.manual_seed(0)
    model = LanguageModel(20, 32, layers, dropout=0.0)
    words = torch.randint(20, (9, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(200):
        logits, _ = model(words[:-1], model.start(4))
        loss = F.cross_entropy(logits.flatten(0, 1), words[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_language_model_carries_its_state():
    torch.manual_seed(0)
    model = LanguageModel(30, 8, 2).eval()
    words = torch.randint(30, (10, 3))
    whole, last = model(words, model.start(3))
    first, carry = model(words[:6], model.start(3))
    second, end = model(words[6:], carry)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(end, last)
    fresh, _ = model(words[6:], model.start(3))
    assert not torch.allclose(fresh, second)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, words = LanguageModel(30, 8, 1, dropout=0.5), torch.randint(30, (5, 2))
    carry = model.start(2)
    assert not torch.equal(model(words, carry)[0], model(words, carry)[0])
    model.eval()
    assert torch.equal(model(words, carry)[0], model(words, carry)[0])
