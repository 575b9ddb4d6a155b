"""A feed of a group: every device gets the batches of the wrapped loader."""

import gc
import itertools
import pickle
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import penstock
import test_native_feed as native_tests
import worker_loaders
from interrupts import taken_amid_alarms
from penstock._engines import engine_for
from support import groups_of, same

# Each device opens once in a process, so the specs are those of this file.
GROUPS = groups_of(14, 15, 13)
LARGE = 3 << 20


@pytest.fixture(params=GROUPS)
def group(request):
    return GROUPS[request.param]


def copied(batch):
    """What each device got, on the host, which must be the same. Its memory is overwritten: nobody else may see it."""
    first, *others = [penstock.to_host(part) for part in batch]
    first = torch.utils._pytree.tree_map(copy_of, first)
    assert all(same(first, other) for other in others)
    overwrite(batch[0])
    assert all(same(first, penstock.to_host(part)) for part in batch[1:]), "each device has memory of its own"
    for part in batch[1:]:
        overwrite(part)
    return first


def copy_of(value):
    return (
        value.clone() if isinstance(value, torch.Tensor) else value.copy() if isinstance(value, np.ndarray) else value
    )


def overwrite(nest):
    for value in torch.utils._pytree.tree_leaves(nest):
        if isinstance(value, torch.Tensor | np.ndarray):
            value[...] = 1


class OfOne:
    """A feed of a group, as a feed of one device looks that gets the same."""

    def __init__(self, fed):
        self.fed = fed

    def __iter__(self):
        return map(copied, self.fed)


# Natively


@pytest.mark.parametrize("name", native_tests.LOADERS)
def test_batches_and_random_states_are_the_loaders(group, name):
    make = native_tests.LOADERS[name]

    def natively(loader):
        fed = penstock.feed(loader, group=group)
        assert fed.describe()[0] == native_tests.NATIVELY
        return OfOne(fed)

    batches, states = native_tests.epochs_of(make, natively)
    ordinary, theirs = native_tests.epochs_of(make, lambda loader: penstock.feed(loader, "host", native=False))
    assert same(batches, ordinary)
    assert all(map(torch.equal, states, theirs))


@pytest.mark.parametrize("name", native_tests.ODD)
def test_what_is_no_row_is_made_in_the_ordinary_way(group, name):
    loader = DataLoader(TensorDataset(*native_tests.tensors()), batch_size=3, sampler=native_tests.ODD[name])
    ours = native_tests.outcomes(OfOne(penstock.feed(loader, group=group)))
    theirs = native_tests.outcomes(penstock.feed(loader, "host", native=False))
    assert same(ours, theirs)


def test_a_dict_of_tensors_is_a_dict_on_each_device(group):
    class Rows(Dataset):
        def __init__(self):
            self.x = torch.arange(30.0).reshape(10, 3)

        @property
        def __penstock_tensors__(self):
            return {"x": self.x, "twice": self.x * 2}

        def __len__(self):
            return 10

        def __getitem__(self, i):
            return {"x": self.x[i], "twice": self.x[i] * 2}

    fed = penstock.feed(DataLoader(Rows(), batch_size=4), group=group)
    assert fed.describe()[0] == native_tests.NATIVELY
    assert same([copied(batch) for batch in fed], list(DataLoader(Rows(), batch_size=4)))


def test_an_epoch_gives_what_the_tensors_hold_when_it_begins(group):
    x = torch.zeros(40, 600)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4), group=group)
    for epoch in range(6):
        x[:] = epoch
        for taken, batch in enumerate(fed):
            assert all((part[0] == epoch).all() for part in batch)
            if epoch % 2 and taken == 3:
                break
        del batch


def test_what_changes_meanwhile_is_then_read_in_the_ordinary_way(group):
    x = torch.zeros(40, 600)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4), group=group)
    iterator = iter(fed)
    next(iterator)
    x[:] = 7
    assert all((part[0] == 7).all() for part in next(iterator))
    assert len(list(iterator)) == 8


def test_native_batches_may_be_kept(group):
    x = torch.rand(97, 31)
    kept = list(penstock.feed(DataLoader(TensorDataset(x), batch_size=8), group=group))
    for device in range(len(group)):
        assert torch.equal(torch.cat([batch[device][0] for batch in kept]), x)


def test_iterators_side_by_side(group):
    x = torch.arange(60)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=7), group=group)
    first = iter(fed)
    got = [next(first) for _ in range(2)]
    second = iter(fed)
    begun = next(second)
    got += list(first)
    for batches in got, [begun, *second]:
        for device in range(len(group)):
            assert torch.equal(torch.cat([batch[device][0] for batch in batches]), x)


