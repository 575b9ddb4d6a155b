import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import penstock
from penstock._loader import samplers as _samplers
from support import same

COUNT = 97


@pytest.fixture
def data(random):
    return TensorDataset(torch.from_numpy(random.integers(0, 256, (COUNT, 5, 7), dtype=np.uint8)), torch.arange(COUNT))


def taken(loader):
    return [[field.cpu().clone() for field in batch] for batch in loader]


class Listed:
    """A batch sampler of these batches, which notes who asks for how many."""

    def __init__(self, *batches, batch_size=16):
        self.batches = batches
        self.batch_size = batch_size
        self.drawn = 0
        self.threads = set()
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        for batch in self.batches:
            self.drawn += 1
            self.threads.add(threading.get_ident())
            if isinstance(batch, Exception):
                raise batch
            yield batch


SAMPLERS = {
    "random": RandomSampler,
    "with replacement": lambda data: RandomSampler(data, replacement=True, num_samples=211),
    "sequential": SequentialSampler,
    "weighted": lambda data: WeightedRandomSampler(torch.arange(1, COUNT + 1).float(), 150),
    "subset": lambda data: SubsetRandomSampler(range(3, 50)),
    "distributed": lambda data: DistributedSampler(data, num_replicas=3, rank=1, seed=4),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_batches_are_those_of_a_dataloader_with_this_sampler(device, data, name, drop_last):
    options = {"batch_size": 8, "drop_last": drop_last}
    torch.manual_seed(5)
    sampler = SAMPLERS[name](data)
    ours = penstock.Loader(data, sampler=sampler, device=device, **options)
    theirs = DataLoader(data, sampler=sampler, generator=torch.Generator(), **options)
    assert len(ours) == len(theirs)
    for epoch in range(2):
        torch.manual_seed(epoch)
        mine = taken(ours)
        torch.manual_seed(epoch)
        assert same(mine, list(theirs))


@pytest.mark.parametrize("residency", ["none", "all", 0.3])
@pytest.mark.parametrize("gather", ["automatic", "host", "zero-copy", "copy-engine"])
def test_a_batch_sampler_chooses_in_every_way(device, data, gather, residency):
    torch.manual_seed(6)
    batches = [torch.randint(COUNT, (int(size),)) for size in torch.randint(1, 17, (12,))]
    sampler = Listed(*(batch.tolist() for batch in batches))
    loader = penstock.Loader(
        data, batch_sampler=sampler, device=device, residency=residency, tuning=penstock.Tuning(gather=gather)
    )
    for _ in range(2):
        assert same(taken(loader), [list(data[batch]) for batch in batches])


def test_batches_may_be_any_sequence_of_whole_numbers(data):
    batches = [[3, 1], (2, 2), range(5), np.array([4, 0], np.int16), torch.tensor([7]), iter([1, 2]), [-1, -COUNT, 3]]
    batches += [{6}, [np.uint64(3), 5], [torch.tensor(8), torch.tensor(9)]]
    got = taken(penstock.Loader(data, batch_sampler=Listed(*batches), device="host"))
    wanted = [[3, 1], [2, 2], [0, 1, 2, 3, 4], [4, 0], [7], [1, 2], [COUNT - 1, 0, 3]]
    wanted += [[6], [3, 5], [8, 9]]
    assert [batch[1].tolist() for batch in got] == wanted


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([0.5], "whole numbers"),
        ([[1, 2]], "whole numbers"),
        ([True], "whole numbers"),
        (["x"], "whole numbers"),
        ([], "empty batch"),
        (None, "whole numbers"),
        (3, "whole numbers"),
        ([COUNT], f"index {COUNT}, and there are {COUNT} samples"),
        ([-COUNT - 1], f"index {-COUNT - 1}, and there are {COUNT} samples"),
        ([0] * 17, "17 samples, and the loader's batch size is 16"),
    ],
)
def test_a_batch_that_cannot_be_fed_raises_in_its_place(data, batch, message):
    loader = penstock.Loader(data, batch_sampler=Listed([1], [2], batch, [3]), device="host")
    iterator = iter(loader)
    assert [next(iterator)[1].tolist() for _ in range(2)] == [[1], [2]]
    with pytest.raises(penstock.InvalidArgument, match=message):
        next(iterator)


