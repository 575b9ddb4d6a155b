"""feed around a DataLoader whose dataset is tensors."""

import collections.abc
import contextlib
import copy
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
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
from interrupts import CtrlC, alarms, taken_amid_alarms
from penstock import _core
from penstock._feed import tensors as feed_tensors
from penstock._loader import samplers as _samplers
from support import run_in_threads, same

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
    assert same(batches, ordinary)
    assert all(map(torch.equal, states, theirs))
    if not name.startswith("a sampler") and "repeats" not in name:  # these draw ahead of the batch
        assert same(batches, epochs_of(make, lambda loader: loader)[0])


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


@pytest.mark.parametrize(
    ("change", "shared"),
    [(change, False) for change in (by_torch, by_numpy, by_data, with_new_memory, with_more_in_a_sample)]
    + [(change, True) for change in (by_numpy, with_new_memory, with_more_in_a_sample)],
)
@pytest.mark.parametrize("early", [False, True])
def test_an_epoch_gives_what_the_tensors_hold_when_it_begins(device, change, early, shared):
    large = torch.randint(0, 256, (64, 600_000 if shared else 700), dtype=torch.uint8)
    if shared:  # the device reads it where it lies
        large.share_memory_()
    labels = torch.arange(64)  # integers that a byte holds
    if shared:
        labels.share_memory_()
    dataset = TensorDataset(large, labels)
    fed = penstock.feed(DataLoader(dataset, batch_size=16, shuffle=True), device=device)
    assert ("host gather" in fed.describe()[1]) is not shared
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
        assert same([kept(batch) for batch in ours], theirs[: len(ours)])
        assert len(ours) == (2 if early else 4)


def test_an_epoch_gives_the_samples_that_are_picked_when_it_begins(device):
    subset = Subset(TensorDataset(*tensors()), [3, 1, 4, 1, 5])
    loader = DataLoader(subset, batch_size=2)
    fed = penstock.feed(loader, device=device)
    assert same([kept(batch) for batch in fed], list(loader))
    subset.indices[1] = 96
    assert same([kept(batch) for batch in fed], list(loader))
    loader.batch_sampler.batch_size = 4
    assert same([kept(batch) for batch in fed], list(loader))
    assert fed.describe()[0] == NATIVELY
    assert fed.stats().batches == 2, "of a loader for larger batches"
    iterator = iter(fed)
    next(iterator)
    assert iterator.is_native


@pytest.mark.parametrize("change", [by_torch, with_new_memory, torch.Tensor.share_memory_])
def test_what_changes_meanwhile_is_then_read_in_the_ordinary_way(device, change):
    x = torch.arange(400)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4), device=device, prefetch_depth=2)
    for _ in range(2):
        before, ours = x.clone(), []
        for batch in fed:
            ours.append(kept(batch))
            if len(ours) == 10:
                change(x)
        assert same(ours[:10], [list(rows) for rows in zip(before.split(4)[:10], strict=True)])
        # Three batches were ahead.
        assert same(ours[13:], [list(rows) for rows in zip(x.split(4)[13:], strict=True)])
    assert fed.describe()[0] == NATIVELY


def test_memory_that_was_replaced_before_the_first_batch(device):
    x = torch.arange(400)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=40), device=device)
    for _ in range(3):
        iterator = iter(fed)
        x.data = x + 1000
        assert same([kept(batch) for batch in iterator], [[rows] for rows in x.split(40)])


def test_batches_that_are_kept_stay_valid(device):
    dataset = TensorDataset(*tensors(count=400))
    batches = list(penstock.feed(DataLoader(dataset, batch_size=4), device=device))
    assert len(batches) == 100
    assert same([kept(batch) for batch in batches], list(DataLoader(dataset, batch_size=4)))


def test_iterators_side_by_side(device):
    dataset = TensorDataset(*tensors())
    fed = penstock.feed(DataLoader(dataset, batch_size=8), device=device)
    pairs = [(kept(a), kept(b)) for a, b in zip(fed, fed, strict=True)]
    whole = list(DataLoader(dataset, batch_size=8))
    assert same([a for a, _ in pairs], whole)
    assert same([b for _, b in pairs], whole)
    one = iter(fed)
    taken = [kept(next(one)), kept(next(one))]
    assert one.is_native
    other = iter(fed)
    assert (one.is_native, other.is_native) == (False, True), "the one that was begun last"
    assert fed.describe()[0] == NATIVELY
    assert same(taken + [kept(batch) for batch in one], whole)
    assert fed.stats().batches == 13 + 2, "that were gathered natively"
    assert len(list(other)) == 13
    assert next(one, None) is None
    assert next(other, None) is None


