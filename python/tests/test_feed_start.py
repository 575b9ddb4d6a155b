"""A feed begins when a DataLoader does: at `iter()`, with the same draws, workers, errors and warnings."""

import itertools
import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import penstock

COUNT = 60
DATA = TensorDataset(torch.arange(COUNT))


class Made(Dataset):
    """The samples of DATA, which this dataset makes itself."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return DATA[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(COUNT))


class Drawing(Sampler):
    """Draws each index, by its own code, when it is asked for it."""

    def __iter__(self):
        for _ in range(COUNT):
            yield int(torch.randint(COUNT, ()))

    def __len__(self):
        return COUNT


class DrawingAtOnce(Sampler):
    """Draws them all when it is asked for its iterator."""

    def __iter__(self):
        return iter(torch.randint(COUNT, (COUNT,)).tolist())

    def __len__(self):
        return COUNT


class DrawingBatches(DrawingAtOnce):
    """A batch sampler of the user's."""

    def __iter__(self):
        return iter(torch.randint(COUNT, (6, 4)).tolist())


def shuffled(generator):
    return {"batch_size": 4, "shuffle": True}


ORDERS = {
    "in order": lambda generator: {"batch_size": 4},
    "shuffled": shuffled,
    "a generator": lambda generator: {**shuffled(generator), "generator": generator},
    "a sampler's generator": lambda generator: {"batch_size": 4, "sampler": RandomSampler(DATA, generator=generator)},
    "repeats": lambda generator: {"batch_size": 4, "sampler": RandomSampler(DATA, True, 30)},
    "weighted": lambda generator: {"batch_size": 4, "sampler": WeightedRandomSampler(torch.ones(COUNT), 30)},
    "drawn one by one": lambda generator: {"batch_size": 4, "sampler": Drawing()},
    "drawn at once": lambda generator: {"batch_size": 4, "sampler": DrawingAtOnce()},
    "drawn in batches": lambda generator: {"batch_sampler": DrawingBatches()},
    "in batches": lambda generator: {"batch_sampler": BatchSampler(RandomSampler(DATA), 5, True)},
}
WORKERS = {
    "none": {},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3},
}
DATASETS = {"native": DATA, "made": Made()}


def bare(loader):
    return loader


def fed(loader):
    return penstock.feed(loader, "host")


def values(batch):
    return (batch[0] if isinstance(batch, list) else batch).tolist()


def states(generator):
    """The random states of the process, which no one may change unseen."""
    return (
        torch.get_rng_state().tolist(),
        generator.get_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )


def story(wrap, make):
    """What a program sees that draws between `iter` and `next`, and drops and leaves iterators."""
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    generator = torch.Generator().manual_seed(7)
    loader = wrap(make(generator))
    told = [len(loader)]
    for most in (None, 0, 2, None):
        iterator = iter(loader)
        told.append(("begun", states(generator)))
        told.append(("between", torch.rand(2).tolist(), torch.rand(1, generator=generator).tolist()))
        told.append([values(batch) for batch in itertools.islice(iterator, most)])
        del iterator
    return told


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("data", DATASETS)
def test_what_is_drawn_is_drawn_when_a_dataloader_draws_it(data, order, workers):
    def make(generator):
        return DataLoader(DATASETS[data], **ORDERS[order](generator), **WORKERS[workers])

    # A feed reads ahead: it asks such a sampler for indices before a DataLoader does, but not before the first batch.
    events = 2 if order == "drawn one by one" else None
    for ours, theirs in zip(story(fed, make)[:events], story(bare, make)[:events], strict=True):
        assert ours == theirs


def begun(loader):
    """What is drawn after `iter`, and the batches."""
    torch.manual_seed(1)
    iterator = iter(loader)
    return torch.rand(1).item(), [values(batch) for batch in iterator]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_so_it_is_with_workers_that_are_not_forked(method):
    loader = DataLoader(Made(), 4, shuffle=True, num_workers=1, multiprocessing_context=method)
    assert begun(fed(loader)) == begun(loader)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("data", DATASETS)
def test_feeds_side_by_side_are_shuffled_as_their_loaders(data, workers):
    def pairs(wrap):
        torch.manual_seed(0)
        make = lambda: wrap(DataLoader(DATASETS[data], 4, shuffle=True, **WORKERS[workers]))  # noqa: E731
        return [(values(a), values(b)) for a, b in zip(make(), make(), strict=True)]

    assert pairs(fed) == pairs(bare)


def test_streams_begin_too():
    loader = DataLoader(Stream(), 4)
    assert begun(fed(loader)) == begun(loader)


def test_the_workers_of_several_loaders_start_beside_each_other():
    before = set(multiprocessing.active_children())
    iterators = [iter(fed(DataLoader(Made(), 4, num_workers=2))) for _ in range(3)]
    assert len(set(multiprocessing.active_children()) - before) == 6
    assert [len(list(iterator)) for iterator in iterators] == [15, 15, 15]


class NoStart:
    def __iter__(self):
        raise OSError("no start")


class Raising(Sampler):
    def __iter__(self):
        yield from range(6)
        raise KeyError("lost")

    def __len__(self):
        return COUNT


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (NoStart, OSError),
        (lambda: DataLoader(Made(), 4, sampler=Raising(), num_workers=2), KeyError),
        (lambda: DataLoader(DATA, 4, sampler=Raising(), num_workers=2), KeyError),
    ],
)
def test_errors_of_the_start_come_at_iter(make, kind):
    for wrap in (bare, fed):
        with pytest.raises(kind):
            iter(wrap(make()))


@pytest.mark.parametrize("data", DATASETS)
def test_errors_in_a_sampler_come_in_their_place_without_workers(data):
    for wrap in (bare, fed):
        iterator = iter(wrap(DataLoader(DATASETS[data], 4, sampler=Raising())))
        assert values(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(KeyError):
            next(iterator)


@pytest.mark.parametrize("loader", [DataLoader(DATA), DataLoader(Made()), [torch.zeros(1)]])
def test_warnings_of_the_start_come_at_iter(monkeypatch, loader):
    monkeypatch.setattr("penstock._others.processes", lambda: 2)
    with pytest.warns(penstock.NotShardedWarning):
        iter(penstock.feed(loader, "host"))


def test_the_account_has_the_start():
    loader = fed([torch.zeros(3)])
    iterator = iter(loader)
    statistics = loader.stats()
    started = statistics.startup_seconds
    assert started > 0 and statistics.batches == 0
    next(iterator)
    assert statistics.startup_seconds > started and statistics.loader_seconds > 0
    assert statistics.startup_seconds + statistics.loader_seconds <= statistics.seconds


class Augmented(Made):
    """Adds noise to its samples: from PyTorch's random state, or from a generator of its own for each."""

    def __init__(self, own):
        self.own = own

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index) if self.own else None
        return index, torch.rand(1, generator=generator)


@pytest.mark.parametrize(
    ("depth", "own", "workers", "as_bare"),
    [(0, False, 0, True), (2, False, 0, False), (2, True, 0, True), (2, False, 1, True)],
)
def test_what_augmentation_draws_beside_a_step(depth, own, workers, as_bare):
    """What docs/python.md says of random numbers."""

    def drawn(wrap):
        torch.manual_seed(3)
        loader = wrap(DataLoader(Augmented(own), 4, shuffle=True, num_workers=workers))
        return [(index.tolist(), noise.tolist(), torch.rand(1).item()) for index, noise in loader]

    feed = lambda loader: penstock.feed(loader, "host", depth)  # noqa: E731
    assert (drawn(feed) == drawn(bare)) is as_bare
    assert drawn(feed) == drawn(feed)
