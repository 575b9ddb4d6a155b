"""feed around a DataLoader with workers, whose batches come through shared slots."""

import collections
import copy
import dataclasses
import gc
import json
import multiprocessing
import os
import pathlib
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

import penstock
from penstock import _core, _shared_slots, _worker_feed
from support import gpu, is_gpu, same

COUNT = 60
SHARED = "worker processes put their batches into shared memory"

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: list


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


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id, COUNT, info.num_workers):
            yield noise(i, 7, 11), i


class Views(Dataset):
    """Samples that are views of one tensor, some of them with gaps."""

    def __init__(self):
        self.all = noise(1, 400, 30).to(torch.float32)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.all[i], self.all[::3][i], self.all.T[:, i]


def odd_kinds(samples):
    """A collate_fn that makes what PyTorch's own does not."""
    images = torch.stack([image for image, _ in samples])
    labels = np.array([label for _, label in samples], np.uint16)
    whole = torch.arange(60.0).reshape(6, 10)
    return {
        "images": images.to(memory_format=torch.contiguous_format),
        "transposed": images.transpose(1, 2),
        "gaps": images[:, ::2, 1:],
        "again": images,
        "labels": labels,
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big endian": np.arange(3, dtype=">i4").astype("<i4"),
        "pair": Pair(whole[2:4], [whole[:, 3], "text"]),
        "names": [f"{label}" for _, label in samples],
        "object": Plain(7),
        "empty": torch.empty(0, 3),
        "scalar": np.float32(0.5),
        "half": torch.ones(3, dtype=torch.float16),
    }


def as_they_are(samples):
    return samples


def seed_numpy(worker):
    np.random.seed(get_worker_info().seed % 2**32)


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
    return feed._workers.pool


# On "host:late=1" batches stay in their slots as on "host".
@pytest.fixture(params=["host", pytest.param("cuda:0", marks=gpu)])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def no_leaks():
    """After each test no slot is granted, no worker is left, and no file is open that was not."""
    gc.collect()
    files, processes = len(os.listdir("/proc/self/fd")), set(multiprocessing.active_children())
    yield
    gc.collect()
    _worker_feed._give_back([count for _, count in _worker_feed._kept])
    _worker_feed._kept.clear()
    assert _worker_feed.granted() == 0
    assert set(multiprocessing.active_children()) <= processes
    if not torch.cuda.is_available():  # the driver opens files when it likes
        assert len(os.listdir("/proc/self/fd")) <= files + 6  # what starts other processes keeps some
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(("penstock", f"torch_{os.getpid()}_"))]


@pytest.fixture
def limit():
    """Sets the limit of all feeds for the test."""
    yield penstock.worker_memory_limit
    _worker_feed._limit = None


PERSISTENT = pytest.mark.parametrize("persistent", [False, True])


@PERSISTENT
def test_batches_are_those_of_the_loader(device, persistent):
    check_batches(device, 3, persistent_workers=persistent)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_fill_slots(method):
    check_batches("host", 2, persistent_workers=True, multiprocessing_context=method)


def check_batches(device, epochs, **arguments):
    arguments.update(batch_size=8, shuffle=True, num_workers=2, worker_init_fn=seed_numpy)
    loader = DataLoader(Nested(), **arguments)
    torch.manual_seed(5)
    expected = [kept(loader) for _ in range(epochs)]
    state = torch.get_rng_state()
    loader = DataLoader(Nested(), **arguments)
    feed = penstock.feed(loader, device, native=False)
    torch.manual_seed(5)
    for theirs in expected:
        equal(kept(feed), theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert SHARED in feed.describe()
    assert _worker_feed.granted() > 0


@pytest.mark.parametrize("collate", [odd_kinds, as_they_are, None])
def test_any_collate_fn_gives_its_batches(device, collate):
    loader = DataLoader(Tensors(), 7, num_workers=2, collate_fn=collate)
    expected = kept(loader)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        equal(kept(feed), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream(), 4, num_workers=3),
        lambda: DataLoader(Stream(), None, num_workers=2),
        lambda: DataLoader(Tensors(), None, num_workers=2),
        lambda: DataLoader(Views(), 5, num_workers=2),
        lambda: DataLoader(Growing(), 1, num_workers=2),
        lambda: DataLoader(Tensors(), 5, num_workers=1, prefetch_factor=5),
        lambda: DataLoader(Tensors(), 5, num_workers=9),
        lambda: DataLoader(Tensors(), 7, num_workers=2, drop_last=True, timeout=300),
        lambda: DataLoader(Tensors(), 7, num_workers=2, sampler=RandomSampler(range(COUNT), True, 100)),
        lambda: DataLoader(Tensors(), batch_sampler=[[1, 2, 3], [4], [5, 5, 5, 5]], num_workers=2),
        lambda: DataLoader([{"x": i} for i in range(9)], 2, num_workers=2),
        lambda: DataLoader(TensorDataset(noise(1, 40, 9)), 7, num_workers=2),
    ],
)
def test_any_loader_gives_its_batches(device, make):
    torch.manual_seed(3)
    expected = [kept(make()) for _ in range(2)]
    torch.manual_seed(3)
    for theirs in expected:
        equal(kept(penstock.feed(make(), device, native=False)), theirs)


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


