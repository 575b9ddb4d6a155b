import os
import signal
import tempfile

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


def pytest_configure(config):
    """No test finds a link profile of the user's."""
    folder = tempfile.TemporaryDirectory(prefix="penstock-test-cache-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


def pytest_collection_modifyitems(config, items):
    """Of N processes that each set PENSTOCK_TEST_PART=k/N, for k below N, each runs its own tests."""
    part, parts = map(int, os.environ.get("PENSTOCK_TEST_PART", "0/1").split("/"))
    config.hook.pytest_deselected(items=[item for k, item in enumerate(items) if k % parts != part])
    items[:] = items[part::parts]


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng()


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where a shell that started the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