def test_threads_may_iterate_one_feed(device):
    fed = penstock.feed(DataLoader(TensorDataset(torch.arange(200)), batch_size=4, shuffle=True), device=device)
    list(fed)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            got = [[] for _ in range(4)]
            run = lambda mine: mine.extend(x for (batch,) in fed for x in batch.tolist())  # noqa: E731
            run_in_threads(run, got)
            assert all(sorted(mine) == list(range(200)) for mine in got)
    finally:
        sys.setswitchinterval(interval)


class Failing(Sampler):
    def __init__(self, *indices):
        self.indices = indices

    def __iter__(self):
        for index in self.indices:
            if isinstance(index, Exception):
                raise index
            yield index

    def __len__(self):
        return 1  # which nobody may trust


ODD = {
    "an exception": Failing(*range(40), KeyError("lost")),
    "past the end": [*range(20), COUNT, 3, *range(20)],
    "before the beginning": [*range(20), -COUNT - 1, 3, *range(20)],
    "a fraction": [*range(20), 1.5, *range(20)],
    "a number beyond any row": [1, 2, 3, 2**70, 5, 6],
    "a mask": [1, 2, True, 4, 5],
    "a slice": [slice(0, 3), slice(3, 6)],
    "a list": [[1, 2], [3, 4], 5, 6],
    "a tensor that is a mask": list(torch.ones(4, dtype=torch.uint8)),
    "tensors of one index": list(torch.arange(20)),
    "numbers of NumPy": list(np.arange(20, dtype=np.int8)),
    "nothing": [],
    "more than the samples": list(range(COUNT)) * 5,
}


def outcomes(loader):
    """What `next` gives, also after errors."""
    iterator, given = iter(loader), []
    for _ in range(60):
        try:
            given.append(kept(next(iterator)))
        except StopIteration:
            break
        except Exception as error:
            given.append((type(error), str(error)))
            assert sys.version_info < (3, 11) or any("penstock.feed" in line for line in error.__notes__)
    return given


@pytest.mark.parametrize("batch_size", [3, 200])
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_row_is_made_in_the_ordinary_way(device, name, batch_size):
    loader = DataLoader(TensorDataset(*tensors()), batch_size=batch_size, sampler=ODD[name])
    fed = penstock.feed(loader, device=device)
    for turn in range(2):
        assert fed.describe()[0] == NATIVELY
        ours = outcomes(fed)
        theirs = outcomes(penstock.feed(loader, device=device, native=False))
        assert same(ours, theirs)
        if (name, batch_size, turn) == ("past the end", 3, 0):
            assert fed.stats().batches == 13 - 6, "those after the error"


def test_a_sampler_of_more_samples_is_pytorchs_error(device):
    dataset = TensorDataset(*tensors())

    def outcomes_of(native):
        torch.manual_seed(2)
        loader = DataLoader(dataset, batch_size=3, sampler=RandomSampler(range(3 * COUNT)))
        return outcomes(penstock.feed(loader, device=device, native=native))

    ours, theirs = outcomes_of(True), outcomes_of(False)
    assert any(isinstance(outcome, tuple) and outcome[0] is IndexError for outcome in ours)
    assert same(ours, theirs)


class Lost(Exception):
    pass


def test_an_iterator_that_ends_lets_go_of_the_sampler(device):
    closed = []

    class Held(Sampler):
        def __iter__(self):
            try:
                yield from range(COUNT)
                raise Lost
            finally:
                closed.append(True)

    fed = penstock.feed(DataLoader(TensorDataset(*tensors()), batch_size=8, sampler=Held()), device=device)
    for _ in fed:
        break
    assert closed == [True]
    with pytest.raises(Lost) as caught:
        list(fed)
    gone = weakref.ref(caught.value)
    del caught
    gc.collect()
    assert gone() is None


def interrupted(fed, when):
    """The batches of an epoch with a Ctrl-C at this moment after the first one, the random state, and whether it
    came."""
    torch.manual_seed(4)
    iterator = iter(fed)
    batches = [kept(next(iterator))]
    epoch = fed.state_dict()["epoch"] if hasattr(fed, "state_dict") else None
    ctrl_c = CtrlC(when)
    before = sys.gettrace()
    while True:
        sys.settrace(ctrl_c)
        try:
            batch = next(iterator)
        except KeyboardInterrupt:
            sys.settrace(before)
            if hasattr(fed, "state_dict"):
                place = fed.state_dict()
                assert place["consumed"] == sum(len(batch[0]) for batch in batches) or place["epoch"] > epoch
            continue
        except StopIteration:
            break
        finally:
            sys.settrace(before)
        batches.append(kept(batch))
    return batches, torch.get_rng_state(), ctrl_c.came


