import numpy as np
import pytest

import penstock

HAS_GPU = any(device.backend == "cuda" for device in penstock.devices())

gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")

# host:late=1 poisons destinations when a copy is enqueued and writes them as late as ordering allows: a forgotten wait
# becomes wrong bytes.
DEVICES = [
    "host",
    "host:late=1",
    pytest.param("cuda:0", marks=gpu),
]


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng()
