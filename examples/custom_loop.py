"""A variational autoencoder in a custom training loop: memfit.gradients instead of a tape."""

import os

import memfit

memfit.configure(memory="400MiB")

import keras
import numpy as np

SMALL = "EXAMPLE_SMALL" in os.environ
keras.utils.set_random_seed(0)
layers, ops = keras.layers, keras.ops
WIDTH = 256 if SMALL else 2048

encoder = keras.Sequential([keras.Input((64,)), layers.Dense(WIDTH, "relu"), layers.Dense(16)])
decoder = keras.Sequential([keras.Input((8,)), layers.Dense(WIDTH, "relu"), layers.Dense(64)])
weights = [*encoder.trainable_variables, *decoder.trainable_variables]
seed = keras.random.SeedGenerator(1)  # keras.random, so that a step can be repeated with the same numbers
optimizer = keras.optimizers.Adam(1e-3)


@memfit.gradients(weights, memory=None if SMALL else "40MiB")  # None: only the guard, no plan
def loss(x):
    """The negative ELBO of a batch: a mean over its samples, so it can be computed in micro-batches."""
    mean, log_var = ops.split(encoder(x, training=True), 2, axis=1)
    z = mean + ops.exp(log_var / 2) * keras.random.normal(ops.shape(mean), seed=seed)
    error = ops.sum(ops.square(x - decoder(z, training=True)), axis=1)
    divergence = 0.5 * ops.sum(ops.square(mean) + ops.exp(log_var) - log_var - 1, axis=1)
    return ops.mean(error + divergence)


data = np.random.default_rng(0).normal(size=(4 * 1024, 64)).astype("float32")
for epoch in range(2):
    for start in range(0, len(data), 1024):
        value, gradients = loss(data[start : start + 1024])
        optimizer.apply(gradients, weights)
    print(f"epoch {epoch + 1}: loss {float(value):.2f}")

print(loss.plan)  # what was changed so that it fits
print(loss.memory)  # predicted and measured peak, and what happened