class Counting:
    """Counts the batches that come in slots, and those that come without."""

    def __init__(self, monkeypatch):
        self.slots = self.others = 0
        opened = _worker_feed._Pool.open

        def count(pool, received):
            batch, slot = opened(pool, received)
            self.slots += slot is not None
            self.others += slot is None
            return batch, slot

        monkeypatch.setattr(_worker_feed._Pool, "open", count)


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
    assert len(list(_worker_feed._Epoch(loader, pool))) == COUNT // 5
    assert loader.pin_memory and not started


def test_batches_that_are_kept_stay_as_they_are(device):
    loader = DataLoader(Tensors(), 3, num_workers=2, persistent_workers=True)
    expected = kept(loader)
    feed = penstock.feed(loader := DataLoader(Tensors(), 3, num_workers=2, persistent_workers=True), device)
    epochs = [list(feed) for _ in range(4)]
    for epoch in epochs:
        equal(epoch, expected)
    del loader


def check_all_free(pool):
    """Fails if a slot is not free soon. No worker may have work."""
    deadline = time.monotonic() + 120
    claimed = []
    while time.monotonic() < deadline:
        claimed = [number for number in range(pool.shared.slots) if pool.shared.claim(number) is not None]
        for number in claimed:
            pool.shared.give_up(number)
        if len(claimed) == pool.shared.slots:
            return
    pytest.fail(f"{claimed} of {pool.shared.slots} are free")


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


@PERSISTENT
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


