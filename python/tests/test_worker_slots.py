"""The shared slots of worker processes: what is put into them, and when they are free again."""

import gc
import os
import threading
import time
import types
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock._feed import slots as _shared_slots
from penstock._feed import workers as _worker_feed
from support import run_in_threads, same
from worker_loaders import (
    COUNT,
    DEVICES,
    PERSISTENT,
    Counting,
    Tensors,
    as_they_are,
    check_all_free,
    equal,
    kept,
    message_of,
    noise,
    slots_of,
)

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


def test_the_first_batches_say_how_large_slots_are():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, prefetch_factor=3), "host")
    for _ in range(3):
        kept(feed)
    pool = slots_of(feed)
    # 3 under way in each worker; two workers share what this process has: a batch of the consumer, and 2 + 1 ahead.
    assert pool.each == 3 + 3
    assert all(pool.shared.allowed(number) == 2 << 20 for number in range(12))
    assert feed.describe()[-1] == "12 of 12 slots have room, 24 MiB in all"
    assert _worker_feed.granted() == 24 << 20


def test_batches_come_in_slots(monkeypatch):
    counted = Counting(monkeypatch)
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=True), "host")
    for _ in range(5):
        for _ in feed:
            time.sleep(0.002)
    assert counted.slots + counted.others == 5 * 12
    assert counted.slots >= 4 * 12
    statistics = feed.stats()
    assert statistics.samples == 5 * COUNT
    assert statistics.delivered_bytes == 5 * COUNT * (16 * 33 + 8)
    assert statistics.link_bytes < statistics.delivered_bytes / 2


def test_on_the_host_a_batch_lies_in_its_slot():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=True), "host")
    kept(feed)
    iterator = iter(feed)
    images, labels = next(iterator)
    slot = labels.data_ptr() - images.data_ptr()
    assert 0 < slot < 2 << 20
    images[:] = 1  # a user's own
    del iterator


class Stacked(dict):
    """A sample. Of a batch it notes, in the worker, how far apart its tensors lie."""

    def update(self, items):
        super().update(items, apart=items["b"].data_ptr() - items["a"].data_ptr())


def test_pytorchs_collate_stacks_into_the_slot(monkeypatch):
    counted = Counting(monkeypatch)
    samples = [Stacked(a=noise(i, 300), b=noise(i, 300)) for i in range(COUNT)]
    feed = penstock.feed(DataLoader(samples, 4, num_workers=1), "host")
    apart = [batch["apart"] for _ in range(2) for batch in feed]
    # 4 * 300 bytes, aligned. Outside of slots each tensor begins a page.
    assert apart.count(1280) == counted.slots > 0


def test_slots_are_not_pinned_by_the_loader_too(monkeypatch):
    """DataLoader's thread would copy each batch out of its slot, which is locked already."""
    started = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "_pin_memory_loop", lambda *_: started.append(1))
    loader = DataLoader(Tensors(), 5, num_workers=1, pin_memory=True)
    pool = _worker_feed._Pool("host", 1, 3)
    pool._engine = types.SimpleNamespace(is_cuda=True)
    source = _worker_feed.WorkerSource(loader, pool)
    assert len(list(source.iterator)) == COUNT // 5
    assert loader.pin_memory and not started


@DEVICES
def test_batches_that_are_kept_stay_as_they_are(device):
    loader = DataLoader(Tensors(), 3, num_workers=2, persistent_workers=True)
    expected = kept(loader)
    feed = penstock.feed(loader := DataLoader(Tensors(), 3, num_workers=2, persistent_workers=True), device)
    epochs = [list(feed) for _ in range(4)]
    for epoch in epochs:
        equal(epoch, expected)
    del loader


def test_slots_are_free_again():
    feed = penstock.feed(DataLoader(Tensors(), 3, num_workers=2, persistent_workers=True), "host")
    epochs = [list(feed) for _ in range(3)]
    epochs.clear()
    for _ in feed:
        time.sleep(0.001)
    del _
    check_all_free(slots_of(feed))


def fragile(samples):
    """Every second batch of 5 fails."""
    if samples[0][1] // 5 % 2:
        raise ValueError("broken")
    return torch.stack([image for image, _ in samples])