INTERRUPTED = {
    "shuffled": (lambda dataset: {"shuffle": True}, {"resumable": True}),
    "with a generator": (lambda dataset: {"sampler": RandomSampler(dataset, generator=torch.Generator())}, {}),
    "with repeats": (
        lambda dataset: {"batch_size": 12, "sampler": RandomSampler(dataset, replacement=True, num_samples=40)},
        {},
    ),
    "more than once": (lambda dataset: {"sampler": RandomSampler(dataset, num_samples=15)}, {}),
    "a sampler of another kind": (lambda dataset: {"sampler": Backwards(len(dataset))}, {}),
    "penstock's sampler": (lambda dataset: {"sampler": penstock.Sampler(dataset)}, {}),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_at_any_moment_loses_no_batch(monkeypatch, name):
    monkeypatch.setattr(_samplers, "_AT_ONCE", 6)  # batches that are drawn at once
    options, kind = INTERRUPTED[name]
    dataset = TensorDataset(torch.arange(11), torch.rand(11, 2))
    loader = DataLoader(dataset, **{"batch_size": 3, **options(dataset)})
    generator = getattr(loader.sampler, "generator", None)
    fed = penstock.feed(loader, device="host", prefetch_depth=1, **kind)

    def epoch(when):
        if generator is not None:
            generator.manual_seed(2)
        if isinstance(loader.sampler, penstock.Sampler):
            loader.sampler.set_epoch(1)
        batches, state, came = interrupted(fed, when)
        return batches, state, None if generator is None else generator.get_state(), came

    whole, state, own, _ = epoch(10**9)
    for when in range(10_000):  # of which every one is tried
        batches, now, own_now, came = epoch(when)
        assert same(batches, whole)
        assert torch.equal(now, state)
        assert own is None or torch.equal(own_now, own)
        if not came:
            break
    assert when > 100


class Slow:
    """An iterator that goes on after an interrupt: Python asks for signals after calls, of which none comes between
    counting a number and returning it."""

    def __init__(self, count):
        self.number, self.count = -1, count

    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(0.001)
        if self.number + 1 == self.count:
            raise StopIteration
        self.number += 1
        return self.number


def test_signals_lose_no_batch():
    """They come while the sampler draws, and while the host waits for a batch on a slow link."""
    x = torch.rand(40, 60_000)
    loader = DataLoader(TensorDataset(x), batch_size=4, sampler=Slow(40))
    fed = penstock.feed(loader, device="host:link=0.01")
    got, count, iterator = taken_amid_alarms(fed, kept)
    assert same(got, [[rows] for rows in x.split(4)])
    assert count >= 3
    assert iterator.is_native is False, "it is over"
    assert fed.stats().batches == 10, "all of them were gathered natively"


def test_a_signal_leaves_no_batch_to_the_next_epoch():
    x = torch.rand(40, 60_000)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4), device="host:link=0.01")
    iterator = iter(fed)
    next(iterator)
    with alarms() as asked:
        assert any(asked(iterator, 0.02)[1] for _ in range(9))
    del iterator
    assert same([kept(batch) for batch in fed], [[rows] for rows in x.split(4)])


def test_ctrl_c_has_no_seed_once_more_drawn(monkeypatch):
    """While the first draw of an epoch begins."""

    def states(wrap):
        torch.manual_seed(1)
        fed = penstock.feed(loader_of(X, shuffle=True), device="host")
        iterator = iter(fed)
        with contextlib.suppress(KeyboardInterrupt), monkeypatch.context() as patch:
            if wrap:
                begin = _samplers.pieces_of
                patch.setattr(_samplers, "pieces_of", lambda sampler: (begin(sampler), interrupt()))
            next(iterator)
        assert len(list(iterator)) in (12, 13)
        return torch.get_rng_state()

    def interrupt():
        raise KeyboardInterrupt

    assert torch.equal(states(True), states(False))


