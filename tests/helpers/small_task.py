"""A task of a few milliseconds for the tests with other frameworks, and the comparison of two runs."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = dict(lr=1e-2, final_lr=0.1, gamma=0.05)


def make_data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(48, 8, generator=generator), torch.randint(3, (48,), generator=generator)


def make_loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*make_data()), batch_size=16)


def learnable_loader():
    """Labels that follow from the inputs, in eight batches."""
    inputs = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1)),
        batch_size=16,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )


def make_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def train(model, optimizer, epochs, backward=torch.Tensor.backward, loader=None):
    for _ in range(epochs):
        for batch, target in loader or make_loader():
            optimizer.zero_grad()
            backward(F.cross_entropy(model(batch), target))
            optimizer.step()


def weights(model):
    return {name: param.tolist() for name, param in model.named_parameters()}
