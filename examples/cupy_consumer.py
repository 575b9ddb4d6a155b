#!/usr/bin/env python3
"""Batches for CuPy, without PyTorch: penstock's arrays cross by DLPack, without a copy."""

import sys

import numpy as np

import penstock

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except (ImportError, RuntimeError) as error:
    sys.exit(f"This example needs CuPy and a GPU: {error}")

samples = np.random.default_rng(0).integers(0, 256, (4096, 28 * 28), dtype=np.uint8)
labels = np.arange(4096, dtype=np.int32) % 10

total = cupy.zeros((), dtype=cupy.int64)
for batch in penstock.feed(np.array_split(samples, 16), device="cuda"):
    # CuPy's current stream waits for the transfer; the host does not.
    total += cupy.from_dlpack(batch).sum(dtype=cupy.int64)
assert int(total) == int(samples.sum(dtype=np.int64))

loader = penstock.Loader((samples, labels), batch_size=256, shuffle=True, device="cuda", to="float32", scale=1 / 255)
sums = cupy.zeros(10)
for x, y in loader:
    x, y = cupy.from_dlpack(x), cupy.from_dlpack(y)
    cupy.add.at(sums, y, x.sum(axis=1))
expected = np.bincount(labels, samples.sum(axis=1) / 255, minlength=10)
np.testing.assert_allclose(cupy.asnumpy(sums), expected, rtol=1e-4)
print("sums by label:", cupy.asnumpy(sums).round(1))
