"""The state of a feed around a DataLoader that keeps none."""

import copy
import itertools
import json
import pickle
import warnings

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import penstock

COUNT = 97
DATA = TensorDataset(torch.arange(COUNT), torch.rand(COUNT, 3))


class Made(Dataset):
    """The samples of DATA, which this dataset makes itself. Those in `broken` raise."""

    def __init__(self, broken=()):
        self.broken = set(broken)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index in self.broken:
            raise KeyError(f"sample {index}")
        return DATA[index]


WAYS = {
    "native": (DATA, {}),
    "native, for workers": (DATA, {"num_workers": 2, "persistent_workers": True}),
    "ordinary": (Made(), {}),
    "workers": (Made(), {"num_workers": 2}),
    "persistent workers": (Made(), {"num_workers": 1, "persistent_workers": True}),
    "workers with a collate_fn": (Made(), {"num_workers": 1, "collate_fn": lambda rows: default_collate(rows)[:1]}),
}


def order_of(epoch=0, **options):
    sampler = penstock.Sampler(COUNT, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def fed(way, size=8, device="host", depth=2, wrapped=False, full=False, **options):
    data, more = WAYS[way]
    sampler = penstock.Sampler(data, **options)
    if wrapped:
        given = {"batch_sampler": BatchSampler(sampler, size, full)}
    else:
        given = {"sampler": sampler, "batch_size": size, "drop_last": full}
    return penstock.feed(DataLoader(data, **given, **more), device, depth)


def ids(batches):
    return [batch[0].tolist() for batch in batches]


def flat(batches):
    return list(itertools.chain.from_iterable(ids(batches)))


def place(state):
    return state["epoch"], state["consumed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_state_is_that_of_the_batch_that_was_handed_out(way, depth, wrapped):
    loader = fed(way, depth=depth, wrapped=wrapped, shuffle=True, rank=1, world_size=2)
    assert place(loader.state_dict()) == (0, 0)
    for epoch in range(2):
        for number, batch in enumerate(loader, 1):
            assert place(loader.state_dict()) == (epoch, min(number * 16, COUNT))
            assert batch[0].tolist() == order_of(epoch, shuffle=True, rank=1, world_size=2)[number * 8 - 8 : number * 8]
        assert place(loader.state_dict()) == (epoch + 1, 0)
        assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_in_the_epoch_and_after_it(way):
    first, second = order_of(0, shuffle=True, seed=3), order_of(1, shuffle=True, seed=3)
    loader = fed(way, shuffle=True, seed=3)
    taken = flat(itertools.islice(loader, 5))
    state = loader.state_dict()
    for again in ("loaded", "told the epoch"):
        resumed = fed(way, size=7, shuffle=True, seed=3)
        resumed.load_state_dict(state)
        if again == "told the epoch":
            resumed.set_epoch(0)
        assert resumed.state_dict() == state
        assert taken + flat(resumed) == first
        assert place(resumed.state_dict()) == (1, 0)
        assert flat(resumed) == second
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert place(loader.state_dict()) == (1, 0)
    assert flat(loader) == second


@pytest.mark.parametrize("way", ["native", "ordinary", "workers"])
def test_every_sample_once_whatever_changes(way, random):
    for _ in range(12 if way == "native" else 4):
        options = {"shuffle": bool(random.integers(2)), "seed": int(random.integers(2**63))}

        def make(rank, world, size, options=options):
            kind = way if random.integers(2) else "ordinary"
            return fed(kind, size, depth=int(random.integers(1, 4)), rank=rank, world_size=world, **options)

        check_an_epoch_in_pieces(random, make, penstock.Sampler(COUNT, **options).state_dict(), order_of(**options))


def check_an_epoch_in_pieces(random, make, state, order):
    """An epoch that is stopped at random places. Other numbers of processes, of which `make` gives the feed for a rank,
    and other batch sizes go on."""
    seen = []
    for world in itertools.cycle((1, 2, 3, 1)):
        size, steps = int(random.integers(1, 20)), int(random.integers(0, 6))
        shares, states = [], []
        for rank in range(world):
            loader = make(rank, world, size)
            loader.load_state_dict(state)
            shares.append(ids(itertools.islice(loader, steps)))
            states.append(loader.state_dict() if steps else state)
        assert all(one == states[0] for one in states)
        state = states[0]
        for batches in zip(*shares, strict=True):
            seen += [index for step in zip(*batches, strict=True) for index in step]
        if len(seen) >= COUNT:
            break
    assert seen[:COUNT] == order
    assert seen[COUNT:] == order[: len(seen) - COUNT] and len(seen) - COUNT < world


def test_states_go_between_a_loader_a_sampler_and_feeds():
    options = {"shuffle": True, "seed": 2}
    loader = penstock.Loader([DATA.tensors[0]], 8, device="host", **options)
    sampler = penstock.Sampler(DATA, **options)
    feeds = {way: fed(way, **options) for way in ("native", "ordinary")}
    order, taken, state = order_of(**options), [], loader.state_dict()
    for one in (loader, feeds["native"], sampler, feeds["ordinary"], loader):
        one.load_state_dict(state)
        if one is sampler:
            taken += list(itertools.islice(one, 5))
        else:
            taken += flat(itertools.islice(one, 2))
        assert taken == order[: len(taken)]
        state = one.state_dict()
        assert place(state) == (0, len(taken))


@pytest.mark.parametrize("way", ["native", "ordinary", "workers"])
@pytest.mark.parametrize("share", [{}, {"rank": 0, "world_size": 2, "drop_last": True}])
def test_a_last_batch_that_is_left_out(way, share):
    loader = fed(way, size=10, full=True, **share)
    order = order_of(**share)
    assert flat(loader) == order[: len(order) // 10 * 10]
    assert place(loader.state_dict()) == (1, 0)
    for _ in zip(range(len(order) // 10), loader, strict=False):
        state = loader.state_dict()
    assert place(state) == (1, len(order) // 10 * 10 * share.get("world_size", 1))
    loader.load_state_dict(state)
    assert flat(loader) == []
    assert place(loader.state_dict()) == (2, 0)


@pytest.mark.parametrize("way", ["native", "ordinary", "workers"])
def test_the_last_batch_of_a_shard_without_its_tail(way):
    for drop_last, last in ((False, COUNT), (True, COUNT - 1)):
        loader = fed(way, size=10, rank=1, world_size=2, drop_last=drop_last)
        states = [loader.state_dict() for _ in loader]
        assert [state["consumed"] for state in states] == [20, 40, 60, 80, last]
    whole = fed(way)
    whole.load_state_dict(states[-1])
    assert flat(whole) == [COUNT - 1], "the sample that no rank had"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_raises_is_behind_the_next_one(workers):
    sampler = penstock.Sampler(COUNT)
    loader = penstock.feed(
        DataLoader(Made(broken=[0, 1, 25]), 4, sampler=sampler, num_workers=workers), "host", prefetch_depth=3
    )
    got, places, raised = [], [], 0
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        except KeyError:
            raised += 1
            places.append(place(loader.state_dict()))
            continue
        got += batch[0].tolist()
        places.append(place(loader.state_dict()))
    assert raised == 2
    assert got == [i for i in range(4, COUNT) if not 24 <= i < 28]
    wanted = [(0, min(4 * k, COUNT)) for k in range(1, 26)]
    wanted[0], wanted[6] = (0, 0), (0, 24)
    assert places == wanted


def test_an_interrupted_batch_is_behind_the_next_one():
    class Interrupted(Made):
        def __getitem__(self, index):
            if index == 10:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    loader = penstock.feed(DataLoader(Interrupted(), 4, sampler=penstock.Sampler(COUNT)), "host", prefetch_depth=0)
    iterator = iter(loader)
    assert flat(itertools.islice(iterator, 2)) == list(range(8))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert place(loader.state_dict()) == (0, 8)
    assert next(iterator)[0].tolist() == [12, 13, 14, 15]
    assert place(loader.state_dict()) == (0, 16)


@pytest.mark.parametrize("way", ["ordinary", "workers"])
def test_others_may_iterate_the_sampler_meanwhile(way):
    loader = fed(way)
    sampler = loader.loader.sampler
    for number, _ in enumerate(loader, 1):
        assert place(loader.state_dict()) == (0, min(8 * number, COUNT))
        list(sampler)


def test_what_the_native_way_cannot_gather_goes_on_in_its_place():
    """PyTorch writes to the tensors within an epoch: the rest is made in the ordinary way, and read ahead there."""
    for read in range(1, 10):
        data = TensorDataset(torch.arange(COUNT))
        loader = penstock.feed(DataLoader(data, 8, sampler=penstock.Sampler(data, shuffle=True)), "host", 3)
        taken = []
        for number, batch in enumerate(loader, 1):
            taken += batch[0].tolist()
            assert place(loader.state_dict()) == (0, min(8 * number, COUNT))
            if number == read:
                data.tensors[0].add_(0)
        assert taken == order_of(shuffle=True)
        assert place(loader.state_dict()) == (1, 0)


@pytest.mark.parametrize("way", ["native", "native, for workers", "ordinary", "workers"])
def test_the_state_is_that_of_the_iterator_begun_last(way):
    loader = fed(way, shuffle=True)
    first = iter(loader)
    taken = flat([next(first), next(first)])
    assert place(loader.state_dict()) == (0, 16)
    second = iter(loader)
    assert place(loader.state_dict()) == (1, 0)
    assert next(second)[0].tolist() == order_of(1, shuffle=True)[:8]
    assert place(loader.state_dict()) == (1, 8)
    assert taken + flat(first) == order_of(shuffle=True)
    assert place(loader.state_dict()) == (1, 8)
    loader.load_state_dict({**loader.state_dict(), "epoch": 5, "consumed": 90})
    assert next(second)[0].tolist() == order_of(1, shuffle=True)[8:16]
    assert place(loader.state_dict()) == (5, 90)
    assert flat(loader) == order_of(5, shuffle=True)[90:]
    assert place(loader.state_dict()) == (6, 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_that_is_told_after_iter_is_the_iterators(way):
    """Lightning calls `iter`, and then `set_epoch` of the sampler. Workers have asked it for indices by then."""
    loader = fed(way, shuffle=True)
    for epoch in range(2):
        iterator = iter(loader)
        loader.loader.sampler.set_epoch(epoch)
        assert flat(iterator) == order_of(epoch, shuffle=True)
        assert place(loader.state_dict()) == (epoch + 1, 0)
    next(iter(loader))
    loader.loader.sampler.set_epoch(2)
    assert flat(loader) == order_of(2, shuffle=True)


@pytest.mark.parametrize("way", ["native", "native, for workers", "ordinary", "workers"])
def test_iterators_that_begin_side_by_side_have_places_of_their_own(way):
    loader, orders = fed(way, shuffle=True), ([], [])
    for number, (first, second) in enumerate(zip(loader, loader, strict=True), 1):
        orders[0].extend(first[0].tolist())
        orders[1].extend(second[0].tolist())
        assert place(loader.state_dict()) == (1, min(8 * number, COUNT))
    assert orders == (order_of(0, shuffle=True), order_of(1, shuffle=True))
    assert place(loader.state_dict()) == (2, 0)


@pytest.mark.parametrize("way", ["native", "ordinary"])
def test_without_workers_an_order_begins_with_the_first_batch(way):
    loader = fed(way, shuffle=True)
    iter(loader)
    assert place(loader.state_dict()) == (0, 0)
    iterator = iter(loader)
    loader.loader.sampler.set_epoch(3)
    assert flat(iterator) == order_of(3, shuffle=True)


@pytest.mark.parametrize("way", ["native, for workers", "workers"])
def test_workers_begin_an_order_with_iter(way):
    loader = fed(way, shuffle=True)
    iter(loader)
    assert flat(loader) == order_of(1, shuffle=True)


@pytest.mark.parametrize("way", ["native", "ordinary", "workers"])
def test_an_epoch_that_is_left_is_over_unless_its_state_is_loaded(way):
    loader = fed(way, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    assert flat(loader) == order_of(1, shuffle=True)
    loader.load_state_dict(state)
    assert flat(loader) == order_of(0, shuffle=True)[8:]
    next(iter(loader))
    loader.set_epoch(7)
    assert place(loader.state_dict()) == (7, 0)
    assert flat(loader) == order_of(7, shuffle=True)


def test_without_batches():
    loader = penstock.feed(DataLoader(Made(), None, sampler=penstock.Sampler(COUNT), num_workers=1), "host")
    for number, sample in zip(range(1, 6), loader, strict=False):
        assert int(sample[0]) == number - 1
        assert place(loader.state_dict()) == (0, number)


@pytest.mark.parametrize("kind", ["penstock's", "random", "with a generator", "distributed"])
def test_copies_go_on_where_a_feed_stands(kind):
    make = RESUMABLE[kind] if kind in RESUMABLE else lambda: fed("native", shuffle=True)
    torch.manual_seed(1)
    whole = flat(make())
    torch.manual_seed(1)
    loader = make()
    iterator = iter(loader)
    taken = flat(next(iterator) for _ in range(3))
    for again in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert again.state_dict() == loader.state_dict()
        assert taken + flat(again) == whole
    copy.copy(loader)
    assert taken + flat(iterator) == whole
    assert place(loader.state_dict())[1] == 0
    if kind == "penstock's":
        assert flat(loader) == order_of(1, shuffle=True), "a copy that shares the sampler has not moved it"


def has_state(loader):
    return [hasattr(loader, name) for name in ("state_dict", "load_state_dict")]


class Odd(penstock.Sampler):
    def __iter__(self):
        return (index for index in super().__iter__() if index % 2)


class Mine(BatchSampler):
    pass


class Own(DataLoader):
    def __iter__(self):
        return iter([])


def test_only_what_can_be_kept_has_a_state():
    sampler = penstock.Sampler(COUNT)
    assert has_state(penstock.feed(DataLoader(Made(), sampler=sampler), "host")) == [True, True]
    for loader in (
        DataLoader(DATA),
        DataLoader(DATA, shuffle=True),
        DataLoader(DATA, sampler=Odd(COUNT)),
        DataLoader(DATA, batch_sampler=Mine(sampler, 4, False)),
        DataLoader(Made(), sampler=sampler, num_workers=1, in_order=False),
        Own(DATA, sampler=sampler),
        sampler,
        [torch.zeros(2)],
    ):
        assert has_state(penstock.feed(loader, "host")) == [loader is sampler] * 2, loader


def test_the_share_of_a_sampler_is_known(monkeypatch):
    from penstock import _others

    monkeypatch.setattr(_others, "processes", lambda: 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(ids(fed("native", rank=1, world_size=2))) == 7
    with pytest.warns(penstock.NotShardedWarning):
        assert len(ids(fed("native"))) == 13


def test_a_state_that_does_not_fit_changes_nothing():
    loader = fed("native", shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(penstock.InvalidArgument, match="seed 9, this sampler has 0"):
        loader.load_state_dict({**state, "seed": 9})
    assert loader.state_dict() == state
    state["consumed"] = 50
    assert place(loader.state_dict()) == (0, 8), "a state is the caller's own"


# PyTorch's own samplers


def generator():
    return torch.Generator().manual_seed(11)


def resumable(make, **options):
    return lambda: penstock.feed(DataLoader(DATA, 8, **make(), **options), "host", 3, resumable=True)


RESUMABLE = {
    "in order": resumable(dict),
    "random": resumable(lambda: {"shuffle": True}),
    "with a generator": resumable(lambda: {"shuffle": True, "generator": generator()}),
    "a generator of its own": resumable(lambda: {"sampler": RandomSampler(DATA, generator=generator())}),
    "more than the dataset": resumable(lambda: {"sampler": RandomSampler(DATA, num_samples=250)}),
    "with repeats": resumable(lambda: {"sampler": RandomSampler(DATA, replacement=True, num_samples=150)}),
    "distributed": resumable(lambda: {"sampler": DistributedSampler(DATA, 3, 1, seed=4)}),
    "full batches": resumable(lambda: {"shuffle": True}, drop_last=True),
    "for workers": resumable(lambda: {"shuffle": True}, num_workers=2),
    "for persistent workers": resumable(lambda: {"shuffle": True}, num_workers=2, persistent_workers=True),
}
RESUMABLE["a batch sampler"] = lambda: penstock.feed(
    DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 8, False)), "host", 3, resumable=True
)


def states():
    return torch.get_rng_state().tolist()


@pytest.mark.parametrize("kind", RESUMABLE)
def test_the_order_and_the_random_state_stay_pytorchs(kind):
    drawn = []
    for wrap in (lambda fed: fed, lambda fed: fed.loader):
        torch.manual_seed(3)
        loader = wrap(RESUMABLE[kind]())
        epochs = []
        for most in (None, 3, None):
            epochs.append((ids(itertools.islice(loader, most)), states()))
            if loader.generator is not None:
                epochs.append(loader.generator.get_state().tolist())
        drawn.append(epochs)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", RESUMABLE)
@pytest.mark.parametrize("stop", [1, 5, "the end", "after it"])
def test_a_resumed_run_is_the_one_that_was_not_stopped(kind, stop):
    """If PyTorch's random state is resumed as well, so are the later epochs, and the random state after them."""
    torch.manual_seed(3)
    whole = RESUMABLE[kind]()
    wanted = [flat(whole) for _ in range(3)]
    after = states()

    torch.manual_seed(3)
    stopped = RESUMABLE[kind]()
    assert flat(stopped) == wanted[0]
    steps = {"the end": len(stopped), "after it": len(stopped) + 1}.get(stop, stop)
    taken = flat(itertools.islice(stopped, steps))
    saved = json.dumps(stopped.state_dict()), torch.get_rng_state()
    is_over = stop == "after it"
    assert place(json.loads(saved[0]))[0] == (2 if is_over else 1)

    torch.manual_seed(99)
    resumed = RESUMABLE[kind]()
    resumed.load_state_dict(json.loads(saved[0]))
    torch.set_rng_state(saved[1])
    if not is_over:
        assert resumed.state_dict() == json.loads(saved[0])
        taken += flat(resumed)
    assert taken == wanted[1]
    assert place(resumed.state_dict()) == (2, 0)
    if kind == "for persistent workers" and is_over:
        return  # new workers draw a new seed
    assert flat(resumed) == wanted[2]
    assert states() == after


def distributed(rank, world, size=8, epoch=0, **options):
    sampler = DistributedSampler(DATA, world, rank, seed=4, **options)
    sampler.set_epoch(epoch)
    return penstock.feed(DataLoader(DATA, size, sampler=sampler), "host", resumable=True)


def test_a_distributed_sampler_goes_on_at_another_world_size(random):
    for _ in range(15):
        epoch, shuffle = int(random.integers(5)), bool(random.integers(2))
        whole = distributed(0, 1, epoch=epoch, shuffle=shuffle)
        state = whole.state_dict()
        make = lambda *place, shuffle=shuffle: distributed(*place, shuffle=shuffle)  # noqa: E731
        check_an_epoch_in_pieces(random, make, state, flat(whole))


def test_a_distributed_samplers_epoch_is_its_own():
    epochs = [flat(distributed(0, 2, epoch=epoch)) for epoch in range(3)]
    loader = distributed(0, 2)
    loader.set_epoch(1)
    assert flat(itertools.islice(loader, 2)) == epochs[1][:16]
    state = loader.state_dict()
    assert place(state) == (1, 32)
    for tell in (False, True):
        resumed = distributed(0, 2)
        resumed.load_state_dict(state)
        if tell:
            resumed.set_epoch(1)
        assert flat(resumed) == epochs[1][16:]
        assert place(resumed.state_dict()) == (2, 0)
        resumed.load_state_dict(state)
        resumed.set_epoch(2)
        assert place(resumed.state_dict()) == (2, 0)
        assert flat(resumed) == epochs[2]
    left = DistributedSampler(DATA, 2, 0, seed=4, drop_last=True)
    loader = penstock.feed(DataLoader(DATA, 8, sampler=left), "host", resumable=True)
    loader.load_state_dict({**state, "consumed": 90})
    assert flat(loader) == flat(distributed(0, 1, epoch=1))[90:96:2], "and the tail is left out"


@pytest.mark.parametrize("tell", ["the feed", "the sampler", None])
def test_each_epoch_of_a_distributed_sampler_is_trained_once(tell):
    """A run that saves after each epoch, and is resumed from there: the loop of docs/resume.md."""
    seen, state = [], None
    for _ in range(5):  # runs, of an epoch each
        loader = distributed(0, 2)
        if state is not None:
            loader.load_state_dict(state)
        epoch = loader.state_dict()["epoch"]
        if epoch == 3:
            break
        if tell is not None:
            (loader if tell == "the feed" else loader.loader.sampler).set_epoch(epoch)
        assert place(loader.state_dict()) == (epoch, 0)
        seen.append(flat(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        assert place(state) == (epoch + 1, 0)
    assert seen == [flat(distributed(0, 2, epoch=epoch if tell else 0)) for epoch in range(3)]


def test_a_distributed_sampler_may_be_told_an_epoch_once_more():
    loader = distributed(0, 2)
    for _ in range(2):
        loader.set_epoch(0)
        assert place(loader.state_dict()) == (0, 0)
        list(loader)
        assert place(loader.state_dict()) == (1, 0)
    loader.set_epoch(4)
    next(iter(loader))
    assert place(loader.state_dict()) == (4, 16)


def test_states_of_a_distributed_sampler_of_earlier_versions_are_taken():
    loader = distributed(0, 2)
    state = {**loader.state_dict(), "epoch": 2, "consumed": 16}
    del state["sampler_epoch"]
    loader.load_state_dict(state)
    assert flat(loader) == flat(distributed(0, 2, epoch=2))[8:]
    assert place(loader.state_dict()) == (3, 0)
    other = {**loader.state_dict(), "epoch": 5}
    loader.load_state_dict(other)
    loader.loader.sampler.set_epoch(5)
    assert flat(loader) == flat(distributed(0, 2, epoch=5)), "the epoch that it is told, and not the saved one"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(Made()), r"is a Made, which makes the samples itself\. .*sampler=penstock\.Sampler"),
        (lambda: DataLoader(Made(), num_workers=1), "its dataset is a Made"),
        (lambda: DataLoader(DATA, sampler=SubsetRandomSampler(range(5))), "its sampler is a SubsetRandomSampler"),
        (lambda: DataLoader(DATA, sampler=WeightedRandomSampler(torch.ones(5), 5)), "is a WeightedRandomSampler"),
        (lambda: DataLoader(DATA, sampler=Odd(COUNT)), "its sampler is a Odd"),
        (lambda: DataLoader(DATA, batch_size=None), "it does not batch"),
        (lambda: DataLoader(DATA, batch_sampler=Mine(SequentialSampler(DATA), 4, False)), "sampler is a Mine"),
        (lambda: DataLoader(Made(), sampler=penstock.Sampler(9), num_workers=1, in_order=False), "in_order=False out"),
        (lambda: [torch.zeros(2)], "it is a list, and not a DataLoader itself"),
        (lambda: DataLoader(type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([])})()), "resumable"),
    ],
)
def test_what_cannot_be_resumable_says_so(make, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.feed(make(), "host", resumable=True)


def test_a_feed_that_must_be_native_and_is_not():
    with pytest.raises(penstock.InvalidArgument, match="cannot be resumable: native=False"):
        penstock.feed(DataLoader(DATA), "host", native=False, resumable=True)
    data = TensorDataset(torch.arange(20))
    loader = penstock.feed(DataLoader(data, 4), "host", resumable=True)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    kept, data.tensors = data.tensors, (torch.zeros(20, requires_grad=True),)
    for _ in range(2):
        with pytest.raises(penstock.InvalidArgument, match="requires gradients"):
            iter(loader)
    assert loader.state_dict() == state
    data.tensors = kept
    assert flat(loader) == list(range(4, 20))


def test_a_loader_with_a_state_or_our_sampler_is_resumable_anyway():
    class Counter(list):
        def state_dict(self):
            return {"position": 3}

        def load_state_dict(self, state):
            pass

    assert penstock.feed(Counter(), "host", resumable=True).state_dict() == {"position": 3}
    loader = penstock.feed(DataLoader(Made(), sampler=penstock.Sampler(COUNT)), "host", resumable=True)
    assert place(loader.state_dict()) == (0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": "Other"}, "sampler 'Other', and this feed's DataLoader has 'RandomSampler'"),
        ({"sample_count": 5}, "sample_count 5, and this feed's DataLoader has 97"),
        ({"num_samples": 5}, "num_samples 5"),
        ({"consumed": 98}, "'consumed' of a feed's state is a whole number, 0 to 97"),
        ({"consumed": -1}, "'consumed'"),
        ({"epoch": "1"}, "'epoch' of a feed's state"),
        ({"epoch_seed": None}, "'epoch_seed' of a feed's state is a whole number, 0 or more, not None"),
        ({"epoch_seed": "1"}, "'epoch_seed'"),
    ],
)
def test_a_state_of_another_order_changes_nothing(change, message):
    loader = RESUMABLE["random"]()
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(penstock.InvalidArgument, match=message):
        loader.load_state_dict({**state, **change})
    assert loader.state_dict() == state
    with pytest.raises(penstock.InvalidArgument, match="it lacks epoch_seed"):
        loader.load_state_dict({key: value for key, value in state.items() if key != "epoch_seed"})
    with pytest.raises(penstock.InvalidArgument, match="it lacks sampler, sample_count"):
        loader.load_state_dict(penstock.Sampler)
    for foreign in (penstock.Sampler(COUNT).state_dict(), RESUMABLE["with a generator"]().state_dict()):
        with pytest.raises(penstock.InvalidArgument, match="it lacks"):
            loader.load_state_dict(foreign)


def test_a_pytorch_that_draws_in_another_way_is_refused(monkeypatch):
    from penstock._loader import indices as _indices

    _indices.draws_as_known.cache_clear()
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter(range(len(self.data_source))))
    try:
        with pytest.raises(penstock.InvalidArgument, match="RandomSampler of this PyTorch draws in a way"):
            RESUMABLE["random"]()
    finally:
        _indices.draws_as_known.cache_clear()


def test_iterators_at_once_of_pytorchs_order():
    torch.manual_seed(5)
    loader = RESUMABLE["random"]()
    first = iter(loader)
    taken = flat([next(first), next(first)])
    second = iter(loader)
    begun = next(second)[0].tolist()
    state = loader.state_dict()
    assert place(state) == (1, 8)
    assert sorted(taken + flat(first)) == list(range(COUNT))
    assert loader.state_dict() == state
    assert sorted(begun + flat(second)) == list(range(COUNT))
    assert place(loader.state_dict()) == (2, 0)
    loader.load_state_dict(state)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(state["epoch_seed"]))
    assert begun + flat(loader) == order.tolist()


def test_a_generator_that_is_seeded_for_each_epoch_stays_the_callers():
    loader = RESUMABLE["with a generator"]()
    loader.loader.generator.manual_seed(1)
    wanted = flat(loader)
    taken = flat(itertools.islice(loader, 3))
    state = loader.state_dict()
    loader.loader.generator.manual_seed(7)
    loader.load_state_dict(state)
    assert sorted(taken + flat(loader)) == list(range(COUNT)), "the rest of an epoch is that of its beginning"
    loader.load_state_dict(RESUMABLE["with a generator"]().state_dict())
    assert torch.equal(loader.loader.generator.get_state(), generator().get_state())
    loader.loader.generator.manual_seed(1)
    assert flat(loader) == wanted
    for damaged in (None, "zz", "00"):
        with pytest.raises(penstock.InvalidArgument, match="'generator' of a feed's state is damaged"):
            loader.load_state_dict({**state, "generator": damaged})


def test_a_feed_that_keeps_its_place_keeps_its_loader():
    """Another one has another order, of which it would not know the place."""
    loader = penstock.feed(DataLoader(DATA, 10, sampler=penstock.Sampler(DATA)), "host")
    with pytest.raises(penstock.InvalidArgument, match="its loader cannot be replaced: make another feed"):
        loader.loader = DataLoader(DATA, 10)
    resumable = RESUMABLE["with a generator"]()
    with pytest.raises(penstock.InvalidArgument, match="its native cannot be replaced"):
        resumable.native = False
    plain = penstock.feed(DataLoader(DATA, 10), "host")
    plain.loader = DataLoader(DATA, 20)
    assert len(plain) == 5