@pytest.fixture
def impatient(monkeypatch):
    """Has PyTorch look after its workers every half second, not every five."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    workers = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(workers._try_get_data, "__defaults__", (0.5,))


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


class Overtaken(Tensors):
    """The first sample comes only after a batch that the loader makes once it has given others."""

    def __init__(self):
        super().__init__()
        self.overtaken = multiprocessing.Event()

    def __getitem__(self, i):
        if i == 0:
            assert self.overtaken.wait(300)
        if i == COUNT - 1:
            self.overtaken.set()
        return super().__getitem__(i)


def test_batches_in_any_order_are_whole(monkeypatch):
    counted = Counting(monkeypatch)
    dataset = Overtaken()
    feed = penstock.feed(DataLoader(dataset, 4, num_workers=2, in_order=False), "host")
    for _ in range(3):
        dataset.overtaken.clear()
        images, labels = map(torch.cat, zip(*kept(feed), strict=True))
        assert labels[0] != 0 and sorted(labels.tolist()) == list(range(COUNT))
        assert all(torch.equal(image, noise(int(i), 16, 33)) for image, i in zip(images, labels, strict=True))
    assert counted.slots > 0
    assert SHARED in feed.describe()


def test_samples_that_do_not_stack_are_pytorchs_error():
    feed = penstock.feed(DataLoader(Growing(), 4, num_workers=1), "host")
    assert "stack expects each tensor to be equal size" in message_of(kept, feed)


class Heavy(Tensors):
    """Tells the parent which process it is in, and takes some time."""

    def __getitem__(self, i):
        time.sleep(0.001)
        return noise(i, 100, 1000), i


# PyTorch's handler of SIGCHLD raises wherever the thread is: also while PyTorch makes a reference to a storage, whose
# __del__ then lacks what was not set yet.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(4))
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

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("room", [1, 2 << 20, 7 << 20])
def test_the_limit_is_kept_and_batches_are_right(device, limit, room):
    limit(room)
    assert penstock.worker_memory_limit() == room
    loader = DataLoader(Growing(), 1, num_workers=2)
    expected = kept(loader)
    feed = penstock.feed(loader, device)
    for _ in range(3):
        equal(kept(feed), expected)
        assert _worker_feed.granted() <= room


def test_a_limit_of_0_leaves_workers_alone(limit):
    limit(0)
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
    equal(kept(feed), kept(DataLoader(Tensors(), 5)))
    assert slots_of(feed) is None
    assert "worker_memory_limit is 0" in feed.describe()[-1]
    limit(1 << 30)
    kept(feed)
    assert SHARED in feed.describe()


def test_feeds_share_the_limit(limit):
    limit(20 << 20)
    feeds = [penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host") for _ in range(2)]
    for _ in range(3):
        for feed in feeds:
            kept(feed)
    granted = [sum(slots_of(feed)._granted) for feed in feeds]
    assert sum(granted) == _worker_feed.granted() == 20 << 20
    del feeds[0], feed
    gc.collect()
    assert _worker_feed.granted() == granted[1]


@pytest.mark.parametrize("wrong", [-1, 1.5, "1GiB", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(wrong):
    with pytest.raises((penstock.InvalidArgument, TypeError), match="limit"):
        penstock.worker_memory_limit(wrong)


def test_the_limit_is_a_quarter_of_the_memory():
    assert penstock.worker_memory_limit() == _core.host_memory_bytes() // 4 > 0


@PERSISTENT
def test_the_loader_stays_as_it_was(persistent):
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=persistent, pin_memory=False)
    before = dict(vars(loader))
    pickled = len(pickle.dumps(loader))
    feed = penstock.feed(loader, "host")
    iterator = iter(feed)
    next(iterator)
    assert {name: value for name, value in vars(loader).items() if "penstock" not in name} == before
    assert len(pickle.dumps(loader)) < pickled + 100
    assert copy.deepcopy(loader)._penstock_workers is None
    expected = kept(DataLoader(Tensors(), 5))
    equal(kept(loader), expected)  # with workers of its own
    del iterator
    equal(kept(feed), expected)


def test_persistent_workers_that_run_already_are_kept():
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True)
    expected = kept(loader)
    workers = [process.pid for process in loader._iterator._workers]
    feed = penstock.feed(loader, "host")
    equal(kept(feed), expected)
    assert [process.pid for process in loader._iterator._workers] == workers
    assert "started without penstock.feed" in feed.describe()[-1]


class Stateful(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def test_a_loader_that_iterates_in_its_own_way_is_left_alone():
    feed = penstock.feed(Stateful(Tensors(), 5, num_workers=1), "host")
    equal(kept(feed), kept(DataLoader(Tensors(), 5)))
    assert "a Stateful iterates in its own way" in feed.describe()[-1]


def test_persistent_workers_stay():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=True), "host")
    kept(feed)
    before = [process.pid for process in slots_of(feed).processes]
    kept(feed)
    assert [process.pid for process in slots_of(feed).processes] == before
    assert {process.pid for process in multiprocessing.active_children()} >= set(before)


def test_a_fork_while_batches_are_held_frees_no_slot():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True), "host")
    kept(feed)
    expected = kept(DataLoader(Tensors(), 5))
    iterator = iter(feed)
    held = [next(iterator), next(iterator)]
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rest = list(iterator)
    equal(held + rest, expected)
    del iterator, held, rest


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


def test_what_only_pytorch_can_send_is_sent_by_it(device):
    def collate(samples):
        dense = torch.stack([image for image, _ in samples]).float()
        return {
            "dense": dense,
            "sparse": (dense[0] > 200).float().to_sparse(),
            "gradient": torch.nn.Parameter(dense[0]),
            "conjugate": torch.view_as_complex(dense[:, :, :2].contiguous()).conj(),
        }

    loader = DataLoader(Tensors(20), 4, num_workers=1, collate_fn=collate)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        for ours, theirs in zip(feed, loader, strict=True):
            assert same(ours["dense"], theirs["dense"])
            assert torch.equal(ours["sparse"].to_dense().cpu(), theirs["sparse"].to_dense())
            assert torch.equal(ours["gradient"].detach().cpu(), theirs["gradient"].detach())
            assert ours["gradient"].requires_grad
            assert torch.equal(ours["conjugate"].resolve_conj().cpu(), theirs["conjugate"].resolve_conj())


class Movable:
    """A batch with its own `to` and `pin_memory`."""

    def __init__(self, data):
        self.data = data

    def to(self, device, non_blocking=False):
        return Movable(self.data.to(device, non_blocking=non_blocking))

    def pin_memory(self):
        return Movable(self.data.pin_memory())


def movable(samples):
    return Movable(torch.stack([image for image, _ in samples]))


def plain(samples):
    return Plain(torch.stack([image for image, _ in samples]))


@pytest.mark.parametrize("collate", [movable, plain])
def test_objects_are_right_however_they_move(device, collate):
    loader = DataLoader(Heavy(), 4, num_workers=2, persistent_workers=True, collate_fn=collate)
    expected = [noise(i, 100, 1000) for i in range(COUNT)]
    feed = penstock.feed(loader, device)
    for _ in range(3):
        moved = []
        for batch in feed:
            # A user moves what penstock leaves alone, and drops it at once.
            moved.append(batch.data.to("cuda", non_blocking=True) if is_gpu(device) else batch.data.clone())
            del batch
        assert torch.equal(torch.cat(moved).cpu(), torch.stack(expected))


class Marked(torch.Tensor):
    """A subclass, which only PyTorch pickles."""


class Mixed(Dataset):
    """Samples of which a part is stacked to what only PyTorch can pickle."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 40

    def __getitem__(self, i):
        first = torch.full((50,), float(i))
        if self.kind == "subclass" and i % 4:
            first = first.as_subclass(Marked)
        sample = {"first": first, "second": torch.full((60,), i), "third": np.full(70, i, np.int32)}
        return Sample(sample, self.kind)