def test_an_error_while_a_draw_is_looked_at_leaves_the_state_where_it_is(monkeypatch):
    monkeypatch.setattr(_samplers, "_AT_ONCE", 6)
    dataset = TensorDataset(torch.arange(30))
    fed = penstock.feed(DataLoader(dataset, batch_size=3, shuffle=True), device="host", resumable=True)
    iterator = iter(fed)
    batches = [kept(next(iterator)) for _ in range(2)]
    monkeypatch.setattr(feed_tensors.Tensors, "rows", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        while True:
            batches.append(kept(next(iterator)))
    monkeypatch.undo()
    assert next(iterator, None) is None, "the error has ended the epoch"
    assert fed.state_dict()["consumed"] == 3 * len(batches)
    again = penstock.feed(DataLoader(dataset, batch_size=3, shuffle=True), device="host", resumable=True)
    again.load_state_dict(fed.state_dict())
    batches += map(kept, again)
    assert sorted(int(row) for (rows,) in batches for row in rows) == list(range(30))


def test_the_loader_and_the_options_may_be_replaced(device):
    dataset = TensorDataset(*tensors())
    fed = penstock.feed(DataLoader(dataset, batch_size=8), device=device)
    assert len(list(fed)) == 13
    fed.loader = DataLoader(dataset, batch_size=8, sampler=range(5))
    assert same([kept(batch) for batch in fed], list(fed.loader))
    fed.prefetch_depth = 5
    assert len(list(fed)) == 1
    assert fed.stats().prefetch_depth == 5
    fed.native = False
    assert "native=False" in fed.describe()[0]
    fed.prefetch_depth, fed.native = 0, True
    assert "prefetch_depth is 0" in fed.describe()[0]


def test_persistent_workers_have_their_seed_once(device):
    def order(wrap):
        torch.manual_seed(3)
        x = torch.arange(40)
        loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
        next(iter(loader))  # its workers begin
        fed, batches = wrap(loader), []
        for _ in range(3):
            batches += [kept(batch) for batch in fed]
            x.data = x.clone()
        return batches

    assert same(order(lambda loader: penstock.feed(loader, device=device)), order(lambda loader: loader))


class Rows(Dataset):
    """A dataset that says that it is tensors."""

    def __init__(self, rows):
        self.rows = rows

    @property
    def __penstock_tensors__(self):
        return self.rows

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if isinstance(self.rows, dict):
            return {name: tensor[index] for name, tensor in self.rows.items()}
        return tuple(tensor[index] for tensor in self.rows)


class Negative(Rows):
    def __getitem__(self, index):
        return tuple(-x for x in super().__getitem__(index))


class Passing(Dataset):
    """Changes the samples of another dataset, and passes on its attributes."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return tuple(x + 1 for x in self.inner[index])

    def __getattr__(self, name):
        if name == "inner" or name == "__getitems__":
            raise AttributeError(name)
        return getattr(self.inner, name)


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
            assert same([kept(ours)], [theirs])


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * x for x in super().__getitem__(index))


class LoaderOfTheirOwn(DataLoader):
    pass


def start(worker):
    """A worker_init_fn."""


def seed_worker(worker, rank):
    """As the Trainer of transformers has it."""


seed_worker.__module__ = "transformers.trainer_utils"


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
    "a worker_init_fn": (lambda: loader_of(X, worker_init_fn=start, num_workers=1), {}),
    "its batch sampler is a Growing": (lambda: DataLoader(TensorDataset(X), batch_sampler=Growing()), {}),
    "its dataset is a Negative": (lambda: DataLoader(Negative((X, Y)), batch_size=8), {}),
    "its dataset is a Passing": (lambda: DataLoader(Passing(Rows((X, Y))), batch_size=8), {}),
    "its dataset is a Rows": (lambda: DataLoader(Rows(X), sampler=range(5), batch_size=8), {}),
    "has 96 samples, and another one 97": (lambda: DataLoader(Rows((X, Y[:96])), sampler=range(90), batch_size=8), {}),
    "its dataset is a Doubled": (lambda: DataLoader(Doubled(X, Y), batch_size=8), {}),
    "its dataset is a list": (lambda: DataLoader(list(Z), batch_size=8), {}),
    "its dataset has no tensors": (lambda: DataLoader(Rows(()), sampler=[], batch_size=4), {}),
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
    line, *_ = fed.describe()
    assert line.startswith("the batches are those that the loader makes: ")
    assert why in line
    ours, theirs = list(fed), list(make())
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            a, b = [a], [b]
        assert type(a) is type(b)
        assert all(torch.equal(x.cpu(), y.detach()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"worker_init_fn": start},  # no worker starts
        {"worker_init_fn": functools.partial(seed_worker, rank=0), "num_workers": 1},
    ],
)
def test_a_start_of_workers_that_changes_no_sample_is_left_out(device, options):
    fed = penstock.feed(loader_of(X, **options), device=device)
    assert fed.describe()[0] == NATIVELY
    assert same([kept(batch) for batch in fed], list(loader_of(X)))


def test_another_way_to_collate_tensors_is_obeyed(device, monkeypatch):
    collate = torch.utils.data._utils.collate
    fed = penstock.feed(loader_of(X), device=device)
    assert fed.describe()[0] == NATIVELY
    twice = lambda batch, *, collate_fn_map=None: 2 * torch.stack(batch)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setitem(collate.default_collate_fn_map, torch.Tensor, twice)
        assert "collate_fn" in fed.describe()[0]
        assert torch.equal(next(iter(fed))[0].cpu(), 2 * X[:8])
    for kind in (tuple, collections.abc.Sequence, object, (str, collections.abc.Sized)):  # as isinstance takes them
        with monkeypatch.context() as patch:
            count = lambda samples, *, collate_fn_map=None: torch.tensor(len(samples))  # noqa: E731
            patch.setitem(collate.default_collate_fn_map, kind, count)
            assert "collate_fn" in fed.describe()[0]
            assert int(next(iter(fed))) == 8
    monkeypatch.setitem(collate.default_collate_fn_map, collections.abc.MutableSequence, twice)
    assert fed.describe()[0] == NATIVELY, "samples are none of these"


@pytest.mark.parametrize("kind", [tuple, dict, collections.abc.Mapping])
def test_another_way_to_collate_samples_is_obeyed(device, monkeypatch, kind):
    fed = penstock.feed(DataLoader(Rows((X,) if kind is tuple else {"x": X}), 8), device=device)
    assert fed.describe()[0] == NATIVELY
    known = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(known, kind, lambda batch, *, collate_fn_map=None: [kind, len(batch)])
    assert "collate_fn" in fed.describe()[0]
    assert next(iter(fed)) == [kind, 8]


def test_a_batch_that_the_device_cannot_hold_goes_the_loaders_way():
    fed = penstock.feed(loader_of(X), device="host:memory=256")
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
            assert same([kept(batch) for batch in again], list(loader_of(X, Y)))


def test_nothing_is_left_of_a_feed(device):
    x, y, _ = tensors()
    fed = penstock.feed(loader_of(x, y), device=device)
    iterator = iter(fed)
    next(iterator)
    gone = [weakref.ref(value) for value in (fed, iterator, x)]
    del fed, iterator, x
    gc.collect()
    assert [value() for value in gone] == [None, None, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_drops_an_iterator_that_another_thread_was_in(device):
    fed = penstock.feed(loader_of(X, Y), device=device)
    iterator = iter(fed)
    next(iterator)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with fed._ways.native.lock:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        del iterator
        os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(iterator)) == 12


def test_an_order_is_not_drawn_on_in_a_forked_child():
    order = _core.TorchOrder(1, 100_000, 100_000)
    first = next(order)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with contextlib.suppress(penstock.Error):
            next(order)
            os._exit(1)
        del order  # its thread is the parent's
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(next(order)) > len(first), "the parent goes on, in larger blocks"


def test_orders_end_in_a_forked_child_that_has_no_stacks_of_the_parents_threads():
    orders = [_core.TorchOrder(seed, 1000, 1000) for seed in range(12)]
    for order in orders:
        next(order)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for _ in range(3):  # glibc frees what exceeds 40 MiB of stacks as a thread ends
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
        orders.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("pause", [0, 0.002])
def test_a_drawn_order_is_pytorchs_however_fast_it_is_taken(pause):
    for seed in range(5):
        taken = []
        for block in _core.TorchOrder(seed, 20_000, 20_000):
            taken.append(block)
            time.sleep(pause)
        wanted = torch.randperm(20_000, generator=torch.Generator().manual_seed(seed))
        assert np.array_equal(np.concatenate(taken), wanted.numpy())


def test_tensors_are_watched():
    def changed(change):
        tensors = [torch.arange(6.0), torch.arange(4).reshape(2, 2)]
        watch = _core.TensorWatch(tensors)
        assert watch.unchanged()
        change(*tensors)
        return not watch.unchanged()

    assert not changed(lambda x, y: None)
    assert not changed(lambda x, y: x.numpy().fill(3)), "NumPy tells nobody"
    assert changed(lambda x, y: y.add_(1))
    assert changed(lambda x, y: x.set_(torch.arange(6.0)))
    assert changed(lambda x, y: setattr(x, "data", torch.arange(6.0)))
    assert changed(lambda x, y: setattr(x, "data", x.data[:5]))
    assert changed(lambda x, y: setattr(x, "data", x.data.view(torch.int32)))
    assert changed(lambda x, y: setattr(y, "data", y.data.reshape(4)))
    assert changed(lambda x, y: x.requires_grad_())
