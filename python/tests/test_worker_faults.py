"""Worker processes that fail, do not answer or are killed."""

import gc
import os
import random
import signal
import time

import pytest
from torch.utils.data import DataLoader

import penstock
from support import same
from worker_loaders import (
    COUNT,
    DEVICES,
    PERSISTENT,
    SHARED,
    Failing,
    Growing,
    Heavy,
    Tensors,
    equal,
    kept,
    kill,
    message_of,
    slots_of,
)

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


@PERSISTENT
@DEVICES
def test_an_exception_of_a_sample_is_the_workers(device, persistent):
    feed = penstock.feed(DataLoader(Failing(), 5, num_workers=2, persistent_workers=persistent), device)
    expected = kept(DataLoader(Tensors(), 5, num_workers=2))
    for _ in range(3):
        iterator = iter(feed)
        for number in range(5):
            assert same(next(iterator), expected[number])
        message = message_of(next, iterator)
        assert message.startswith("ValueError: Caught ValueError in DataLoader worker process 1")
        assert "in __getitem__" in message and message.endswith("sample 25 is broken\n")
        assert same(next(iterator), expected[6])
        del iterator


class Slow(Tensors):
    seconds = 0

    def __getitem__(self, i):
        if i == 25:
            time.sleep(self.seconds)
        return super().__getitem__(i)


def test_a_timeout_is_pytorchs_error(impatient):
    dataset = Slow()
    loader = DataLoader(dataset, 5, num_workers=1)
    feed = penstock.feed(loader, "host")
    kept(feed)
    dataset.seconds, loader.timeout = 300, 1  # the worker is ended before
    assert message_of(kept, feed) == message_of(kept, loader) == "RuntimeError: DataLoader timed out after 1 seconds"
    dataset.seconds, loader.timeout = 0, 0
    equal(kept(feed), kept(loader))
    assert SHARED in feed.describe()


def test_samples_that_do_not_stack_are_pytorchs_error():
    feed = penstock.feed(DataLoader(Growing(), 4, num_workers=1), "host")
    assert "stack expects each tensor to be equal size" in message_of(kept, feed)


def test_a_batch_that_cannot_be_pickled_is_an_error():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, collate_fn=lambda samples: lambda: samples), "host")
    assert "pickle" in message_of(kept, feed)


# PyTorch's handler of SIGCHLD raises wherever the thread is: also while PyTorch makes a reference to a storage, whose
# __del__ then lacks what was not set yet.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(4))
@DEVICES
def test_a_killed_worker_is_an_error_and_the_next_epoch_is_whole(device, seed):
    chance = random.Random(seed)
    loader = DataLoader(Heavy(), 4, num_workers=3)
    expected = kept(loader)
    feed = penstock.feed(loader, device)
    kept(feed)  # slots have room now
    for _ in range(3):
        seen = []

        def loop(seen=seen):
            for batch in feed:
                seen.append(batch)
                if len(seen) == 2:
                    time.sleep(chance.random() * 0.01)
                    os.kill(chance.choice(slots_of(feed).processes).pid, signal.SIGKILL)

        message = message_of(loop)
        assert "DataLoader worker" in message or len(seen) == len(expected), message
        equal(seen, expected[: len(seen)])
        equal(kept(feed), expected)


def test_new_persistent_workers_take_the_place_of_killed_ones():
    loader = DataLoader(Tensors(), 5, num_workers=2, persistent_workers=True)
    feed = penstock.feed(loader, "host")
    expected = kept(DataLoader(Tensors(), 5))
    equal(kept(feed), expected)
    kill(slots_of(feed).processes[0])
    for _ in range(2):
        message_of(gc.collect)  # PyTorch's signal handler speaks where it finds us
        if message_of(kept, feed) == "no error":
            break
    equal(kept(feed), expected)


class Turning:
    """Gives the samples forwards and backwards in turn."""

    def __init__(self):
        self.order = list(range(COUNT))

    def __iter__(self):
        self.order.reverse()
        return iter(list(self.order))

    def __len__(self):
        return COUNT


def test_a_message_of_killed_workers_is_not_taken_for_another(impatient):
    def loader():
        return DataLoader(Tensors(), 5, num_workers=1, sampler=Turning())

    plain_loader = loader()
    expected = [kept(plain_loader) for _ in range(3)]
    feed = penstock.feed(loader(), "host", native=False)
    equal(kept(feed), expected[0])
    first = iter(feed)
    seen = [next(first)]
    time.sleep(0.2)  # its messages are there
    for process in slots_of(feed).processes:
        kill(process)
    second = iter(feed)
    others = [next(second)]
    time.sleep(0.2)  # the new workers have filled slots
    message = message_of(seen.extend, first)
    assert message.startswith("RuntimeError: DataLoader worker")
    equal(seen, expected[1][: len(seen)])
    equal(others + list(second), expected[2])
    del first, second