class Sample(dict):
    """PyTorch's collate gives a copy of it the stacked values."""

    def __init__(self, items, kind):
        super().__init__(items)
        self.kind = kind

    def __copy__(self):
        return Sample(self, self.kind)

    def update(self, items):
        if self.kind == "parameter":
            items["first"] = torch.nn.Parameter(items["first"])
        elif self.kind == "empty":
            items["none"] = items["first"][:, :0]
        elif self.kind == "part":
            items["part"] = items["first"][:, 3:5]
            items["turned"] = items["first"].t()
        super().update(items)


@pytest.mark.parametrize("kind", ["subclass", "parameter", "empty", "part"])
def test_what_only_pytorch_pickles_leaves_the_rest_alone(kind):
    feed = penstock.feed(DataLoader(Mixed(kind), 4, num_workers=1), "host")
    for _ in range(3):
        for number, batch in enumerate(feed):
            expected = torch.arange(4 * number, 4 * number + 4)
            for name, array in batch.items():
                rows = array.detach().as_subclass(torch.Tensor)
                rows = rows.t() if name == "turned" else rows
                assert torch.equal(rows.to(torch.int64), expected[:, None].expand(rows.shape)), name
            assert batch["second"].untyped_storage().nbytes() == 4 * 60 * 8


def test_threads_that_share_a_feed_have_slots_of_their_own(forks_in_turn, monkeypatch):
    begin = _worker_feed._Epoch.__init__

    def begin_slowly(epoch, *arguments):
        time.sleep(0.05)
        begin(epoch, *arguments)

    monkeypatch.setattr(_worker_feed._Epoch, "__init__", begin_slowly)
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

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pools[0] is not pools[1]


class Unpicklable(DataLoader):
    def __getstate__(self):
        raise TypeError("stays here")


class Frozen(DataLoader):
    def __setattr__(self, name, value):
        if "frozen" in vars(self):
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


class OwnCollate(DataLoader):
    @property
    def collate_fn(self):
        return vars(self)["own"]

    @collate_fn.setter
    def collate_fn(self, function):
        vars(self).setdefault("own", function)


