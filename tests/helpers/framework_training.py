"""One training in three frameworks: the same weights, batches and losses, in float64."""

import numpy as np
import sklearn.datasets

STEPS, BATCH = 100, 32
OPTIONS = dict(lr=5e-3, final_lr=0.05, gamma=0.02)


def batches():
    """Digits, scaled to [0, 1], as images of 8×8, and one-hot labels."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8) / 16.0, np.eye(10)[labels]
    order = np.random.default_rng(0).permutation(len(images))
    for step in range(STEPS):
        chosen = order[(step * BATCH + np.arange(BATCH)) % len(order)]
        yield images[chosen], labels[chosen]


def weights(kind):
    """Dense kernels as (inputs, outputs), convolutions as (height, width, inputs, outputs), biases."""
    shapes = {
        "perceptron": [(64, 32), (32,), (32, 10), (10,)],
        "convolutions": [(3, 3, 1, 8), (8,), (3, 3, 8, 16), (16,), (16, 10), (10,)],
    }[kind]
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape) / np.sqrt(max(1, np.prod(shape[:-1]))) for shape in shapes]


def torch_losses(kind):
    """By ``dynabound.AdaBound``."""
    import torch
    import torch.nn.functional as F

    from dynabound import AdaBound

    params = [torch.tensor(weight, requires_grad=True) for weight in weights(kind)]
    optimizer = AdaBound(params, **OPTIONS)

    def logits(images):
        *first, kernel, bias = params
        x = torch.tensor(images)
        if kind == "perceptron":
            x = x.flatten(1).matmul(first[0]).add(first[1]).relu()
        else:
            x = x[:, None]
            for weight, shift in zip(first[::2], first[1::2], strict=True):
                x = F.conv2d(x, weight.permute(3, 2, 0, 1), shift).relu()
            x = x.mean((2, 3))
        return x @ kernel + bias

    losses = []
    for images, labels in batches():
        optimizer.zero_grad()
        loss = -(torch.tensor(labels) * logits(images).log_softmax(1)).sum(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def optax_losses(kind):
    """By ``dynabound.optax.adabound``."""
    import jax
    import jax.numpy as jnp
    import optax

    from dynabound.optax import adabound

    def loss(params, images, labels):
        *first, kernel, bias = params
        if kind == "perceptron":
            x = jax.nn.relu(images.reshape(len(images), -1) @ first[0] + first[1])
        else:
            x = images[..., None]
            for weight, shift in zip(first[::2], first[1::2], strict=True):
                layout = ("NHWC", "HWIO", "NHWC")
                x = jax.nn.relu(
                    jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=layout) + shift
                )
            x = x.mean((1, 2))
        return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(x @ kernel + bias), axis=1))

    tx = adabound(OPTIONS["lr"], final_learning_rate=OPTIONS["final_lr"], gamma=OPTIONS["gamma"])

    def step(carry, batch):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    params = [jnp.asarray(weight) for weight in weights(kind)]
    stacked = tuple(jnp.stack(list(part)) for part in zip(*batches(), strict=True))
    return jax.jit(lambda: jax.lax.scan(step, (params, tx.init(params)), stacked)[1])().tolist()


def keras_losses(kind):
    """By ``dynabound.keras.AdaBound`` in ``train_on_batch``, in floatx; set it to float64."""
    import keras
    from keras import layers

    from dynabound.keras import AdaBound

    if kind == "perceptron":
        first = [layers.Flatten(), layers.Dense(32, activation="relu")]
    else:
        first = [layers.Conv2D(8, 3, activation="relu"), layers.Conv2D(16, 3, activation="relu")]
        first.append(layers.GlobalAveragePooling2D())
    model = keras.Sequential([layers.Input((8, 8, 1)), *first, layers.Dense(10)])
    model.set_weights(weights(kind))
    optimizer = AdaBound(OPTIONS["lr"], final_learning_rate=OPTIONS["final_lr"], gamma=OPTIONS["gamma"])
    model.compile(optimizer=optimizer, loss=keras.losses.CategoricalCrossentropy(from_logits=True))
    losses = []
    for images, labels in batches():
        model.reset_metrics()  # train_on_batch returns a running mean
        losses.append(float(model.train_on_batch(images[..., None], labels)))
    return losses
