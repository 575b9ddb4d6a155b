"""A bare loader, and an equal one inside penstock.feed: what they yield, raise, answer and remember."""

import collections
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import penstock
from support import same

PACKAGE = str(Path(penstock.__file__).parent)
Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Item:
    values: torch.Tensor
    name: str


class Rows(Dataset):
    """A sample tells its index, and its worker's seed."""

    def __init__(self, length=22, bad=(), error=ValueError):
        self.length, self.bad, self.error = length, bad, error

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error(f"sample {index} is bad")
        worker = get_worker_info()
        return {
            "index": index,
            "x": torch.full((3,), float(index)),
            "noise": torch.rand(2),
            "array": np.full((2, 2), index, dtype=np.int16),
            "name": f"sample {index}",
            "worker": -1 if worker is None else worker.id,
        }


class Stream(IterableDataset):
    """Each worker yields its share."""

    def __init__(self, length=22, bad=(), error=ValueError):
        self.length, self.bad, self.error = length, bad, error

    def __iter__(self):
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(start, self.length, step):
            if index in self.bad:
                raise self.error(f"sample {index} is bad")
            yield torch.tensor([index, -1 if worker is None else worker.id])


class SizedStream(Stream):
    def __len__(self):
        return self.length


class TwoArguments(Exception):
    def __init__(self, text, number=5):
        super().__init__(text, number)


class BadSampler:
    def __iter__(self):
        yield [0, 1]
        yield [2]
        raise LookupError("the sampler is at its wits' end")

    def __len__(self):
        return 3


def generator(seed=7):
    return torch.Generator().manual_seed(seed)


def as_pair(samples):
    return Pair(torch.tensor([s["index"] for s in samples]), [s["name"] for s in samples])


def as_items(samples):
    return [Item(s["x"], s["name"]) for s in samples]


def as_raw(samples):
    return samples


def as_bad(samples):
    if samples[0]["index"] == 8:
        raise TypeError("these samples do not collate")
    return as_pair(samples)


def seed_worker(worker):
    torch.manual_seed(1000 + worker)


