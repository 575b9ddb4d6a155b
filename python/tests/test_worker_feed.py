"""feed around a DataLoader with workers, whose batches come through shared slots: they are those of the loader."""

import copy
import dataclasses
import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

import penstock
from penstock._feed import slots as _shared_slots
from penstock._feed import workers as _worker_feed
from support import is_gpu, same
from worker_loaders import (
    COUNT,
    DEVICES,
    PERSISTENT,
    SHARED,
    AllEqual,
    Counting,
    Growing,
    Heavy,
    Nested,
    Plain,
    Tensors,
    as_they_are,
    equal,
    kept,
    noise,
    slots_of,
)

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: list


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


def seed_numpy(worker):
    np.random.seed(get_worker_info().seed % 2**32)


@PERSISTENT
@DEVICES
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
@DEVICES
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
@DEVICES
def test_any_loader_gives_its_batches(device, make):
    torch.manual_seed(3)
    expected = [kept(make()) for _ in range(2)]
    torch.manual_seed(3)
    for theirs in expected:
        equal(kept(penstock.feed(make(), device, native=False)), theirs)


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


class Stateful(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def test_a_loader_that_iterates_in_its_own_way_is_left_alone():
    feed = penstock.feed(Stateful(Tensors(), 5, num_workers=1), "host")
    equal(kept(feed), kept(DataLoader(Tensors(), 5)))
    assert "a Stateful iterates in its own way" in feed.describe()[-1]


@DEVICES
def test_what_only_pytorch_can_send_is_sent_by_it(device):
    def collate(samples):
        dense = torch.stack([image for image, _ in samples]).float()
        return {
            "dense": dense,
            "sparse": (dense[0] > 200).float().to_sparse(),
            "parameter": torch.nn.Parameter(dense[0]),
            "gradient": dense[0].clone().requires_grad_(),
        }

    loader = DataLoader(Tensors(20), 4, num_workers=1, collate_fn=collate)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        for ours, theirs in zip(feed, loader, strict=True):
            assert same(ours["dense"], theirs["dense"])
            assert torch.equal(ours["sparse"].to_dense().cpu(), theirs["sparse"].to_dense())
            for name in ("parameter", "gradient"):
                assert torch.equal(ours[name].detach().cpu(), theirs[name].detach())
                assert ours[name].requires_grad


@DEVICES
def test_conjugate_and_negative_views_keep_their_values(device):
    def collate(samples):
        pairs = torch.stack([image for image, _ in samples]).float()[:, :, :2].contiguous()
        numbers = torch.view_as_complex(pairs)
        leaf = numbers.conj().detach().requires_grad_()
        return {"pairs": pairs, "conjugate": numbers.conj(), "negative": numbers.conj().imag, "leaf": leaf}

    feed = penstock.feed(DataLoader(Tensors(20), 4, num_workers=1, collate_fn=collate), device)
    for batch in [*feed, *feed]:  # the first ones come when slots have no room
        expected = torch.view_as_complex(batch["pairs"].cpu()).conj().resolve_conj()
        assert torch.equal(batch["conjugate"].cpu(), expected)
        assert torch.equal(batch["negative"].cpu(), expected.imag)
        assert torch.equal(batch["leaf"].detach().cpu(), expected) and batch["leaf"].requires_grad


@DEVICES
def test_elements_that_overlap_get_a_place_each(device):
    def collate(samples):
        image = samples[0][0].float()
        return {"expanded": image[0].expand(5, 33), "windows": image[0].unfold(0, 4, 1), "steps": image[::2, ::3]}

    loader = DataLoader(Tensors(20), 4, num_workers=1, collate_fn=collate)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        for ours, theirs in zip(feed, loader, strict=True):
            for name, wanted in theirs.items():
                assert torch.equal(ours[name].cpu(), wanted)
                ours[name].add_(1)
                assert torch.equal(ours[name].cpu(), wanted + 1), name


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
@DEVICES
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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@DEVICES
def test_more_workers_than_cores_give_their_batches(device):
    workers = os.cpu_count() + 3
    loader = DataLoader(Tensors(), 1, num_workers=workers)
    feed = penstock.feed(loader, device)
    for _ in range(2):
        equal(kept(feed), kept(DataLoader(Tensors(), 1)))
    assert slots_of(feed).shared.slots % workers == 0
    assert sum(slots_of(feed)._granted) == slots_of(feed).shared.slots * (2 << 20)


class Waiting(Tensors):
    """Of these samples only the first comes before they may."""

    def __init__(self):
        super().__init__()
        self.may_come = multiprocessing.Event()

    def __getitem__(self, i):
        assert i == 0 or self.may_come.wait(300)
        return super().__getitem__(i)


@DEVICES
def test_a_batch_that_has_come_does_not_wait_for_those_ahead(device):
    dataset = Waiting()
    iterator = iter(penstock.feed(DataLoader(dataset, 1, num_workers=2), device))
    batches = [next(iterator)]
    dataset.may_come.set()
    equal(kept([*batches, *iterator]), kept(DataLoader(Tensors(), 1)))


@DEVICES
def test_batches_that_have_come_are_sent_ahead(device):
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, prefetch_factor=4), device)
    deadline = time.monotonic() + 120
    ahead = 0
    while ahead < 2:
        assert time.monotonic() < deadline, ahead
        iterator = iter(feed)
        for _ in iterator:
            ahead = max(ahead, len(iterator._pending))
            time.sleep(0.002)
    assert ahead == 2
