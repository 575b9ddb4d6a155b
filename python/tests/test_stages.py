"""Which stage of a DataLoader is slow, as the account of a feed names it."""

import gc
import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import penstock
from penstock._feed import slots as _shared_slots
from penstock._feed.slots import Slots
from penstock._feed.stages import Stages, watch_batches, watch_fetch, workers_of

BATCH = 4
LONG_S = 0.06  # of a batch, in what is to set the pace


def pause(sample):
    """What is slow, once in a batch."""
    if sample % BATCH == 0:
        time.sleep(LONG_S)


class Samples(Dataset):
    def __init__(self, batches, is_slow=False, kind=None):
        self.batches = batches
        self.is_slow = is_slow
        self.kind = kind

    def __len__(self):
        return BATCH * self.batches

    def __getitem__(self, i):
        if self.is_slow:
            pause(i)
        return torch.full((8,), i) if self.kind is None or i % BATCH else (torch.full((8,), i), self.kind())


class WholeBatches(Samples):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Streamed(IterableDataset):
    def __init__(self, batches, is_slow=False):
        self.samples = Samples(batches, is_slow)

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first * BATCH, len(self.samples), step * BATCH):
            yield from (self.samples[j] for j in range(i, i + BATCH))


class SlowToWrite:
    """What takes long to pickle."""

    def __reduce__(self):
        time.sleep(LONG_S)
        return SlowToWrite, ()


def made_slowly():
    time.sleep(LONG_S / 2)  # two workers do not make it faster
    return SlowToReceive()


class SlowToReceive:
    """What takes long to unpickle."""

    def __reduce__(self):
        return made_slowly, ()


class SlowOrder(list):
    """A sampler that is slow, which is no stage of a DataLoader."""

    def __iter__(self):
        for i in super().__iter__():
            pause(i)
            yield i


def slow_collate(samples):
    time.sleep(LONG_S)
    return torch.stack(samples)


def as_it_is(samples):
    return samples


class SlowToPin:
    def pin_memory(self):
        time.sleep(LONG_S)
        return self