CASES = {
    "plain": lambda: DataLoader(Rows(), batch_size=4),
    "one sample a batch": lambda: DataLoader(Rows(5)),
    "empty": lambda: DataLoader(Rows(0), batch_size=4),
    "one batch": lambda: DataLoader(Rows(3), batch_size=4),
    "drop_last": lambda: DataLoader(Rows(), batch_size=4, drop_last=True),
    "shuffle": lambda: DataLoader(Rows(), batch_size=4, shuffle=True),
    "shuffle by a generator": lambda: DataLoader(Rows(), batch_size=4, shuffle=True, generator=generator()),
    "subset": lambda: DataLoader(Rows(), 4, sampler=SubsetRandomSampler(range(3, 17), generator=generator())),
    "weights": lambda: DataLoader(Rows(), 4, sampler=WeightedRandomSampler(np.arange(22), 30, generator=generator())),
    "batch_sampler": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 5, True)),
    "lists as batches": lambda: DataLoader(Rows(), batch_sampler=[[3, 1], [2], [9, 8, 7]]),
    "a sampler and no batches": lambda: DataLoader(
        Rows(), batch_size=None, sampler=RandomSampler(Rows(), generator=generator())
    ),
    "no batches": lambda: DataLoader(Rows(7), batch_size=None),
    "named tuples": lambda: DataLoader(Rows(), 4, collate_fn=as_pair),
    "dataclasses": lambda: DataLoader(Rows(), 4, collate_fn=as_items),
    "lists of dicts": lambda: DataLoader(Rows(), 4, collate_fn=as_raw),
    "pin_memory": lambda: DataLoader(Rows(), 4, pin_memory=torch.cuda.is_available()),
    "workers": lambda: DataLoader(Rows(), 4, num_workers=2),
    "workers, shuffled": lambda: DataLoader(Rows(), 4, shuffle=True, num_workers=2, generator=generator()),
    "workers, persistent": lambda: DataLoader(
        Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True, generator=generator()
    ),
    "workers, far ahead": lambda: DataLoader(Rows(), 4, num_workers=2, prefetch_factor=6),
    "workers, timeout": lambda: DataLoader(Rows(), 4, num_workers=2, timeout=120),
    "workers, worker_init_fn": lambda: DataLoader(Rows(), 4, num_workers=2, worker_init_fn=seed_worker),
    "workers, collate_fn": lambda: DataLoader(Rows(), 4, num_workers=2, collate_fn=as_pair),
    "workers, pin_memory": lambda: DataLoader(Rows(), 4, num_workers=2, pin_memory=torch.cuda.is_available()),
    "workers, fork": lambda: DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="fork"),
    "workers, spawn": lambda: DataLoader(
        Rows(), 4, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    ),
    "workers, forkserver": lambda: DataLoader(
        Rows(), 4, num_workers=1, multiprocessing_context="forkserver", persistent_workers=True
    ),
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "iterable, drop_last": lambda: DataLoader(Stream(), batch_size=4, drop_last=True),
    "iterable, no batches": lambda: DataLoader(Stream(6), batch_size=None),
    "iterable, sized": lambda: DataLoader(SizedStream(), batch_size=4),
    "iterable, workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=2),
    "iterable, persistent workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=2, persistent_workers=True),
    "iterable, workers, no batches": lambda: DataLoader(Stream(7), batch_size=None, num_workers=2),
    "error": lambda: DataLoader(Rows(bad=[9]), batch_size=4),
    "error at first": lambda: DataLoader(Rows(bad=[0]), batch_size=4),
    "error at last": lambda: DataLoader(Rows(bad=[21]), batch_size=4),
    "errors in a row": lambda: DataLoader(Rows(bad=[4, 9, 13, 20]), batch_size=4),
    "errors only": lambda: DataLoader(Rows(bad=range(22)), batch_size=4),
    "error with two arguments": lambda: DataLoader(Rows(bad=[9], error=TwoArguments), batch_size=4),
    "KeyError": lambda: DataLoader(Rows(bad=[9], error=KeyError), batch_size=4),
    "error in collate_fn": lambda: DataLoader(Rows(), batch_size=4, collate_fn=as_bad),
    "error in a sampler": lambda: DataLoader(Rows(), batch_sampler=BadSampler()),
    "error in an iterable": lambda: DataLoader(Stream(bad=[9]), batch_size=4),
    "error, workers": lambda: DataLoader(Rows(bad=[4, 9, 21]), batch_size=4, num_workers=2),
    "error, persistent workers": lambda: DataLoader(
        Rows(bad=[4, 9, 21]), batch_size=4, num_workers=2, persistent_workers=True
    ),
    "error with two arguments, workers": lambda: DataLoader(Rows(bad=[9], error=TwoArguments), 4, num_workers=2),
    "KeyError, workers": lambda: DataLoader(Rows(bad=[9], error=KeyError), batch_size=4, num_workers=2),
    "error in collate_fn, workers": lambda: DataLoader(Rows(), 4, collate_fn=as_bad, num_workers=2),
    "error in an iterable, workers": lambda: DataLoader(Stream(bad=[9]), batch_size=4, num_workers=2),
}


def steps(loader, most=100):
    """The result of each next() of one epoch, also past the end and past exceptions."""
    iterator, seen, ends = iter(loader), [], 0
    while ends < 2 and len(seen) < most:
        try:
            seen.append(("batch", penstock.to_host(next(iterator))))
        except StopIteration:
            ends += 1
            seen.append(("end",))
        except Exception as error:
            texts = error.args if type(error) is TwoArguments else [error]
            seen.append((type(error), [without_our_frames(str(text)) for text in texts]))
    return seen


def without_our_frames(text):
    """A worker's error tells its traceback, in which penstock is between PyTorch and the user's dataset or
    collate_fn."""
    return re.sub(rf'  File "{re.escape(PACKAGE)}.*\n(    .*\n)*', "", text)


def compare(seen, expected):
    assert [step[0] for step in seen] == [step[0] for step in expected]
    for got, wanted in zip(seen, expected, strict=True):
        assert same(got[1], wanted[1]) if got[0] == "batch" else got == wanted


DEPTHS = [(name, depth) for name in CASES for depth in ([2] if "workers" in name else [0, 2, 100])]


@pytest.mark.parametrize(("name", "depth"), DEPTHS)
def test_two_epochs(name, depth, target):
    bare, fed = CASES[name](), penstock.feed(CASES[name](), target, prefetch_depth=depth)
    for epoch in range(2):
        torch.manual_seed(epoch)
        expected = steps(bare)
        torch.manual_seed(epoch)
        compare(steps(fed), expected)


