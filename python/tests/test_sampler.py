"""penstock.Sampler, as PyTorch sees a sampler."""

import copy
import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import penstock
from support import run_program

COUNT = 97
DATA = TensorDataset(torch.arange(COUNT))


def by_loader(epochs=1, **options):
    """The indices of each epoch, as a Loader orders and shares them out."""
    size = 1 if options.get("drop_last") else 50  # a Loader with drop_last also leaves out a batch that is not full
    loader = penstock.Loader(np.arange(options.pop("count", COUNT)), size, device="host", **options)
    return [[int(index) for batch in loader for index in batch] for _ in range(epochs)]


SHARES = [
    {},
    {"shuffle": True},
    {"shuffle": True, "seed": 5, "rank": 1, "world_size": 3},
    {"rank": 2, "world_size": 3, "drop_last": True},
    {"shuffle": True, "seed": 2**64 - 1, "rank": 4, "world_size": 5, "drop_last": True},
    {"shuffle": True, "rank": 6, "world_size": 7, "count": 3},
    {"shuffle": True, "rank": 1, "world_size": 2, "count": 10_001},  # more than the C++ side gives at once
]


@pytest.mark.parametrize("options", SHARES, ids=str)
def test_the_indices_are_those_of_a_loader(options):
    options = dict(options)
    wanted = by_loader(3, **options)
    count = options.pop("count", COUNT)
    sampler = penstock.Sampler(range(count), **options)
    for epoch in wanted:
        numbers = list(sampler)
        assert numbers == epoch and set(map(type, numbers)) == {int}
        assert len(sampler) == len(epoch)
    for epoch in (2, 0, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == wanted[epoch]


def test_data_is_a_length_or_a_number():
    for data in (DATA, np.zeros((COUNT, 2)), torch.zeros(COUNT), COUNT, np.int32(COUNT), torch.tensor(COUNT)):
        assert list(penstock.Sampler(data)) == list(range(COUNT))
    sampler = penstock.Sampler(DATA, rank=1, world_size=4)
    assert (sampler.rank, sampler.world_size, sampler.num_replicas) == (1, 4, 4)
    assert repr(sampler) == "<penstock.Sampler: 25 of 97 samples, rank 1 of 4>"


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return itertools.count()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Endless(), {}, "data is a dataset with a length, or a number of samples, 0 or more, not <"),
        (2.5, {}, "data is a dataset with a length"),
        (True, {}, "data is a dataset with a length"),
        ([], {}, "zero samples cannot be sampled"),
        (2, {"rank": 0, "world_size": 3, "drop_last": True}, "use fewer ranks, or let the order wrap around"),
        (2, {"rank": 1}, "rank and world_size belong together"),
        (2, {"rank": 2, "world_size": 2}, "rank is a whole number, 0 to 1, not 2"),
        (2, {"rank": 0, "world_size": 0}, "world_size is a number of processes"),
        (2, {"seed": -1}, "seed is a whole number"),
        (2, {"distributed": True}, "Start with torchrun"),
    ],
)
def test_what_does_not_fit(data, options, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Sampler(data, **options)


def test_the_share_of_torchruns_environment(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = penstock.Sampler(DATA, shuffle=True, distributed=True)
    monkeypatch.delenv("RANK")
    for one in (sampler, pickle.loads(pickle.dumps(sampler))):
        assert [list(one)] == by_loader(shuffle=True, rank=2, world_size=3)


def test_an_iteration_begins_with_its_first_index():
    first, second = by_loader(2, shuffle=True)
    sampler = penstock.Sampler(DATA, shuffle=True)
    unused, iterator = iter(sampler), iter(sampler)
    sampler.set_epoch(1)
    assert next(iterator) == second[0]
    sampler.set_epoch(0)
    assert list(unused) == first
    assert [next(iterator) for _ in second[1:]] == second[1:], "it goes on beside the other"


def test_an_iteration_that_is_left_is_over():
    epochs = by_loader(3, shuffle=True)
    sampler = penstock.Sampler(DATA, shuffle=True)
    left = iter(sampler)
    assert [next(left) for _ in range(5)] == epochs[0][:5]
    assert list(sampler) == epochs[1]
    assert sampler.state_dict() == {**sampler.state_dict(), "epoch": 1, "consumed": COUNT}
    assert list(left) == epochs[0][5:], "two at once"
    assert sampler.state_dict() == {**sampler.state_dict(), "epoch": 1, "consumed": COUNT}, "the latest iteration's"
    assert list(sampler) == epochs[2]


def test_a_batch_sampler_that_has_seen_the_end_leaves_nothing_of_the_epoch():
    """It asks for one index more, to know that the last batch is short. torchdata keeps the sampler's state by then."""
    torch_data = pytest.importorskip("torch.utils.data")
    sampler = penstock.Sampler(DATA, shuffle=True)
    batches = torch_data.BatchSampler(sampler, 40, False)
    states = [sampler.state_dict() for _ in batches]
    assert [(state["epoch"], state["consumed"]) for state in states] == [(0, 40), (0, 80), (0, COUNT)]
    resumed = penstock.Sampler(DATA, shuffle=True)
    resumed.load_state_dict(states[-1])
    resumed.set_epoch(0)
    assert list(resumed) == []
    assert list(resumed) == by_loader(2, shuffle=True)[1]


def test_the_state_is_that_of_a_loader_and_goes_both_ways():
    options = {"shuffle": True, "seed": 3, "rank": 1, "world_size": 2}
    sampler = penstock.Sampler(DATA, **options)
    loader = penstock.Loader(np.arange(COUNT), 1, device="host", **options)
    assert sampler.state_dict() == loader.state_dict()
    numbers, batches = iter(sampler), iter(loader)
    for _ in range(COUNT // 2 + 1):
        assert next(numbers) == int(next(batches)[0])
        assert json.dumps(sampler.state_dict()) == json.dumps(loader.state_dict())
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) == (0, COUNT), "before the end is seen"
    assert list(numbers) == list(batches) == []
    assert sampler.state_dict() == {**loader.state_dict(), "epoch": 0, "consumed": COUNT}
    assert loader.state_dict() == {**loader.state_dict(), "epoch": 1, "consumed": 0}
    assert sampler.state_dict() is not sampler.state_dict()

    middle = {**loader.state_dict(), "epoch": 4, "consumed": 40}
    for one in (sampler, loader):
        one.load_state_dict(middle)
        assert one.state_dict() == middle
    rest = list(sampler)
    assert rest == [int(batch[0]) for batch in loader]
    order = by_loader(5, shuffle=True, seed=3)[4]
    assert rest == [*order[41::2], order[0]]


def test_set_epoch_of_the_loaded_epoch_keeps_the_place():
    fourth, fifth = by_loader(6, shuffle=True)[4:]
    state = {**penstock.Sampler(DATA, shuffle=True).state_dict(), "epoch": 4, "consumed": 90}
    sampler = penstock.Sampler(DATA, shuffle=True)
    sampler.load_state_dict(state)
    sampler.set_epoch(4)
    assert list(sampler) == fourth[90:]
    assert list(sampler) == fifth
    sampler.set_epoch(4)
    assert list(sampler) == fourth, "it is not the loaded epoch any more"
    for others in ((5, 4), (3, 4)):
        sampler.load_state_dict(state)
        for epoch in others:
            sampler.set_epoch(epoch)
        assert sampler.state_dict()["consumed"] == 0
        assert list(sampler) == fourth
    half = iter(sampler)
    next(half)
    sampler.set_epoch(7)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) == (7, 0)
    with pytest.raises(penstock.InvalidArgument, match="epoch is a whole number"):
        sampler.set_epoch(-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_count": 5}, "sample_count 5, this sampler has 97"),
        ({"seed": 9}, "seed 9, this sampler has 0"),
        ({"shuffle": False}, "shuffle"),
        ({"order_version": 77}, "order_version 77"),
        ({"consumed": COUNT + 1}, "it is damaged"),
        ({"epoch": -1}, "'epoch' of a sampler's state is a whole number"),
        ({"consumed": "3"}, "'consumed' of a sampler's state"),
        ({"shuffle": 1}, "'shuffle' of a sampler's state is True or False"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    sampler = penstock.Sampler(DATA, shuffle=True)
    numbers = iter(sampler)
    for _ in range(10):
        next(numbers)
    before = sampler.state_dict()
    with pytest.raises(penstock.InvalidArgument, match=message):
        sampler.load_state_dict({**before, **change})
    assert sampler.state_dict() == before
    with pytest.raises(penstock.InvalidArgument, match="it lacks epoch, consumed"):
        sampler.load_state_dict({key: before[key] for key in ("sample_count", "seed", "order_version", "shuffle")})
    with pytest.raises(penstock.InvalidArgument, match="of a Sampler or a Loader is a dict made by state_dict"):
        sampler.load_state_dict(3)


def test_copies_go_on_where_it_stands():
    [order] = by_loader(shuffle=True, seed=1)
    sampler = penstock.Sampler(DATA, shuffle=True, seed=1)
    numbers = iter(sampler)
    assert [next(numbers) for _ in range(60)] == order[:60]
    for again in (copy.deepcopy(sampler), copy.copy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert again.state_dict() == sampler.state_dict()
        assert list(again) == order[60:]
    assert list(numbers) == order[60:]
    large = penstock.Sampler(np.zeros(10**6))
    assert len(pickle.dumps(large)) < 1000, "without the data"


def ids(loader):
    return [batch[0].tolist() for batch in loader]


def cut(numbers, size, drop_last=False):
    batches = [list(numbers[i : i + size]) for i in range(0, len(numbers), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_in_a_dataloader(workers, drop_last):
    epochs = by_loader(3, shuffle=True, rank=1, world_size=2)
    spawns = "multiprocessing_context" in workers
    for wrapped in (drop_last,) if spawns else (False, True):
        sampler = penstock.Sampler(DATA, shuffle=True, rank=1, world_size=2)
        if wrapped:
            options = {"batch_sampler": BatchSampler(sampler, 8, drop_last)}
        else:
            options = {"sampler": sampler, "batch_size": 8, "drop_last": drop_last}
        loader = DataLoader(DATA, **options, **workers)
        assert len(loader) == (6 if drop_last else 7)
        count = 1 if spawns else 3
        assert [ids(loader) for _ in range(count)] == [cut(epoch, 8, drop_last) for epoch in epochs[:count]]
        sampler.set_epoch(1)
        assert ids(loader) == cut(epochs[1], 8, drop_last)


def test_in_a_dataloader_without_batches():
    loader = DataLoader(DATA, sampler=penstock.Sampler(DATA, shuffle=True), batch_size=None)
    assert [[int(row) for (row,) in loader]] == by_loader(shuffle=True)


@pytest.mark.parametrize("count", [COUNT, 9000])
def test_native_loaders_take_its_indices_in_arrays(device, count, monkeypatch):
    data = TensorDataset(torch.arange(count))
    orders = by_loader(2, count=count, shuffle=True, rank=0, world_size=2)
    sampler = penstock.Sampler(data, shuffle=True, rank=0, world_size=2)
    monkeypatch.setattr(penstock._loader.sampler.Draw, "numbers", None)
    fed = penstock.feed(DataLoader(data, batch_size=100, sampler=sampler), device)
    assert [ids(fed) for _ in orders] == [cut(order, 100) for order in orders]
    loader = penstock.Loader(data, sampler=sampler, batch_size=100, device=device)
    loader.set_epoch(1)
    assert len(loader) == -(-len(sampler) // 100)
    assert ids(loader) == cut(orders[1], 100)


def test_only_plain_samplers_are_asked_for_arrays():
    from penstock._loader import indices as _indices

    class Odd(penstock.Sampler):
        def __iter__(self):
            return (index for index in super().__iter__() if index % 2)

    class Named(penstock.Sampler):
        pass

    assert _indices.pieces_of(Odd(DATA)) is None
    loader = penstock.Loader(np.arange(COUNT), sampler=Odd(DATA), device="host")
    assert [int(batch[0]) for batch in loader] == list(range(1, COUNT, 2))
    for sampler in (penstock.Sampler(9000), Named(9000)):
        pieces = list(_indices.pieces_of(sampler))
        assert {piece.dtype for piece in pieces} == {np.dtype(np.int64)}
        assert np.concatenate(pieces).tolist() == list(range(9000))


def test_it_needs_neither_pytorch_nor_numpy():
    program = """
import sys
import penstock
sampler = penstock.Sampler(6, shuffle=True, rank=0, world_size=2)
other = penstock.Sampler(6, shuffle=True, rank=1, world_size=2)
print(sorted(list(sampler) + list(other)), sampler.state_dict()["epoch"])
print({"torch", "numpy"} & set(sys.modules))
"""
    run = run_program(program)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[0, 1, 2, 3, 4, 5] 0\nset()\n", "")


def test_every_sample_once_whatever_the_world_sizes(random):
    """An epoch that is stopped at random places, and goes on with other numbers of processes and of samples a batch."""
    for _ in range(60):
        count = int(random.integers(1, 200))
        options = {"shuffle": bool(random.integers(2)), "seed": int(random.integers(2**63))}
        state, seen = penstock.Sampler(count, **options).state_dict(), []
        order = list(penstock.Sampler(count, **options))
        for world in itertools.cycle((1, 2, 3, 1, int(random.integers(1, 9)))):
            samplers = [penstock.Sampler(count, rank=rank, world_size=world, **options) for rank in range(world)]
            for sampler in samplers:
                sampler.load_state_dict(state)
            steps = int(random.integers(count // 3 + 2))
            shares = [list(itertools.islice(iter(sampler), steps)) for sampler in samplers]
            states = [sampler.state_dict() for sampler in samplers]
            assert all(one == states[0] for one in states) and len({len(share) for share in shares}) == 1
            state = states[0]
            seen += [index for step in zip(*shares, strict=True) for index in step]
            if state["epoch"] == 1 or state["consumed"] == count:
                break
        assert seen[:count] == order, "in the epoch's own order, over all ranks"
        assert seen[count:] == [order[k % count] for k in range(len(seen) - count)], "then what fills the last step"
        assert len(seen) - count < world