class AllEqual(DataLoader):
    def __eq__(self, other):
        return True


class Closing(DataLoader):
    def __del__(self):
        self.dataset.count = 0


@pytest.mark.parametrize("kind", [Unpicklable, Frozen, OwnCollate, AllEqual, Closing])
def test_loaders_of_other_classes_give_their_batches(kind):
    loader = kind(Tensors(), 5, num_workers=1, shuffle=True, generator=torch.Generator().manual_seed(2))
    vars(loader)["frozen"] = True
    feed = penstock.feed(loader, "host")
    generator = torch.Generator().manual_seed(2)
    plain_loader = DataLoader(Tensors(), 5, num_workers=1, shuffle=True, generator=generator)
    for _ in range(2):
        equal(kept(feed), kept(plain_loader))
    assert (SHARED in feed.describe()) == (kind in (Unpicklable, Frozen, AllEqual))


def test_persistent_workers_are_the_loaders():
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True)
    expected, processes = kept(DataLoader(Tensors(), 5)), set()
    for _ in range(3):
        feed = penstock.feed(loader, "host")
        equal(kept(feed), expected)
        processes |= {process.pid for process in slots_of(feed).processes}
    assert len(processes) == 1


def test_loaders_that_are_equal_have_workers_of_their_own():
    first = AllEqual(Tensors(10), 5, num_workers=1, persistent_workers=True)
    second = AllEqual(Tensors(10, 3), 5, num_workers=1, persistent_workers=True)
    for loader, shape in ((first, (16, 33)), (second, (3,))):
        equal(kept(penstock.feed(loader, "host")), kept(DataLoader(Tensors(10, *shape), 5)))
    copied = copy.copy(first)
    processes = {id(slots_of(feed)) for feed in map(begun, (first, copied))}
    assert len(processes) == 2


def begun(loader):
    feed = penstock.feed(loader, "host")
    kept(feed)
    return feed


class Owner:
    """Has a loader whose collate_fn is its own method."""

    def __init__(self):
        self.loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True, collate_fn=self.collate)

    def collate(self, samples):
        return torch.stack([image for image, _ in samples])


def test_persistent_workers_go_with_the_owner_of_their_loader(impatient):
    owner = Owner()
    gone = weakref.ref(owner)
    kept(penstock.feed(owner.loader, "host"))
    del owner
    gc.collect()
    assert gone() is None
    assert _worker_feed.granted() == 0


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


class Remembering(Tensors):
    """Tells how often what it remembers has changed."""

    memory = None

    def __getitem__(self, i):
        if self.memory is None:
            return torch.zeros(900), 0
        time.sleep(0.002)
        return torch.full((900,), float(i)), int((self.memory != self.memory[0, 0]).any() or self.memory[0, 0] != 1)


def test_what_workers_have_inherited_is_not_overwritten():
    dataset = Remembering()
    feed = penstock.feed(DataLoader(dataset, 4, num_workers=1), "host")
    kept(feed)
    batch = list(feed)[-1]
    batch[0][:] = 1
    dataset.memory = batch[0]
    changed = 0
    for number, batch in enumerate(feed):
        if number == 1:
            dataset.memory = None
        changed += int(batch[1].sum())
    assert changed == 0
    assert slots_of(feed).shared.retired == 0
    batch = None
    kept(feed)
    check_all_free(slots_of(feed))


def test_a_raised_limit_gives_room(limit):
    limit(1 << 20)
    feed = penstock.feed(DataLoader(Tensors(60, 900, 900), 5, num_workers=1), "host")
    kept(feed)
    assert "is larger than a slot may be" in feed.describe()[-1]
    limit(1 << 30)
    kept(feed)
    assert max(slots_of(feed)._granted) == 4 << 20


def test_an_idle_feed_keeps_no_process_open():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2), "host")
    kept(feed)
    assert slots_of(feed).processes == []


