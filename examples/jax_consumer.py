#!/usr/bin/env python3
"""Batches for JAX, without PyTorch: penstock's arrays cross by DLPack, without a copy on a GPU.

If JAX has no GPU, the same loop runs on the host device.
"""

import sys

import numpy as np

import penstock

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    sys.exit(f"This example needs JAX: {error}")

device = "cuda" if jax.default_backend() == "gpu" else "host"

samples = np.random.default_rng(0).normal(size=(4096, 32)).astype(np.float32)
weights = np.linspace(-1, 1, 32, dtype=np.float32)
targets = samples @ weights


@jax.jit
def step(w, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * gradient, loss


loader = penstock.Loader((samples, targets), batch_size=256, shuffle=True, device=device)
w = jnp.zeros(32)
for _ in range(5):
    for x, y in loader:
        w, loss = step(w, jnp.from_dlpack(x), jnp.from_dlpack(y))
        # JAX's streams are its own: the batch goes back when the step that reads it is done.
        loss.block_until_ready()
        del x, y
np.testing.assert_allclose(np.asarray(w), weights, atol=1e-2)
print(f"loss {float(loss):.2e} on {device}")