def test_a_sample_that_raises_stop_iteration_ends_the_epoch(target):
    bare, fed = (DataLoader(Rows(bad=[9], error=StopIteration), batch_size=4) for _ in range(2))
    assert take(penstock.feed(fed, target), None) == take(bare, None)


def test_a_worker_that_dies_ends_no_epoch_quietly(target):
    """In a process of its own, since PyTorch raises from a signal handler, wherever the program then is."""
    program = f"""
import os, penstock
from torch.utils.data import DataLoader

class Lethal(list):
    def __getitem__(self, index):
        return os._exit(3) if index == 9 else index

for batch in penstock.feed(DataLoader(Lethal(range(22)), 4, num_workers=1), {target!r}):
    pass
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "ended" not in done.stdout
    assert "Error" in done.stderr


ATTRIBUTES = [
    *("dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last"),
    *("timeout", "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    "in_order",
]


@pytest.mark.parametrize("name", CASES)
def test_attributes(name, target):
    loader = CASES[name]()
    fed = penstock.feed(loader, target)
    for attribute in ATTRIBUTES:
        assert getattr(fed, attribute) is getattr(loader, attribute), attribute
    try:
        expected = len(loader)
    except TypeError:
        with pytest.raises(TypeError):
            len(fed)
    else:
        assert len(fed) == expected
    assert not isinstance(fed, DataLoader)
    for method in ("state_dict", "load_state_dict", "set_epoch"):
        assert not hasattr(fed, method)
        with pytest.raises(AttributeError):
            inspect.getattr_static(fed, method)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transformers.trainer_utils", "seed_worker"),
        ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
        ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ],
)
def test_a_start_of_workers_that_only_seeds_is_left_out(module, name, target):
    start = functools.partial(getattr(pytest.importorskip(module), name), rank=0)
    loader = DataLoader(TensorDataset(torch.arange(10)), 4, num_workers=2, worker_init_fn=start)
    fed = penstock.feed(loader, target)
    assert "without worker processes" in fed.describe()[0]
    assert same(list(fed), list(DataLoader(loader.dataset, 4)))


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_loop_left_early_and_the_epoch_after_it(options, taken, target):
    """A loader that does not reach its end by reading ahead, since it would begin to shuffle there."""
    results = []
    for wrap in (lambda loader: loader, lambda loader: penstock.feed(loader, target)):
        loader = wrap(DataLoader(Rows(60), 4, shuffle=True, generator=generator(), **options))
        first = [batch for _, batch in zip(range(taken), loader, strict=False)]
        results.append([[indices(batch) for batch in first], take(loader, None)])
    assert results[1] == results[0]


def test_an_iterator_that_is_dropped_starts_nothing(target):
    """Lightning asks whether a loader can be iterated by iter(loader)."""
    fed = penstock.feed(DataLoader(Rows(), 4, num_workers=2, persistent_workers=True, generator=generator()), target)
    iter(fed)
    assert fed.loader._iterator is None


class Counting(IterableDataset):
    """A loader that keeps a state."""

    def __init__(self, length=22):
        self.length, self.next = length, 0

    def __iter__(self):
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while start + self.next * step < self.length:
            self.next += 1
            yield torch.tensor(start + (self.next - 1) * step)
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def stateful(*arguments, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(*arguments, **options)


STATEFUL = {
    "plain": lambda: stateful(Rows(), 4),
    "shuffle": lambda: stateful(Rows(), 4, shuffle=True, generator=generator()),
    "workers": lambda: stateful(Rows(), 4, shuffle=True, generator=generator(), num_workers=2),
    "persistent": lambda: stateful(
        Rows(), 4, shuffle=True, generator=generator(), num_workers=2, persistent_workers=True
    ),
    "every third": lambda: stateful(Rows(), 4, num_workers=2, snapshot_every_n_steps=3),
    "no batches": lambda: stateful(Rows(7), batch_size=None, shuffle=True, generator=generator()),
    "iterable": lambda: stateful(Counting(), 4),
    "iterable, workers": lambda: stateful(Counting(), 4, num_workers=2),
}


def indices(batch):
    batch = penstock.to_host(batch)
    return torch.as_tensor(batch["index"] if isinstance(batch, dict) else batch).tolist()


def take(loader, count):
    """Batches of a new iterator; past the last one, the end is asked for."""
    taken = []
    for batch in loader:
        taken.append(indices(batch))
        if len(taken) == count:
            break
    return taken


@pytest.fixture
def bare_and_fed(target):
    pytest.importorskip("torchdata")
    return lambda loader: loader, lambda loader: penstock.feed(loader, target)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_at_each_point(name, bare_and_fed):
    """A resumed loader yields the same as the bare one, in this epoch and the next."""
    make = STATEFUL[name]
    length = len(take(make(), None))
    for count in range(length + 2):
        rests = []
        for wrap in bare_and_fed:
            loader = wrap(make())
            torch.manual_seed(1)
            if count:
                take(loader, count)
            state = loader.state_dict()
            for other in bare_and_fed:
                resumed = other(make())
                resumed.load_state_dict(state)
                torch.manual_seed(2)
                rests.append([take(resumed, None), take(resumed, None)])
        assert rests[1:] == rests[:1] * 3, f"after {count} of {length} batches"
    # The bare loader itself goes on from its place.
    assert rests[0][0] == take(make(), None) or "shuffle" in name or name in ("workers", "persistent", "no batches")


@pytest.mark.parametrize("name", ["workers", "every third", "iterable, workers"])
def test_workers_of_a_stateful_loader_fill_slots(name, target):
    pytest.importorskip("torchdata")
    loader, bare = STATEFUL[name](), STATEFUL[name]()
    feed, pools, epochs = penstock.feed(loader, target), set(), (None, 2, None, 1, 3, None)  # some are left
    # First, since children of fork keep what they inherit of an epoch that was left.
    expected = [take(bare, taken) for taken in epochs]
    for taken, wanted in zip(epochs, expected, strict=True):
        assert take(feed, taken) == wanted
        pools.add(id(feed._ways.workers.pool))
    assert len(pools) == 1 and feed._ways.workers.pool.shared.allowed(0) > 0
    assert feed.state_dict() == loader.state_dict()
    assert take(loader, None) == take(bare, None), "the loader itself is as it was"
    state = feed.state_dict()
    assert take(feed, None) == take(bare, None)
    feed.load_state_dict(state)
    bare.load_state_dict(state)
    assert take(feed, None) == take(bare, None) and take(feed, None) == take(bare, None)


@pytest.mark.parametrize("name", STATEFUL)
def test_three_resumes_in_one_epoch(name, bare_and_fed):
    make = STATEFUL[name]
    expected = take(make(), None)
    for wrap in bare_and_fed:
        loader, seen = wrap(make()), []
        for count in (1, 2, 1):
            seen += take(loader, count)
            state = loader.state_dict()
            loader = wrap(make())
            loader.load_state_dict(state)
        seen += take(loader, None)
        assert seen == expected
        again = wrap(make())
        again.load_state_dict(loader.state_dict())
        assert len(take(again, None)) == len(expected), "after the end comes a whole epoch"


def test_the_state_is_of_the_batch_handed_out(bare_and_fed):
    make = STATEFUL["shuffle"]
    states = [[repr(loader.state_dict()) for _ in loader] for loader in (wrap(make()) for wrap in bare_and_fed)]
    assert states[0] == states[1]


def test_a_stateful_dataloader_resumes_at_any_batch_of_penstocks_sampler():
    """Its last batch is short: it has asked the sampler for more than there is, by the time that it gives it."""
    data = torch.utils.data.TensorDataset(torch.arange(97))
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def train(saved, batches):
        """The batches of two epochs, at most so many, and what is saved then."""
        loader = penstock.feed(stateful(data, 40, sampler=penstock.Sampler(data, shuffle=True)), "host")
        if saved is not None:
            loader.load_state_dict(saved[1])
        seen = []
        for epoch in range(0 if saved is None else saved[0], 2):
            loader.set_epoch(epoch)
            for batch in loader:
                seen.append((epoch, batch[0].tolist()))
                saved = epoch, loader.state_dict()
                if len(seen) == batches:
                    return seen, saved
        return seen, saved

    whole, _ = train(None, None)
    assert len(whole) == 6
    for batches in range(1, 6):
        begun, saved = train(None, batches)
        assert begun + train(saved, None)[0] == whole