def test_a_child_keeps_the_batch_that_it_inherited():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True), "host")
    for _ in range(2):
        kept(feed)
    batch = next(iter(feed))
    expected = batch[0].clone()
    go_on, theirs = multiprocessing.get_context("fork").Pipe()

    def look(batch, connection, expected):
        same = torch.equal(batch[0], expected)
        connection.recv()
        connection.send(same and torch.equal(batch[0], expected))

    child = multiprocessing.get_context("fork").Process(target=look, args=(batch, theirs, expected))
    child.start()
    del batch
    for _ in range(3):
        kept(feed)
    go_on.send(None)
    assert go_on.recv()
    child.join()
    assert slots_of(feed).shared.retired == 1


def test_workers_that_are_forked_retire_no_slot():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
    pools = set()
    for _ in range(3):
        for batch in feed:  # the last one is kept when the next workers start
            assert len(batch) == 2
        pools.add(id(slots_of(feed)))
    assert len(pools) == 1
    assert slots_of(feed).shared.retired == 0


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


def test_new_workers_get_no_slot_of_one_that_still_runs():
    feed = penstock.feed(DataLoader(Heavy(), 4, num_workers=1), "host", native=False)
    kept(feed)
    iterator = iter(feed)
    next(iterator)
    source = weakref.ref(iterator._source)
    workers = iterator._source._iterator  # kept, and with it the worker
    before = slots_of(feed)
    del iterator
    assert source() is None
    equal(kept(feed), kept(DataLoader(Heavy(), 4)))
    assert slots_of(feed) is not before
    del workers


class Outlier(Dataset):
    """Batches of one sample each, the first of which is huge."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return noise(i, 9_000_000 if i == 0 else 1_000_000)


def test_a_batch_beyond_the_limit_is_alone(monkeypatch, limit):
    limit(16 << 20)
    counted = Counting(monkeypatch)
    feed = penstock.feed(DataLoader(Outlier(), 1, num_workers=1, persistent_workers=True), "host")
    for _ in range(2):
        for batch in feed:
            assert len(batch[0]) > 0
            time.sleep(0.001)
    assert counted.slots > 80
    del batch


def test_slots_grow_when_others_are_gone(limit):
    limit(8 << 20)
    feeds = [penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host") for _ in range(2)]
    for _ in range(2):
        for feed in feeds:
            kept(feed)
    assert sum(slots_of(feed)._granted) == 0
    assert feed.describe()[-1] == "worker_memory_limit allows no more"
    del feeds[0]
    gc.collect()
    for _ in range(2):
        kept(feed)
    assert sum(slots_of(feed)._granted) == 8 << 20


def test_an_array_is_counted_once():
    def most_wanted(collate):
        feed = penstock.feed(DataLoader(Tensors(20, 900, 900), 5, num_workers=1, collate_fn=collate), "host")
        kept(feed)
        return max(slots_of(feed)._granted)

    assert most_wanted(None) == most_wanted(odd_kinds_of_large)


def odd_kinds_of_large(samples):
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def give_list(array):
    return list, (array.tolist(),)


class Registered(Tensors):
    def __getitem__(self, i):
        return np.arange(i, i + 3)


def test_a_programs_own_way_to_send_arrays_is_taken():
    reduction = _shared_slots.reduction.ForkingPickler
    reduction.register(np.ndarray, give_list)
    try:
        feed = penstock.feed(DataLoader(Registered(6), 2, num_workers=1, collate_fn=as_they_are), "host")
        equal(kept(feed), [[[i, i + 1, i + 2], [i + 1, i + 2, i + 3]] for i in (0, 2, 4)])
    finally:
        del reduction._extra_reducers[np.ndarray]


EXIT = """
import sys
import penstock, torch
from test_worker_feed import Tensors
from torch.utils.data import DataLoader

if __name__ == "__main__":
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=sys.argv[1] == "1"), "host")
    for _ in range(2):
        for number, batch in enumerate(feed):
            if number == 3:
                break
    iterator = iter(feed)
    kept = [next(iterator) for _ in range(3)]
    print("leaving")
