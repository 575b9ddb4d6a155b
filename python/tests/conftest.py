import gc
import multiprocessing
import os
import signal
import tempfile

import numpy as np
import pytest

from penstock import _core
from penstock._feed import workers as _worker_feed
from support import HAS_GPU, gpu

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
    # Workers of a fork server need not import it again.
    multiprocessing.set_forkserver_preload(["torch.utils.data"])


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


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def exchange_api(request):
    """Whether PyTorch's tensors are exchanged by its table of functions, if it has one."""
    _core.use_exchange_api(request.param)
    yield
    _core.use_exchange_api(True)


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where a shell that started the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def impatient(monkeypatch):
    """Has PyTorch look after its workers every half second, not every five."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
    workers = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
    monkeypatch.setattr(f"{workers}._try_get_data.__defaults__", (0.5,))


@pytest.fixture
def no_worker_leaks():
    """After each test no slot is granted, no worker is left, and no file is open that was not."""
    gc.collect()
    files, processes = len(os.listdir("/proc/self/fd")), set(multiprocessing.active_children())
    yield
    gc.collect()
    _worker_feed._give_back([count for _, count in _worker_feed._kept])
    _worker_feed._kept.clear()
    assert _worker_feed.granted() == 0
    assert set(multiprocessing.active_children()) <= processes
    if not HAS_GPU:  # the driver opens files when it likes
        assert len(os.listdir("/proc/self/fd")) <= files + 6  # what starts other processes keeps some
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(("penstock", f"torch_{os.getpid()}_"))]
