"""Datasets and functions of the tests of feeds around a DataLoader with workers."""

import collections
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock._feed import workers as _worker_feed
from support import gpu, same

COUNT = 60
SHARED = "worker processes put their batches into shared memory"
PERSISTENT = pytest.mark.parametrize("persistent", [False, True])
# On "host:late=1" batches stay in their slots as on "host".
DEVICES = pytest.mark.parametrize("device", ["host", pytest.param("cuda:0", marks=gpu)])

Point = collections.namedtuple("Point", "x y")


class Plain:
    """An object that penstock does not know."""

    def __init__(self, data):
        self.data = data


def noise(index, *shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(index))


class Nested(Dataset):
    """Samples of everything that PyTorch's own collate takes."""

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return {
            "image": noise(i, 3, 40, 50),
            "label": i,
            "weight": i / 7,
            "name": f"sample {i}",
            "array": np.arange(i, i + 6, dtype=np.int16).reshape(2, 3),
            "point": Point(torch.tensor([i % 2 == 0]), torch.full((3,), i, dtype=torch.bfloat16)),
            "none": torch.empty(0, 4),
            "list": [torch.tensor(1j * i), (torch.tensor(i, dtype=torch.float64), b"bytes")],
            "drawn": torch.rand(2),
        }


class Tensors(Dataset):
    def __init__(self, count=COUNT, *shape):
        self.shape = shape or (16, 33)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return noise(i, *self.shape), i


class Failing(Tensors):
    def __getitem__(self, i):
        if i == 25:
            raise ValueError("sample 25 is broken")
        return super().__getitem__(i)


class Growing(Dataset):
    """Batches of one sample each, of very different sizes."""

    sizes = (10, 10_000, 200, 3_000_000, 5, 900_000, 12_000_000, 1, 3_000_000, 64)

    def __len__(self):
        return 2 * len(self.sizes)

    def __getitem__(self, i):
        return noise(i, self.sizes[i % len(self.sizes)])


class Heavy(Tensors):
    """Tells the parent which process it is in, and takes some time."""

    def __getitem__(self, i):
        time.sleep(0.001)
        return noise(i, 100, 1000), i


class AllEqual(DataLoader):
    def __eq__(self, other):
        return True


def as_they_are(samples):
    return samples


def kept(loader):
    """The batches, on the host, in memory of their own."""
    copies = []
    for batch in loader:
        copies.append(penstock.to_host(penstock.to_device(penstock.to_host(batch), "host")))
    return copies


def equal(ours, theirs):
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert same_but_objects(a, b), f"batch {number}"


def same_but_objects(a, b):
    if isinstance(a, dict) and "object" in a:
        assert a["object"].data == b["object"].data
        a, b = ({key: value for key, value in batch.items() if key != "object"} for batch in (a, b))
    return same(a, b)


def message_of(call, *arguments):
    """What an error says. PyTorch keeps the error in a frame of its traceback, and with it the iterator and workers."""
    try:
        call(*arguments)
    except Exception as error:
        error.__traceback__ = None
        return f"{type(error).__name__}: {error}"
    return "no error"


def kill(process):
    """PyTorch's signal handler raises in the parent, wherever the signal finds it: until the process is gone, here."""

    def end():
        process.kill()
        process.join()

    message_of(end)
    process.join()


def slots_of(feed):
    return feed._ways.workers.pool


class Counting:
    """Counts the batches that come in slots, and those that come without."""

    def __init__(self, monkeypatch):
        self.slots = self.others = 0
        opened = _worker_feed._Pool.open

        def count(pool, received):
            opened(pool, received)
            self.slots += received.slot is not None
            self.others += received.slot is None

        monkeypatch.setattr(_worker_feed._Pool, "open", count)


def check_all_free(pool):
    """Fails if a slot is not free soon. No worker may have work.

    A batch that is left in flight may be dropped after the next workers were forked, who may have inherited it. Then
    its slot is free once the pool has seen that they are gone, as it does when an epoch begins.
    """
    deadline = time.monotonic() + 120
    claimed = []
    while time.monotonic() < deadline:
        pool._return_lent()
        claimed = [number for number in range(pool.shared.slots) if pool.shared.claim(number) is not None]
        for number in claimed:
            pool.shared.give_up(number)
        if len(claimed) == pool.shared.slots:
            return
    pytest.fail(f"{claimed} of {pool.shared.slots} are free")