"""


@pytest.mark.parametrize("persistent", "01")
def test_an_interpreter_that_exits_in_an_epoch_leaves_nothing(tmp_path, persistent):
    script = tmp_path / "leaves.py"
    script.write_text(EXIT)
    here = str(pathlib.Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, str(script), persistent],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n"
    assert "Traceback" not in done.stderr and "leaked" not in done.stderr


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


def test_a_batch_that_cannot_be_pickled_is_an_error():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, collate_fn=lambda samples: lambda: samples), "host")
    assert "pickle" in message_of(kept, feed)


@pytest.mark.parametrize("refused", ["files", "addresses"])
def test_shared_memory_that_is_refused_leaves_the_workers_alone(refused):
    expected = kept(DataLoader(Tensors(), 5))
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2), "host")
    addresses = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    what, room, why = {
        "files": (resource.RLIMIT_FSIZE, 1 << 20, "files may have 1 MiB"),
        "addresses": (resource.RLIMIT_AS, addresses + (2 << 30), "mmap: Cannot allocate memory"),
    }[refused]
    before = resource.getrlimit(what)
    resource.setrlimit(what, (room, before[1]))
    try:
        equal(kept(feed), expected)
        assert slots_of(feed) is None
        (line,) = feed.describe()[1:]
        assert line.startswith("worker processes send their batches as they do without penstock: shared memory")
        assert why in line
    finally:
        resource.setrlimit(what, before)
    equal(kept(feed), expected)
    assert SHARED in feed.describe(), "the next epoch asks again"


def test_a_budget_of_one_batch_is_one_slot(limit, monkeypatch):
    """The workers whose slots have no room send as they do without penstock."""
    limit(2 << 20)
    counted = Counting(monkeypatch)
    loader = DataLoader(Tensors(COUNT, 3, 100, 1000), 4, num_workers=3)
    expected = kept(loader)
    feed = penstock.feed(loader, "host")
    for _ in range(3):
        equal(kept(feed), expected)
    assert counted.slots > 0 and counted.others > 0
    assert sorted(slots_of(feed)._granted, reverse=True) == [2 << 20] + [0] * (slots_of(feed).shared.slots - 1)
    assert feed.describe()[-2].startswith("1 of ")
    assert feed.describe()[-1] == "worker_memory_limit allows no more"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_more_workers_than_cores_give_their_batches(device):
    workers = os.cpu_count() + 3
    loader = DataLoader(Tensors(), 1, num_workers=workers)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        equal(kept(feed), kept(DataLoader(Tensors(), 1)))
    assert slots_of(feed).shared.slots % workers == 0
    assert sum(slots_of(feed)._granted) == slots_of(feed).shared.slots * (2 << 20)


SHARES = """
import json, os, sys
import penstock, torch
from test_worker_feed import Tensors, kept, slots_of
from support import same
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(Tensors(), 5, num_workers=2)
    feed = penstock.feed(loader, "host", sharded=True)
    right = all(same(kept(feed), kept(loader)) for _ in range(2))
    facts = {"right": right, "limit": penstock.worker_memory_limit(), "slots": sum(slots_of(feed)._granted)}
    with open(sys.argv[1] + os.environ["RANK"], "w") as file:
        json.dump(facts, file)
"""


def test_processes_of_torchrun_on_one_host_share_the_limit(tmp_path):
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(tmp_path / "rank")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in "01":
        facts = json.loads((tmp_path / f"rank{rank}").read_text())
        assert facts["right"] and facts["slots"] > 0
        assert facts["limit"] == _core.host_memory_bytes() // 4 // 2


@pytest.fixture
def reserved_pages():
    """Sets how many huge pages the machine has in reserve, for the test."""
    file = pathlib.Path("/proc/sys/vm/nr_hugepages")
    before = file.read_text()

    def reserve(count):
        try:
            file.write_text(str(count))
        except OSError as error:
            pytest.skip(f"{file} cannot be written: {error}")
        if int(file.read_text()) != count:
            pytest.skip(f"the machine has no {count} huge pages in a row")

    yield reserve
    if file.read_text() != before:
        file.write_text(before)


@pytest.mark.parametrize("count", [0, 1, 16])
def test_huge_pages_in_reserve_change_no_batch(reserved_pages, count):
    """None, too few for the slots, and enough for some."""
    reserved_pages(count)
    expected = kept(DataLoader(Tensors(COUNT, 3, 100, 1000), 4))
    feed = penstock.feed(DataLoader(Tensors(COUNT, 3, 100, 1000), 4, num_workers=2), "host")
    for _ in range(2):
        equal(kept(feed), expected)
    assert SHARED in feed.describe()
