import numpy as np
import pytest

from support import gpu

# host:late=1 poisons destinations when a copy is enqueued and writes them as late as ordering allows. A forgotten wait
# then gives wrong bytes.
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