def test_a_samplers_exception_raises_in_its_place(device, data):
    sampler = Listed([1], [2], KeyError("lost"), [3])
    loader = penstock.Loader(data, batch_sampler=sampler, device=device)
    for _ in range(2):
        iterator = iter(loader)
        assert [next(iterator)[1].tolist() for _ in range(2)] == [[1], [2]]
        with pytest.raises(KeyError, match="lost") as error:
            next(iterator)
        assert error.traceback[-1].name == "__iter__", "the sampler's own traceback"
    sampler.batches = ([5], [6])
    assert [batch[1].tolist() for batch in taken(loader)] == [[5], [6]]


def test_a_sampler_that_cannot_begin_says_so_each_time(data):
    class Broken:
        batch_size = 2

        def __iter__(self):
            raise KeyError("no beginning")

    for options in ({"batch_sampler": Broken()}, {"sampler": Broken()}):
        loader = penstock.Loader(data, device="host", **options)
        for _ in range(2):
            iterator = iter(loader)
            for _ in range(3):
                with pytest.raises(KeyError, match="no beginning"):
                    next(iterator)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_a_sampler_that_is_interrupted_ends_the_loop_at_once(data, interruption):
    class Interrupted(Listed):
        def __iter__(self):
            yield [1]
            yield [2]
            if not self.epochs:
                self.epochs.append(0)
                raise interruption
            yield [3]

    loader = penstock.Loader(data, batch_sampler=Interrupted(), device="host", prefetch_depth=4)
    iterator = iter(loader)
    with pytest.raises(interruption):
        next(iterator)
    assert [batch[1].tolist() for batch in loader] == [[1], [2], [3]]


def test_a_draw_that_is_interrupted_goes_on(data, monkeypatch):
    class Once:
        """Is interrupted once, in the middle of a batch."""

        next = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.next += 1
            if self.next == 4:
                raise KeyboardInterrupt
            if self.next > 9:
                raise StopIteration
            return self.next

    for interrupted in (False, True):  # by the sampler, and once it has given
        sampler = type("Begins", (), {"__iter__": lambda self: Once()})()
        loader = penstock.Loader(data, batch_size=2, sampler=sampler, device="host", prefetch_depth=1)
        iterator, got = iter(loader), []
        if interrupted:
            indices, left = _samplers.Batches._indices, [3]

            def late(self, batch, indices=indices, left=left):
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
                return indices(self, batch)

            monkeypatch.setattr(_samplers.Batches, "_indices", late)
        interrupts = 0
        while True:
            try:
                got += next(iterator)[1].tolist()
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
        assert got == [1, 2, 3, 5, 6, 7, 8, 9]
        assert interrupts == 1 + interrupted