@pytest.mark.parametrize("kind", ["penstock's sampler", "PyTorch's"])
def test_goes_on_where_a_state_was_taken(group, kind):
    x = torch.arange(60)
    dataset = TensorDataset(x)

    def make():
        if kind == "PyTorch's":
            torch.manual_seed(5)
            loader = DataLoader(dataset, batch_size=7, shuffle=True)
        else:
            loader = DataLoader(dataset, batch_size=7, sampler=penstock.Sampler(dataset, shuffle=True, seed=4))
        return penstock.feed(loader, group=group, resumable=True)

    fed = make()
    iterator = iter(fed)
    before = [copied(next(iterator))[0] for _ in range(3)]
    state = fed.state_dict()
    rest = [copied(batch)[0] for batch in iterator]
    assert sorted(torch.cat([*before, *rest]).tolist()) == list(range(60))
    again = make()
    again.load_state_dict(state)
    assert same([copied(batch)[0] for batch in again], rest)


def test_signals_lose_no_batch():
    x = torch.rand(40, 60_000)
    group = ["host:14,link=0.01,peer=1", "host:15,link=0.01,peer=1"]
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4, sampler=native_tests.Slow(40)), group=group)
    got, count, _ = taken_amid_alarms(fed, copied)
    assert same(got, [[rows] for rows in x.split(4)])
    assert count > 0
    assert fed.stats().batches == 10, "all of them were gathered natively"


def test_each_byte_crosses_one_link():
    x = torch.randint(0, 255, (1000, 400), dtype=torch.uint8)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=10), group=GROUPS["plain"])
    assert len(fed) == 100
    for _ in fed:
        pass
    carried = [account.link_bytes for account in fed.device_stats()]
    assert sum(carried) == x.numel() == fed.stats().link_bytes
    assert min(carried) > 0.4 * x.numel()
    assert fed.stats().batches == 100
    assert all(spec in fed.describe()[-1] for spec in fed.devices)
    assert fed.stats().device == fed.device == "host:14 and host:15"


# In the ordinary way


def nests(random):
    return [
        {"large": torch.from_numpy(random.integers(0, 256, LARGE, np.uint8)), "few": [np.arange(3), (1, "kept")]},
        [torch.arange(5), np.zeros((0, 3))],
        torch.from_numpy(random.integers(0, 256, LARGE, np.uint8)),
        "no array",
        7,
    ]


def test_any_iterable_gives_its_batches(group, random):
    given = nests(random)
    for depth in 0, 2:
        fed = penstock.feed(given, prefetch_depth=depth, group=group)
        for _ in range(2):
            assert same([copied(batch) for batch in fed], given)


def test_large_batches_cross_one_link(random):
    given = [torch.from_numpy(random.integers(0, 256, LARGE, np.uint8)) for _ in range(6)]
    fed = penstock.feed(given, group=["host:12,memory=300MiB", "host:13,memory=300MiB"])
    assert same([copied(batch) for batch in fed], given)
    figures = fed.stats()
    assert (figures.batches, figures.link_bytes) == (6, 6 * LARGE)
    assert figures.delivered_bytes == 6 * LARGE, "as one device gets them"
    last = fed.describe()[-1]
    carried = [int(part.split()[1]) for part in last.split(" by ")[1].split(", ")]
    assert sum(carried) == 6 * LARGE
    with pytest.raises(penstock.InvalidArgument, match="the loader makes"):
        fed.device_stats()
    small = penstock.feed([torch.arange(10)], group=["host:12,memory=300MiB", "host:13,memory=300MiB"])
    assert len(list(small)) == 1
    assert small.stats().link_bytes == 2 * 80, "each device gets small batches over its own link"


def test_devices_that_do_not_reach_each_other_pull_for_themselves(random):
    given = [torch.from_numpy(random.integers(0, 256, LARGE, np.uint8)) for _ in range(3)]
    fed = penstock.feed(given, group=["host:12", "host:13,late=1"])
    assert same([copied(batch) for batch in fed], given)
    assert fed.stats().link_bytes == 2 * 3 * LARGE


def test_batches_may_be_kept_and_the_loop_left(group, random):
    given = nests(random)
    fed = penstock.feed(given, group=group)
    for _ in range(3):
        kept = list(itertools.islice(fed, 3))
    assert same([part for batch in kept for part in batch], [nest for nest in given[:3] for _ in group])


def test_an_error_comes_in_the_place_of_its_batch(group):
    class Failing:
        def __iter__(self):
            return self

        def __init__(self):
            self.count = 0

        def __next__(self):
            self.count += 1
            if self.count == 3:
                raise ValueError("the third one")
            if self.count > 5:
                raise StopIteration
            return torch.full((10,), float(self.count))

    iterator = iter(penstock.feed(Failing(), group=group))
    got = [copied(next(iterator)) for _ in range(2)]
    with pytest.raises(ValueError, match="the third one"):
        next(iterator)
    got += map(copied, iterator)
    assert [one[0].item() for one in got] == [1, 2, 4, 5]