def test_a_batch_that_fails_costs_no_slot():
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True, collate_fn=fragile)
    feed = penstock.feed(loader, "host")
    for _ in range(4):
        iterator, errors = iter(feed), 0
        for _ in range(COUNT // 5):
            errors += message_of(next, iterator).startswith("ValueError")
        assert errors == COUNT // 10
        assert message_of(next, iterator).startswith("StopIteration")
    del iterator
    check_all_free(slots_of(feed))


class Seldom(Tensors):
    """Only the first batch has arrays."""

    def __getitem__(self, i):
        return super().__getitem__(i) if i < 5 else f"{i}"


def test_batches_without_arrays_cost_no_slot():
    loader = DataLoader(Seldom(), 5, num_workers=2, persistent_workers=True, collate_fn=as_they_are)
    feed = penstock.feed(loader, "host")
    for _ in range(3):
        equal(kept(feed), kept(DataLoader(Seldom(), 5, collate_fn=as_they_are)))
    check_all_free(slots_of(feed))


@PERSISTENT
@DEVICES
def test_a_loop_that_is_left_early_loses_no_slot(device, persistent):
    dataset = Tensors()
    expected = kept(DataLoader(dataset, 3, num_workers=2))
    feed = penstock.feed(DataLoader(dataset, 3, num_workers=2, persistent_workers=persistent), device)
    for rounds in range(12):
        for number, batch in enumerate(feed):
            assert same(batch, expected[number])
            if number == rounds % 5:
                break
        del batch
    equal(kept(feed), expected)
    pool = slots_of(feed)
    assert sum(pool.shared.allowed(number) > 0 for number in range(pool.shared.slots)) == pool.shared.slots
    assert _worker_feed.granted() == sum(pool._granted)
    check_all_free(pool)


class Silent(Dataset):
    """Puts nothing but text into a batch."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return str(i)


def test_batches_without_arrays_take_no_slot():
    feed = penstock.feed(DataLoader(Silent(), 2, num_workers=1), "host")
    for _ in range(2):
        equal(kept(feed), [[str(i), str(i + 1)] for i in range(0, 20, 2)])
    assert _worker_feed.granted() == 0


@DEVICES
def test_iterators_side_by_side_have_slots_of_their_own(device):
    loader = DataLoader(Tensors(), 5, num_workers=2)
    expected = kept(loader)
    feed = penstock.feed(loader, device)
    kept(feed)
    for _ in range(2):
        pairs = list(zip(feed, feed, strict=True))
        equal([a for a, _ in pairs], expected)
        equal([b for _, b in pairs], expected)
        del pairs


@pytest.fixture
def forks_in_turn(monkeypatch):
    """filelock, which PyTorch's compiler imports, lets only one thread fork at a time."""
    fork, turn = os.fork, threading.Lock()

    def fork_in_turn():
        with turn:
            return fork()

    monkeypatch.setattr(os, "fork", fork_in_turn)


def test_threads_have_feeds_of_their_own(forks_in_turn):
    expected = kept(DataLoader(Tensors(), 5, num_workers=1))
    failures = []

    def work():
        try:
            feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
            for _ in range(3):
                equal(kept(feed), expected)
        except BaseException as error:
            failures.append(error)

    run_in_threads(work, 3)
    assert not failures


def test_threads_that_share_a_feed_have_slots_of_their_own(forks_in_turn, monkeypatch):
    begin = _worker_feed.WorkerSource.__init__

    def begin_slowly(epoch, *arguments):
        time.sleep(0.05)
        begin(epoch, *arguments)

    monkeypatch.setattr(_worker_feed.WorkerSource, "__init__", begin_slowly)
    expected = kept(DataLoader(Tensors(), 4, num_workers=1))
    feed = penstock.feed(DataLoader(Tensors(), 4, num_workers=1), "host", native=False)
    kept(feed)
    barrier, failures, pools = threading.Barrier(2), [], []

    def work():
        try:
            barrier.wait()
            iterator = iter(feed)
            batches = [next(iterator)]
            pools.append(iterator._source.pool)
            batches += iterator
            equal(batches, expected)
        except BaseException as error:
            failures.append(str(error))

    run_in_threads(work, 2)
    assert not failures
    assert pools[0] is not pools[1]


def odd_kinds_of_large(samples):
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def test_an_array_is_counted_once():
    def most_wanted(collate):
        feed = penstock.feed(DataLoader(Tensors(20, 900, 900), 5, num_workers=1, collate_fn=collate), "host")
        kept(feed)
        return max(slots_of(feed)._granted)

    assert most_wanted(None) == most_wanted(odd_kinds_of_large)


def test_the_memory_goes_with_the_feed_and_its_batches():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
    kept(feed)
    iterator = iter(feed)
    batch = next(iterator)
    pool = weakref.ref(slots_of(feed))
    expected = batch[0].clone()
    del feed, iterator
    gc.collect()
    assert pool() is None
    assert torch.equal(batch[0], expected)


def test_arrays_that_an_object_keeps_on_the_host_end_the_use_of_slots():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2), "host")
    for _ in range(2):
        kept(feed)
    pool = slots_of(feed)
    pool.sent(types.SimpleNamespace(locked=False, is_seen=lambda flight: True), None)
    pool.sent(types.SimpleNamespace(locked=True, is_seen=lambda flight: False), None)
    assert pool.shared.allowed(0) > 0
    pool.sent(types.SimpleNamespace(locked=True, is_seen=lambda flight: True), None)
    assert not any(pool.shared.allowed(number) for number in range(pool.shared.slots))
    equal(kept(feed), kept(DataLoader(Tensors(), 5)))
    assert feed.describe()[-1].endswith("penstock: objects in them keep arrays on the host")
    equal(kept(penstock.feed(feed.loader, "host")), kept(DataLoader(Tensors(), 5)))
    # What is kept stays granted.
    del feed, pool
    gc.collect()
    assert _worker_feed.granted() == 2 << 20


def test_a_batch_whose_slots_are_gone_is_an_error():
    with pytest.raises(RuntimeError, match="slots are gone"):
        _shared_slots._receive(0, None, 0, b"")
