"""feed around a DataLoader whose workers are threads of this process: MONAI makes such a multiprocessing_context."""

import queue
import threading
from multiprocessing.context import SpawnContext

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock._feed import workers as _worker_feed

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


class Worker(threading.Thread):
    pid = 1

    def run(self):
        try:
            super().run()
        finally:
            torch.utils.data._utils.worker._worker_info = None


class Queue(queue.Queue):
    def close(self):
        pass

    def cancel_join_thread(self):
        pass


class Context(SpawnContext):
    _name = "threads"
    Process, Queue = Worker, Queue


class Data(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3,), float(index)), [index]


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_those_of_the_loader(persistent, collate):
    def make():
        context = {"multiprocessing_context": Context(), "persistent_workers": persistent}
        return DataLoader(Data(), 4, num_workers=1, collate_fn=collate, **context)

    wanted = [repr(batch) for batch in make()]
    fed = penstock.feed(make(), "host")
    for _ in range(3):
        assert [repr(batch) for batch in fed] == wanted
        assert fed.describe()[1] == (
            "worker processes send their batches as they do without penstock: its workers are threads, which share "
            "this process's memory"
        )
    assert _worker_feed.granted() == 0
    del fed
    assert sum(type(thread) is Worker for thread in threading.enumerate()) == 0