def test_a_device_without_memory_is_an_error_in_the_place_of_the_batch(random):
    sizes = [1000, 40 << 20, 2000, LARGE]
    given = [torch.from_numpy(random.integers(0, 256, size, np.uint8)) for size in sizes]
    fed = penstock.feed(given, group=["host:14,memory=300MiB", "host:15,memory=30MiB"], prefetch_depth=0)
    iterator = iter(fed)
    assert same(copied(next(iterator)), given[0])
    with pytest.raises(penstock.OutOfMemory, match="host:15"):
        next(iterator)
    assert same([copied(batch) for batch in iterator], given[2:])


class Moving:
    """Moves itself."""

    def __init__(self, data):
        self.data = data

    def to(self, device, non_blocking=False):
        return Moving(self.data + 1)


def test_what_moves_itself_moves_to_each_device(group):
    large = torch.zeros(LARGE, dtype=torch.uint8)
    for first, *others in penstock.feed([[Moving(1), large], [Moving(2)]], group=group):
        assert all(other[0] is not first[0] and other[0].data == first[0].data for other in others)


# Around workers


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_batches_are_those_of_the_loader(group, persistent):
    def make():
        return DataLoader(
            worker_loaders.Nested(), batch_size=7, shuffle=True, num_workers=2, persistent_workers=persistent
        )

    torch.manual_seed(3)
    loader = make()
    expected = [list(loader) for _ in range(2)]
    torch.manual_seed(3)
    fed = penstock.feed(make(), group=group)
    assert same([[copied(batch) for batch in fed] for _ in range(2)], expected)
    assert worker_loaders.SHARED in fed.describe()


@pytest.mark.parametrize("large", [False, True])
def test_workers_batches_that_are_kept_stay_as_they_are(group, large):
    dataset = worker_loaders.Tensors(24, *((600_000,) if large else (16, 33)))
    loader = DataLoader(dataset, batch_size=3, num_workers=2)
    fed = penstock.feed(loader, group=group)
    list(fed)  # slots have room from here on
    kept = list(fed)
    assert same([part for batch in kept for part in batch], [batch for batch in loader for _ in group])


def test_a_loop_over_workers_may_be_left(group):
    loader = DataLoader(worker_loaders.Tensors(60, 40_000), batch_size=10, num_workers=2)
    fed = penstock.feed(loader, group=group)
    for taken in 1, 3, 2:
        for batch, expected in zip(itertools.islice(fed, taken), loader, strict=False):
            assert same(copied(batch), expected)
    assert same([copied(batch) for batch in fed], list(loader))


def test_an_exception_of_a_worker_has_its_traceback(group):
    loader = DataLoader(worker_loaders.Failing(), batch_size=10, num_workers=2)
    iterator = iter(penstock.feed(loader, group=group))
    got = [copied(next(iterator)) for _ in range(2)]
    with pytest.raises(ValueError, match="sample 25 is broken") as caught:
        next(iterator)
    assert "__getitem__" in str(caught.value), "the worker's own traceback"
    got += map(copied, iterator)
    assert len(got) == 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as in test_worker_faults.py
def test_a_worker_that_is_killed_is_an_error(group):
    loader = DataLoader(worker_loaders.Tensors(60), batch_size=5, num_workers=1)
    fed = penstock.feed(loader, group=group)
    iterator = iter(fed)
    next(iterator)
    with pytest.raises(RuntimeError, match=r"DataLoader worker"):
        for process in fed._ways.workers.pool.processes:
            process.kill()  # PyTorch's handler of SIGCHLD may raise here already
        list(iterator)
    del iterator
    assert same([copied(batch) for batch in fed], list(loader))


# What has no meaning, and the rest


def test_a_pickled_feed_has_its_group(group):
    fed = penstock.feed(DataLoader(TensorDataset(torch.arange(10)), batch_size=5), prefetch_depth=3, group=iter(group))
    again = pickle.loads(pickle.dumps(fed))
    assert (again.group, again.devices, again.prefetch_depth) == (group, group, 3)
    assert same([copied(batch) for batch in again], [copied(batch) for batch in fed])


def test_nothing_is_left_of_a_feed(group):
    def left(native):
        x = torch.rand(400, 300)
        fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=20), group=group, native=native)
        batch = next(iter(fed))
        return weakref.ref(x), weakref.ref(fed), weakref.ref(batch[0][0]), weakref.ref(batch[-1][0])

    for native in True, False:
        for _ in range(3):
            references = left(native)
            deadline = time.monotonic() + 100
            while any(reference() is not None for reference in references):
                assert time.monotonic() < deadline
                gc.collect()
                for spec in group:
                    engine_for(spec).in_flight()  # drops what transfers that are done have needed


def test_refuses_what_has_no_meaning():
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=5)
    for arguments, words in [
        ({"group": "host:14"}, "list of devices"),
        ({"group": []}, "needs a device"),
        ({"group": ["host:14", "host:14"]}, "twice"),
        ({"group": GROUPS["plain"], "device": "host"}, "Leave out device"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=words):
            penstock.feed(loader, **arguments)
    with pytest.raises(penstock.InvalidArgument, match="one device"):
        penstock.feed(loader, device="host").device_stats()
