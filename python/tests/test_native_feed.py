"""feed around a DataLoader whose dataset is tensors."""

import copy
import gc
import multiprocessing
import pickle
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

import penstock

COUNT = 97
NATIVELY = "the dataset is tensors, whose samples are gathered without worker processes"


def tensors(seed=1, count=COUNT):
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, 256, (count, 5, 7), dtype=torch.uint8, generator=random),
        torch.randint(-(2**40), 2**40, (count,), generator=random),
        torch.rand(count, 3, generator=random),
    )


def kept(batch):
    return [field.cpu().clone() for field in batch]


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is list
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


class Backwards(Sampler):
    """Gives Python's numbers, some from the end, and draws from the global random state for each."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for i in range(self.count):
            yield -1 - i if torch.rand(()) < 0.5 else self.count - 1 - i

    def __len__(self):
        return self.count


class Growing:
    """Batches of 1, 2, 3 ... samples, of which the largest is known."""

    batch_size = 9

    def __iter__(self):
        begin = 0
        for size in range(1, 10):
            yield list(range(begin, begin + size))
            begin += size


def of_a_subset(generator):
    return DataLoader(Subset(TensorDataset(*tensors()), [5, -1, 5, 40, 0]), batch_size=2, shuffle=True)


def of_a_subset_of_a_subset(generator):
    inner = Subset(TensorDataset(*tensors()), torch.arange(90, 10, -2))
    return DataLoader(Subset(inner, range(3, 30)), batch_size=4, shuffle=True, generator=generator)


def of_a_split(generator):
    part, _ = random_split(TensorDataset(*tensors()), [40, COUNT - 40], torch.Generator().manual_seed(9))
    return DataLoader(part, batch_size=8, shuffle=True)


def plain(**options):
    def make(generator):
        dataset = TensorDataset(*tensors())
        given = {name: value(dataset, generator) for name, value in options.items() if callable(value)}
        return DataLoader(dataset, **{"batch_size": 16, **options, **given})

    return make


LOADERS = {
    "in order": plain(),
    "shuffled": plain(shuffle=True),
    "full batches": plain(shuffle=True, drop_last=True),
    "of one sample": plain(batch_size=1),
    "one batch": plain(shuffle=True, batch_size=10**9),
    "a generator": plain(shuffle=True, generator=lambda dataset, generator: generator),
    "a generator of its own": plain(sampler=lambda dataset, generator: RandomSampler(dataset, generator=generator)),
    "workers": plain(shuffle=True, num_workers=2),
    "persistent workers": plain(shuffle=True, num_workers=1, persistent_workers=True),
    "with repeats": plain(sampler=lambda dataset, _: RandomSampler(dataset, replacement=True, num_samples=150)),
    "weighted": plain(sampler=lambda dataset, _: WeightedRandomSampler(torch.arange(1.0, COUNT + 1), 120)),
    "distributed": plain(sampler=lambda dataset, _: DistributedSampler(dataset, 3, 1, seed=4)),
    "a sampler of another kind": plain(sampler=Backwards(COUNT)),
    "a batch sampler": plain(
        batch_size=1, batch_sampler=lambda dataset, _: BatchSampler(RandomSampler(dataset), 13, False)
    ),
    "a batch sampler of another kind": plain(batch_size=1, batch_sampler=Growing()),
    "a subset": of_a_subset,
    "a subset of a subset": of_a_subset_of_a_subset,
    "a split": of_a_split,
}


def epochs_of(make, wrap):
    """The batches of three epochs, the second one left early, and the random states after each."""
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(7)
    loader = wrap(make(generator))
    batches, states = [], []
    for most in (None, 3, None):
        for taken, batch in enumerate(loader, 1):
            batches.append(kept(batch))
            if taken == most:
                break
        states += [torch.get_rng_state(), generator.get_state()]
    return batches, states


@pytest.mark.parametrize("name", LOADERS)
def test_batches_and_random_states_are_the_loaders(device, name):
    make = LOADERS[name]

    def natively(loader):
        fed = penstock.feed(loader, device=device)
        assert fed.describe()[0] == NATIVELY
        return fed

    batches, states = epochs_of(make, natively)
    ordinary, theirs = epochs_of(make, lambda loader: penstock.feed(loader, device=device, native=False))
    same(batches, ordinary)
    assert all(map(torch.equal, states, theirs))
    if not name.startswith("a sampler") and "repeats" not in name:  # these draw ahead of the batch
        same(batches, epochs_of(make, lambda loader: loader)[0])


def test_no_worker_process_is_started(device):
    fed = penstock.feed(DataLoader(TensorDataset(*tensors()), batch_size=8, num_workers=2), device=device)
    before = set(multiprocessing.active_children())
    next(iter(fed))
    assert set(multiprocessing.active_children()) <= before


def by_torch(x):
    x.add_(1)


def by_numpy(x):
    np.copyto(x.numpy(), x.numpy()[::-1].copy())


def by_data(x):
    x.data.mul_(3)


def with_new_memory(x):
    x.data = (x + 7).clone()


def with_more_in_a_sample(x):
    x.data = torch.cat([x, x], dim=x.ndim - 1).clone() if x.ndim > 1 else x.flip(0).clone()


@pytest.mark.parametrize("change", [by_torch, by_numpy, by_data, with_new_memory, with_more_in_a_sample])
@pytest.mark.parametrize("early", [False, True])
def test_an_epoch_gives_what_the_tensors_hold_when_it_begins(device, change, early):
    large = torch.randint(0, 256, (64, 600_000), dtype=torch.uint8)  # the device reads it where it lies
    labels = torch.arange(64)  # integers that a byte holds
    dataset = TensorDataset(large, labels)
    fed = penstock.feed(DataLoader(dataset, batch_size=16, shuffle=True), device=device)
    for epoch in range(3):
        torch.manual_seed(epoch)
        theirs = list(DataLoader(dataset, batch_size=16, shuffle=True))
        torch.manual_seed(epoch)
        ours = []
        for batch in fed:
            ours.append(batch)
            if early and len(ours) == 2:
                break
        # What was handed out stays as it was, even if nobody has waited for it.
        change(large)
        labels.mul_(2**20 if epoch == 0 else 3)
        same([kept(batch) for batch in ours], theirs[: len(ours)])
        assert len(ours) == (2 if early else 4)


def test_an_epoch_gives_the_samples_that_are_picked_when_it_begins(device):
    subset = Subset(TensorDataset(*tensors()), [3, 1, 4, 1, 5])
    loader = DataLoader(subset, batch_size=2)
    fed = penstock.feed(loader, device=device)
    same([kept(batch) for batch in fed], list(loader))
    subset.indices[1] = 96
    same([kept(batch) for batch in fed], list(loader))
    loader.batch_sampler.batch_size = 4
    same([kept(batch) for batch in fed], list(loader))
    assert fed.describe()[0] == NATIVELY
    assert fed.stats().batches == 2, "of a loader for larger batches"


def test_writing_meanwhile_is_told(device):
    x, y, z = tensors()
    fed = penstock.feed(DataLoader(TensorDataset(x, y, z), batch_size=8), device=device)
    list(fed)
    x.add_(1)
    with pytest.warns(UserWarning, match="written to while an epoch was under way") as caught:
        for _ in fed:
            y.add_(1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(fed)) == 13


def test_batches_that_are_kept_stay_valid(device):
    dataset = TensorDataset(*tensors(count=400))
    batches = list(penstock.feed(DataLoader(dataset, batch_size=4), device=device))
    assert len(batches) == 100
    same([kept(batch) for batch in batches], list(DataLoader(dataset, batch_size=4)))


def test_iterators_side_by_side(device):
    dataset = TensorDataset(*tensors())
    fed = penstock.feed(DataLoader(dataset, batch_size=8), device=device)
    pairs = [(kept(a), kept(b)) for a, b in zip(fed, fed, strict=True)]
    whole = list(DataLoader(dataset, batch_size=8))
    same([a for a, _ in pairs], whole)
    same([b for _, b in pairs], whole)
    assert fed.describe()[0] == NATIVELY
    one = iter(fed)
    next(one)
    assert fed.describe()[0] == NATIVELY, "the one that is under way"
    other = iter(fed)
    assert type(other) is not type(one)
    next(other), next(other)
    assert fed.stats().batches == 15, "of the ordinary ones"
    assert len(list(one)) == 12
    assert len(list(other)) == 11


def test_an_iterator_that_is_dropped_is_no_longer_under_way(device):
    fed = penstock.feed(DataLoader(TensorDataset(*tensors()), batch_size=8), device=device)
    first = iter(fed)
    kind = type(first)
    next(first)
    del first
    assert type(iter(fed)) is kind


class Failing(Sampler):
    def __init__(self, good, bad):
        self.good, self.bad = good, bad

    def __iter__(self):
        yield from range(self.good)
        if isinstance(self.bad, Exception):
            raise self.bad
        yield self.bad

    def __len__(self):
        return COUNT


@pytest.mark.parametrize("bad", [KeyError("lost"), COUNT, -COUNT - 1, 1.5])
def test_errors_come_in_their_place(device, bad):
    sampler = Failing(40, bad)
    fed = penstock.feed(DataLoader(TensorDataset(*tensors()), batch_size=8, sampler=sampler), device=device)
    for _ in range(2):
        iterator = iter(fed)
        for _ in range(5):
            next(iterator)
        with pytest.raises((KeyError, IndexError, penstock.InvalidArgument)) as caught:
            next(iterator)
        if isinstance(bad, Exception):
            assert caught.value is bad
        else:
            assert isinstance(caught.value, IndexError) == isinstance(bad, int)
        if sys.version_info >= (3, 11):
            assert any("penstock.feed" in line for line in caught.value.__notes__)
        assert next(iterator, None) is None
    sampler.bad = 3
    assert len(list(fed)) == 6


def test_a_batch_that_is_larger_than_said_is_an_error(device):
    class Larger(Growing):
        batch_size = 4

    fed = penstock.feed(DataLoader(TensorDataset(*tensors()), batch_sampler=Larger()), device=device)
    with pytest.raises(penstock.InvalidArgument, match="a batch of 5 samples, and the loader's batch size is 4"):
        list(fed)


class Rows(Dataset):
    """A dataset that says that it is tensors."""

    def __init__(self, rows):
        self.__penstock_tensors__ = rows

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        rows = self.__penstock_tensors__
        if isinstance(rows, dict):
            return {name: tensor[index] for name, tensor in rows.items()}
        return tuple(tensor[index] for tensor in rows)


def test_a_dataset_may_say_that_it_is_tensors(device):
    x, y, z = tensors()
    for rows in ((x, y), [x, z], {"image": x, "label": y}):
        loader = DataLoader(Subset(Rows(rows), range(7, 50)), batch_size=16)
        fed = penstock.feed(loader, device=device)
        assert fed.describe()[0] == NATIVELY
        for ours, theirs in zip(fed, loader, strict=True):
            assert type(ours) is type(theirs)
            if isinstance(rows, dict):
                assert list(ours) == list(theirs)
                ours, theirs = list(ours.values()), list(theirs.values())
            same([kept(ours)], [theirs])


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * x for x in super().__getitem__(index))


class LoaderOfTheirOwn(DataLoader):
    pass


class Unsized:
    def __iter__(self):
        yield [1, 2]


def loader_of(*arrays, **options):
    return DataLoader(TensorDataset(*arrays), **{"batch_size": 8, **options})


X, Y, Z = tensors()
NOT_NATIVE = {
    "native=False": (lambda: loader_of(X), {"native": False}),
    "prefetch_depth is 0": (lambda: loader_of(X), {"prefetch_depth": 0}),
    "prefetch_depth is 65": (lambda: loader_of(X), {"prefetch_depth": 65}),
    "it is a list": (lambda: [[X], [Y]], {}),
    "it is a LoaderOfTheirOwn": (lambda: LoaderOfTheirOwn(TensorDataset(X), batch_size=8), {}),
    "it does not batch": (lambda: loader_of(X, batch_size=None), {}),
    "a collate_fn of its own": (lambda: loader_of(X, collate_fn=lambda samples: default_collate(samples)), {}),
    "a worker_init_fn": (lambda: loader_of(X, worker_init_fn=print), {}),
    "does not say how large": (lambda: DataLoader(TensorDataset(X), batch_sampler=Unsized()), {}),
    "its dataset is a Doubled": (lambda: DataLoader(Doubled(X, Y), batch_size=8), {}),
    "its dataset is a list": (lambda: DataLoader(list(Z), batch_size=8), {}),
    "its dataset has no tensors": (lambda: DataLoader(Rows(()), batch_sampler=BatchSampler([], 4, False)), {}),
    "field1 of its dataset is empty": (lambda: loader_of(X, torch.empty(COUNT, 0)), {}),
    "field0 of its dataset is empty, or its values": (lambda: loader_of(X.transpose(1, 2)), {}),
    "requires gradients": (lambda: loader_of(Z.clone().requires_grad_()), {}),
    "is a Parameter": (lambda: loader_of(torch.nn.Parameter(Z)), {}),
    "has the type torch.complex64": (lambda: loader_of(torch.view_as_complex(Z[:, :2].contiguous())), {}),
    "of its Subset are not whole": (lambda: DataLoader(Subset(TensorDataset(X), Y[:9, None] % 9), batch_size=3), {}),
    "does not have": (lambda: DataLoader(Subset(TensorDataset(X), [1, COUNT]), sampler=[0]), {}),
}


@pytest.mark.parametrize("why", NOT_NATIVE)
def test_other_batches_are_those_that_the_loader_makes(device, why):
    make, options = NOT_NATIVE[why]
    fed = penstock.feed(make(), device=device, **options)
    (line,) = fed.describe()
    assert line.startswith("the batches are those that the loader makes: ")
    assert why in line
    ours, theirs = list(fed), list(make())
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            a, b = [a], [b]
        assert type(a) is type(b)
        assert all(torch.equal(x.cpu(), y.detach()) for x, y in zip(a, b, strict=True))


def test_another_way_to_collate_tensors_is_obeyed(device, monkeypatch):
    collate = torch.utils.data._utils.collate
    fed = penstock.feed(loader_of(X), device=device)
    assert fed.describe()[0] == NATIVELY
    twice = lambda batch, *, collate_fn_map=None: 2 * torch.stack(batch)  # noqa: E731
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, twice)
    assert "collate_fn" in fed.describe()[0]
    assert torch.equal(next(iter(fed))[0].cpu(), 2 * X[:8])


def test_a_batch_that_the_device_cannot_hold_goes_the_loaders_way():
    fed = penstock.feed(loader_of(X), device="host:memory=512")
    assert "one batch does not fit" in fed.describe()[0]


def test_the_statistics_are_those_of_the_native_loader(device):
    fed = penstock.feed(loader_of(X, Y), device=device)
    statistics = fed.stats()
    assert statistics.batches == 0
    for epoch in (1, 2):
        list(fed)
        assert (statistics.batches, statistics.samples) == (13 * epoch, COUNT * epoch)
    assert len(statistics.timeline) > 0


def test_a_pickled_feed_stays_native_or_not(device):
    for native in (True, False):
        fed = penstock.feed(loader_of(X, Y), device=device, native=native)
        list(fed)
        for again in (pickle.loads(pickle.dumps(fed)), copy.deepcopy(fed)):
            assert again.native is native
            assert (again.describe()[0] == NATIVELY) is native
            same([kept(batch) for batch in again], list(loader_of(X, Y)))


def test_nothing_is_left_of_a_feed(device):
    x, y, _ = tensors()
    fed = penstock.feed(loader_of(x, y), device=device)
    iterator = iter(fed)
    next(iterator)
    gone = [weakref.ref(value) for value in (fed, iterator, x)]
    del fed, iterator, x
    gc.collect()
    assert [value() for value in gone] == [None, None, None]


def test_a_program_may_end_in_the_middle_of_an_epoch():
    program = """
import torch, penstock
from torch.utils.data import DataLoader, TensorDataset
fed = penstock.feed(DataLoader(TensorDataset(torch.arange(100)), batch_size=2, shuffle=True), device="host")
iterator = iter(fed)
kept = [next(iterator), next(iterator)]
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
