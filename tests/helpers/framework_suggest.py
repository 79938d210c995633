"""One problem for suggest in three frameworks: a perceptron on digits, with the same weights and batches."""

from helpers.framework_training import batches, weights

STEPS = 200


def problem():
    """The initial weights, and (images, one-hot labels) for each step."""
    return weights("perceptron"), [(images.reshape(len(images), -1), labels) for images, labels in batches()]


def torch_suggestion(**options):
    """By ``dynabound.suggest``, in float64."""
    import torch

    from dynabound import suggest

    start, data = problem()
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList([torch.tensor(weight) for weight in start])

    def loss(model, batch):
        first, shift, second, bias = model.weights
        images, labels = map(torch.tensor, batch)
        logits = (images @ first + shift).relu() @ second + bias
        return -(labels * logits.log_softmax(1)).sum(1).mean()

    return suggest(model, loss, data, STEPS, **options)


def differ(one, other):
    """The numbers of two suggestions that differ by a larger factor than either says that they are uncertain by."""
    ratios = {name: getattr(one, name) / getattr(other, name) for name in ("lr", "final_lr", "gamma")}
    rounding = 1.01  # numbers are rounded to three digits
    return {
        name: ratio
        for name, ratio in ratios.items()
        if max(ratio, 1 / ratio) > rounding * max(one.spread[name], other.spread[name])
    }