def test_threads_that_share_a_loader_reach_its_end_together(data):
    loader = penstock.Loader(data, batch_sampler=Listed([1], [2]), device="host")
    got = []
    threads = [threading.Thread(target=loader._native.next_into, args=(got,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(batch is None for batch in got) == 2 and len(got) == 6


def test_a_sampler_is_asked_ahead_on_the_thread_that_iterates(device, data):
    sampler = Listed(*[[k] for k in range(20)])
    loader = penstock.Loader(data, batch_sampler=sampler, device=device, prefetch_depth=3)
    iterator = iter(loader)
    assert sampler.drawn == 0
    for count in range(1, 6):
        next(iterator)
        assert sampler.drawn == count + 3
    assert sampler.threads == {threading.get_ident()}


def test_an_epoch_that_is_left_begins_anew(device, data):
    loader = penstock.Loader(data, sampler=range(20), batch_size=4, device=device)
    for _ in range(3):
        assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
    assert torch.cat([batch[1] for batch in taken(loader)]).tolist() == list(range(20))


def test_epochs_are_drawn_when_they_are_asked_for(data):
    sampler = Listed([1], [2])
    loader = penstock.Loader(data, batch_sampler=sampler, device="host", prefetch_depth=8)
    for epoch in range(1, 4):
        assert len(taken(loader)) == 2
        assert sampler.drawn == 2 * epoch


def test_set_epoch_reaches_the_sampler(data):
    sampler = DistributedSampler(data, num_replicas=2, rank=0, seed=1)
    loaders = [
        penstock.Loader(data, sampler=sampler, batch_size=8, device="host"),
        penstock.Loader(data, batch_sampler=BatchSampler(sampler, 8, False), device="host"),
    ]
    for epoch in (3, 0, 7):
        sampler.set_epoch(epoch)
        wanted = list(sampler)
        for loader in loaders:
            sampler.set_epoch(1000)
            loader.set_epoch(epoch)
            assert torch.cat([batch[1] for batch in taken(loader)]).tolist() == wanted
    listed = Listed([1])
    penstock.Loader(data, batch_sampler=listed, device="host").set_epoch(5)
    assert listed.epochs == [5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": range(3), "shuffle": True}, "sampler chooses the samples: leave out shuffle"),
        ({"sampler": range(3), "seed": 1}, "leave out seed"),
        ({"sampler": range(3), "rank": 1, "world_size": 2}, "leave out rank"),
        ({"sampler": range(3), "rank": 0, "world_size": 2}, "leave out world_size"),
        ({"sampler": range(3), "distributed": True}, "leave out distributed"),
        ({"batch_sampler": [[1]], "batch_size": 1, "sampler": range(3)}, "batch_sampler .*leave out sampler"),
        ({"batch_sampler": [[1]], "batch_size": 1, "drop_last": True}, "leave out drop_last"),
        ({"batch_sampler": [[1]], "batch_size": 1, "sampler": np.arange(3)}, "leave out sampler"),
        ({"batch_sampler": [[1]], "batch_size": 1, "sampler": []}, "leave out sampler"),
        ({"batch_sampler": [[1]]}, "does not say how large its batches are: pass batch_size"),
        ({"sampler": iter([1])}, "iterated once for each epoch"),
        ({"sampler": range(3), "batch_size": 0}, "batch_size is a number of samples, 1 or more, not 0"),
    ],
)
def test_what_does_not_fit(data, options, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Loader(data, device="host", **options)


def test_a_sampler_must_be_iterable(data):
    with pytest.raises(TypeError, match="sampler is an iterable of indices, not int"):
        penstock.Loader(data, sampler=3, device="host")


def test_a_share_of_all_silences_the_warning_with_a_sampler_too(data):
    loader = penstock.Loader(data, sampler=range(3), rank=0, world_size=1, device="host")
    assert len(taken(loader)) == 3


def test_a_sampler_without_a_length(data):
    class Endless:
        def __iter__(self):
            return iter([0, 1, 2])

    loader = penstock.Loader(data, sampler=Endless(), batch_size=2, device="host")
    assert [batch[1].tolist() for batch in taken(loader)] == [[0, 1], [2]]
    with pytest.raises(TypeError, match="len"):
        len(loader)
    assert "batches of a sampler" in repr(loader)


def test_there_is_no_state(data):
    loader = penstock.Loader(data, sampler=range(9), batch_size=2, device="host")
    with pytest.raises(penstock.InvalidArgument, match="with a sampler has no state"):
        loader.state_dict()
    with pytest.raises(penstock.InvalidArgument, match="with a sampler has no state"):
        loader.load_state_dict(penstock.Loader(data, device="host").state_dict())
    copy = pickle.loads(pickle.dumps(loader))
    assert same(taken(copy), taken(loader))


def test_batches_that_are_kept_stay_valid(device, data):
    loader = penstock.Loader(data, sampler=range(COUNT), batch_size=10, device=device)
    assert same([[field.cpu() for field in batch] for batch in list(loader)], taken(loader))


def test_nothing_keeps_a_loader_with_a_sampler(data):
    loader = penstock.Loader(data, batch_sampler=Listed([1], ValueError("never seen"), [2]), device="host")
    next(iter(loader))
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


class Mine(RandomSampler):
    pass


def of_pytorch(generator):
    return [
        RandomSampler(range(COUNT), generator=generator),
        RandomSampler(range(COUNT), num_samples=2 * COUNT, generator=generator),
        RandomSampler(range(COUNT), num_samples=300, generator=generator),
        RandomSampler(range(COUNT), replacement=True, num_samples=160, generator=generator),
        RandomSampler(range(COUNT), replacement=True, num_samples=163, generator=generator),
        SequentialSampler(range(COUNT)),
        WeightedRandomSampler(torch.arange(1, COUNT + 1).float(), 150, generator=generator),
        WeightedRandomSampler(torch.arange(1, COUNT + 1).float(), 50, replacement=False, generator=generator),
        DistributedSampler(range(COUNT), 3, 1),
        DistributedSampler(range(COUNT), 4, 3, shuffle=False),
        DistributedSampler(range(COUNT), 4, 3, drop_last=True),
        DistributedSampler(range(2), 5, 4),
        SubsetRandomSampler(range(3, 50), generator=generator),
        Mine(range(COUNT), generator=generator),
    ]


@pytest.mark.parametrize("own", [False, True], ids=["PyTorch's generator", "its own generator"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 8, COUNT, 1000])
@pytest.mark.parametrize("wrapped", [False, True], ids=["sampler", "BatchSampler"])
def test_the_same_batches_leave_the_same_random_state(data, own, drop_last, size, wrapped):
    generator = torch.Generator() if own else None
    for sampler in of_pytorch(generator):
        batch_sampler = BatchSampler(sampler, size, drop_last)
        states, drawn = [], []
        for indices in (None, batch_sampler):
            torch.manual_seed(7)
            if own:
                generator.manual_seed(8)
            if indices is None:
                options = {"batch_sampler": batch_sampler} if wrapped else {"sampler": sampler, "batch_size": size}
                if not wrapped:
                    options["drop_last"] = drop_last
                loader = penstock.Loader(data, device="host", prefetch_depth=1, **options)
                drawn.append([batch[1].tolist() for batch in loader])
            else:
                drawn.append(list(indices))
            states.append((torch.get_rng_state(), generator.get_state() if own else torch.empty(0)))
        assert drawn[0] == drawn[1], sampler
        assert all(torch.equal(a, b) for a, b in zip(*states, strict=True)), sampler


@pytest.mark.parametrize("size", [12, 32])  # indices are drawn in pieces of 32
def test_indices_are_drawn_no_earlier_than_pytorch_draws_them(data, size):
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(range(COUNT), replacement=True, num_samples=160, generator=generator)
    theirs = []
    for _ in BatchSampler(sampler, size, False):
        theirs.append(generator.get_state())
    generator.manual_seed(3)
    loader = penstock.Loader(data, sampler=sampler, batch_size=size, device="host", prefetch_depth=1)
    for k, _ in enumerate(loader):
        ahead = min(k + 1, len(theirs) - 1)
        if k + 1 < len(theirs):
            assert torch.equal(generator.get_state(), theirs[ahead])


@pytest.mark.parametrize("count", [1, 2, 4096, 4097, 300_000])
def test_an_order_that_is_drawn_when_asked_is_pytorchs(count):
    from penstock import _core

    for seed in (0, 7, 2**32 + 7, 2**63 - 1):
        expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
        for wanted in (count + 1, count - count // 3):
            order = _core.TorchOrder(seed, count, wanted)
            assert np.array_equal(np.concatenate(list(order)), expected[:wanted])
            assert next(order, None) is None, "it stays at its end"


def test_only_pytorchs_own_samplers_are_drawn_as_tensors(monkeypatch):
    from penstock._loader import indices as _indices

    for sampler in of_pytorch(None)[:12]:
        assert _indices.pieces_of(sampler) is not None, sampler
    for sampler in [*of_pytorch(None)[12:], range(3)]:
        assert _indices.pieces_of(sampler) is None, sampler
    # A PyTorch whose sampler draws in another way.
    _indices.draws_as_known.cache_clear()
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter(range(len(self.data_source))))
    try:
        assert _indices.pieces_of(RandomSampler(range(3))) is None
        assert _indices.pieces_of(SequentialSampler(range(3))) is not None
    finally:
        _indices.draws_as_known.cache_clear()


def test_looking_whether_pytorch_draws_so_leaves_its_random_state():
    from penstock._loader import indices as _indices

    _indices.draws_as_known.cache_clear()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    known = [_indices.draws_as_known(type(sampler)) for sampler in of_pytorch(None)[:12]]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(known)