@pytest.fixture
def accelerator(monkeypatch):
    """PyTorch takes the machine for one with a GPU, so that its DataLoaders pin."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_: True)


def told(loader, **options):
    fed = penstock.feed(loader, "host", **options)
    count = sum(1 for _ in fed)
    assert count == fed.stats().batches
    return fed.stats()


def batches_with(workers):
    return 40 if workers else 10


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Samples, WholeBatches, Streamed])
def test_a_slow_dataset_is_named_fetch(workers, kind):
    count = batches_with(workers)
    statistics = told(DataLoader(kind(count, is_slow=True), BATCH, num_workers=workers))
    assert statistics.batches == count
    assert statistics.limited_by == "fetch" == statistics.as_dict()["limited_by"]
    assert statistics.sentence().startswith("The wrapped loader sets the pace by its fetch: ")
    assert "`__getitems__`" in statistics.sentence() and "    fetch  " in str(statistics)
    assert statistics.fetch_seconds > statistics.collate_seconds + statistics.transport_seconds


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_collate_fn_is_named_collate(workers):
    loader = DataLoader(Samples(batches_with(workers)), BATCH, num_workers=workers, collate_fn=slow_collate)
    statistics = told(loader)
    assert statistics.limited_by == "collate" and "In the dataset it would take as long." in statistics.sentence()
    assert statistics.collate_seconds > statistics.fetch_seconds + statistics.transport_seconds
    assert loader.collate_fn is slow_collate


@pytest.mark.parametrize("kind", [SlowToWrite, SlowToReceive])
def test_batches_that_take_long_from_their_workers_are_named_transport(kind):
    statistics = told(DataLoader(Samples(40, kind=kind), BATCH, num_workers=2, collate_fn=as_it_is))
    assert statistics.limited_by == "transport" and "`describe()`" in statistics.sentence()
    assert statistics.transport_seconds > statistics.fetch_seconds + statistics.collate_seconds


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_loader_that_pins_for_long_is_named_pin(accelerator, is_pinned):
    samples = [SlowToPin()] * BATCH * 10
    loader = DataLoader(samples, BATCH, collate_fn=lambda batch: batch[0], pin_memory=is_pinned)
    statistics = told(loader)
    if is_pinned:
        assert statistics.limited_by == "pin" and statistics.pin_seconds >= 10 * LONG_S
        assert statistics.sentence().startswith("The wrapped loader sets the pace by its pin: ")
        assert "    pin  " in str(statistics) and statistics.send_pin_seconds == 0
    else:
        assert statistics.pin_seconds == 0, "nobody pins for the host"


@pytest.mark.parametrize("workers", [0, 2])
def test_without_automatic_batches_the_dataset_is_named_fetch(workers):
    samples = Samples(batches_with(workers), is_slow=True)
    firsts = range(0, len(samples), BATCH)
    loader = DataLoader(samples, batch_size=None, sampler=firsts, num_workers=workers)
    assert told(loader).limited_by == "fetch"


def own_way(source):
    class Own(DataLoader):
        def __iter__(self):
            yield from super().__iter__()

    return Own(source, BATCH)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: (np.zeros(4) for _ in range(10) if not time.sleep(LONG_S)),
            "a loader of type generator is not a DataLoader",
        ),
        (lambda: own_way(Samples(10, is_slow=True)), "a loader of type Own makes its batches in its own way"),
    ],
    ids=["generator", "subclass"],
)
def test_another_iterable_stays_a_loader(make, why):
    statistics = told(make())
    assert statistics.limited_by == "loader"
    assert statistics.fetch_seconds == statistics.collate_seconds == statistics.transport_seconds == 0
    assert f"Whether its fetch, collate, transport or pin is slow cannot be told: {why}. " in statistics.sentence()
    assert "    fetch" not in str(statistics)


def test_workers_that_nobody_timed_stay_a_loader():
    limit = penstock.worker_memory_limit()
    loader = DataLoader(Samples(40, is_slow=True), BATCH, num_workers=2)
    try:
        penstock.worker_memory_limit(0)
        fed = penstock.feed(loader, "host")
        assert sum(1 for _ in fed) == 40
    finally:
        penstock.worker_memory_limit(limit)
    assert fed.stats().limited_by == "loader" and fed.stats().fetch_seconds == 0
    reason = "its workers send their batches as they do without penstock (worker_memory_limit is 0). "
    assert f"cannot be told: {reason}" in fed.stats().sentence()


def test_the_reason_is_that_of_the_latest_iteration():
    fed = penstock.feed((np.zeros(4) for _ in range(10) if not time.sleep(LONG_S)), "host")
    list(fed)
    assert "a loader of type generator is not" in fed.stats().sentence()
    fed.loader = DataLoader(Samples(10), BATCH, sampler=SlowOrder(range(40)))
    list(fed)
    assert fed.stats().limited_by == "loader" and "told: fetch took only " in fed.stats().sentence()


def test_a_loader_that_nobody_waits_for_is_not_named():
    fed = penstock.feed(DataLoader(Samples(8), BATCH), "host")
    for _ in fed:
        time.sleep(LONG_S)
    assert fed.stats().limited_by == "consumer"


def test_the_time_of_the_consumer_is_not_transport():
    fed = penstock.feed(DataLoader(Samples(12), BATCH, num_workers=1), "host", prefetch_depth=0)
    for _ in fed:
        time.sleep(LONG_S)
    statistics = fed.stats()
    assert 0 < statistics.transport_seconds < 12 * LONG_S / 2


@pytest.mark.parametrize("is_persistent", [False, True])
def test_batches_that_were_not_timed_count_as_the_others(is_persistent):
    samples = Samples(4, is_slow=True)
    loader = DataLoader(samples, BATCH, num_workers=2, persistent_workers=is_persistent)
    fed = penstock.feed(loader, "host")
    for _ in range(4):
        assert sum(1 for _ in fed) == 4
    statistics = fed.stats()
    assert statistics.batches == 16
    assert statistics.fetch_seconds >= 16 * LONG_S / 2, "each epoch timed the last two of four"
    assert ("persistent_workers" in statistics.sentence()) != is_persistent, statistics.sentence()


def test_batches_of_a_loader_that_nobody_timed_do_not_count_as_the_others():
    fed = penstock.feed(DataLoader(Samples(4, is_slow=True), BATCH), "host")
    list(fed)
    before = fed.stats().fetch_seconds
    fed.loader = [np.zeros(4)] * 8
    list(fed)
    assert before == fed.stats().fetch_seconds > 0


def test_only_a_loader_that_has_workers_may_start_them():
    class Odd:
        num_workers = "many"

    def of(**options):
        return workers_of(DataLoader(Samples(1), BATCH, **options))

    assert of() == (0, False) and of(num_workers=2) == (2, True)
    assert of(num_workers=2, persistent_workers=True) == (2, False)
    assert workers_of([]) == workers_of(Odd()) == (0, True)


def test_each_batch_but_a_workers_first_is_timed():
    slots = Slots(2, 1, 1 << 20, -1)
    writer = slots.writer(as_it_is, False)
    writer._receiver = 0  # another process: this one is the worker
    times = []
    for _ in range(2):  # epochs of a persistent worker, each with a fetcher of its own
        fetcher = _MapDatasetFetcher(Samples(3), True, writer, False)
        times += [fetcher.fetch([0, 1])._contents[-1] for _ in range(3)]
    assert [each is None for each in times] == [True, False, False, True, False, False]
    assert all(list(each) == sorted(each) for each in times if each)


def test_a_batch_that_raised_has_no_beginning():
    fetcher = _MapDatasetFetcher([torch.zeros(1)], True, as_it_is, False)
    watch = watch_fetch(fetcher)
    with pytest.raises(IndexError):
        fetcher.fetch([1])
    assert watch.began is None and watch.take() is None


def test_a_fetcher_is_watched_once():
    iterator = iter(DataLoader(Samples(3), BATCH))
    watch, collate = watch_batches(iterator), iterator._dataset_fetcher.collate_fn
    assert watch_batches(iterator) is watch and iterator._dataset_fetcher.collate_fn is collate
    next(iterator)
    assert type(watch.take()) is Stages and watch.take() is None


def test_a_fetcher_that_is_gone_is_named():
    fetch = watch_fetch(_MapDatasetFetcher([1], True, as_it_is, False))
    with pytest.raises(ReferenceError, match="fetcher that it belongs to is gone"):
        fetch([0])


def test_what_is_no_fetcher_of_pytorch_is_left_alone():
    class Other(_MapDatasetFetcher):
        pass

    other = Other([1], True, as_it_is, False)
    assert watch_fetch(other) is None and watch_fetch(None) is None and watch_batches(iter([1])) is None
    assert "fetch" not in vars(other) and other.collate_fn is as_it_is


def test_the_stages_of_workers_are_shared_and_what_is_received_is_not(monkeypatch):
    slots = Slots(4, 1, 1 << 20, -1)
    now = iter([10.0, 11.0, 15.0, 16.0])
    monkeypatch.setattr(_shared_slots, "monotonic", lambda: next(now))
    slots.asked = 5.0
    assert slots.stages((1, 3, 4, 8)) == Stages(0.5, 0.25, 1.0, 2.0), "it was waited for until 8"
    assert slots.stages(None) is None
    assert slots.stages((1, 3, 4, 8)) == Stages(0.5, 0.25, 1.0, 4.0), "another one came at 11"
    assert slots.stages((1, 3, 4, 15.5)) == Stages(0.5, 0.25, 2.875, 0.5)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_datasets_iterator_ends_with_the_feeds(depth):
    ends = []

    class Ending(IterableDataset):
        def __iter__(self):
            try:
                yield from range(100)
            finally:
                ends.append(1)

    iterator = iter(penstock.feed(DataLoader(Ending(), BATCH), "host", prefetch_depth=depth))
    next(iterator)
    gc.collect()
    gc.disable()
    try:
        del iterator
        assert ends == [1]
    finally:
        gc.enable()


def test_a_loader_stays_as_it_was():
    loader = DataLoader(Samples(3), BATCH, collate_fn=slow_collate)
    before = dict(vars(loader))
    for _ in penstock.feed(loader, "host"):
        assert vars(loader) == before
        assert len(pickle.dumps(loader)) == len(pickle.dumps(DataLoader(Samples(3), BATCH, collate_fn=slow_collate)))
