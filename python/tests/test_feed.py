import collections
import copy
import gc
import inspect
import json
import pathlib
import pickle
import re
import sys
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import penstock
from penstock._engines import engine_for
from support import gpu, is_gpu, place, run_in_threads, same


def batches_of(count, random, size=100):
    return [
        {"x": torch.from_numpy(random.random(size)), "y": torch.from_numpy(random.integers(0, 9, size)), "n": i}
        for i in range(count)
    ]


class Squares(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return np.full((3, 8), index, dtype=np.float32), index * index


@pytest.mark.parametrize("depth", [0, 1, 2, 7, 100])
def test_batches_come_in_order_with_their_bytes(device, random, depth):
    batches = batches_of(23, random)
    got = 0
    for batch, expected in zip(penstock.feed(batches, device, prefetch_depth=depth), batches, strict=True):
        assert same(batch, expected)
        got += 1
    assert got == 23


@pytest.mark.parametrize("workers", [0, 2])
def test_around_a_dataloader(device, workers):
    loader = DataLoader(Squares(), batch_size=8, num_workers=workers)
    fed = penstock.feed(loader, device=device)
    assert len(fed) == len(loader) == 7
    assert fed.batch_size == 8 and fed.dataset is loader.dataset
    for _ in range(2):
        for (x, y), (a, b) in zip(fed, loader, strict=True):
            assert same(x, a) and same(y, b)
            assert x.device.type == torch.device(place(device)).type


def test_persistent_spawned_workers_open_no_device():
    loader = DataLoader(
        Squares(), batch_size=10, num_workers=1, persistent_workers=True, multiprocessing_context="spawn"
    )
    fed = penstock.feed(loader, device="host:late=1")
    assert same(list(fed), list(loader))


def test_kept_batches_stay_valid(device, random):
    batches = batches_of(40, random)
    kept = list(penstock.feed(batches, device))
    gc.collect()
    assert same(kept, batches)


def test_large_and_small_batches_in_turn(device, random):
    batches = [
        [torch.from_numpy(random.integers(0, 256, n, dtype=np.uint8)) for n in sizes]
        for sizes in ([10], [3 << 20, 7], [], [0, 0], [1 << 20] * 3, [5, 6, 7, 300_000])
    ]
    assert same(list(penstock.feed(batches, device)), batches)


def test_structure_may_change_from_step_to_step(device):
    batches = [torch.ones(3), {"a": torch.ones(2)}, (), None, "text", [torch.ones(1), [torch.ones(4)]], 7]
    assert same(list(penstock.feed(batches, device)), batches)


def test_the_last_batch_is_smaller(device):
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    assert [len(x) for (x,) in penstock.feed(loader, device)] == [4, 4, 2]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_no_more_than_the_depth_is_asked_ahead(device, depth):
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield torch.full((1000,), float(asked))

    for step, batch in enumerate(penstock.feed(endless(), device, prefetch_depth=depth), 1):
        assert asked == step + depth
        assert same(batch, torch.full((1000,), float(step)))
        if step == 10:
            break


@pytest.mark.parametrize("ends", ["break", "close", "del"])
def test_leaving_early_closes_the_loaders_iterator(device, ends):
    closed = []

    class Source:
        def __iter__(self):
            made = self.make()
            self.kept = made if ends == "close" else None  # then nothing but the feed ends it
            return made

        def make(self):
            try:
                for i in range(100):
                    yield torch.full((400_000,), float(i))
            finally:
                closed.append(True)

    source = Source()
    fed = penstock.feed(source, device)
    if ends == "break":
        for kept in fed:  # noqa: B007
            break
    else:
        iterator = iter(fed)
        kept = next(iterator)
        assert not closed
        if ends == "close":
            iterator.close()
        del iterator
        gc.collect()
    assert closed == [True]
    assert same(kept, torch.full((400_000,), 0.0))
    assert same(list(penstock.feed([kept + 1], device)), [kept + 1])
    assert len(list(fed)) == 100


def test_a_batch_is_let_go_before_the_next_is_asked_for(device):
    class Batch(list):
        pass

    reference = lambda: None  # noqa: E731

    def source():
        nonlocal reference
        for i in range(20):
            assert reference() is None
            batch = Batch([torch.full((300_000,), float(i))])
            reference = weakref.ref(batch)
            yield batch
            del batch

    assert len(list(penstock.feed(source(), device))) == 20
    assert reference() is None


def test_batches_that_nobody_else_keeps_are_read_before_they_are_freed(device):
    def source():
        for seed in range(12):
            yield np.random.default_rng(seed).integers(0, 256, 5 << 20, dtype=np.uint8)

    for seed, batch in enumerate(penstock.feed(source(), device, prefetch_depth=5)):
        expected = np.random.default_rng(seed).integers(0, 256, 5 << 20, dtype=np.uint8)
        assert same(torch.as_tensor(penstock.to_host(batch)), torch.from_numpy(expected))


class Broken(Exception):
    pass


class Panic(BaseException):
    """As extensions in Rust raise it."""


@pytest.mark.parametrize("kind", [Broken, Panic])
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_exceptions_keep_type_traceback_and_place(device, depth, kind):
    def source():
        yield torch.ones(2)
        yield torch.ones(3)
        raise kind("sample 17 is bad")

    got = []
    with pytest.raises(kind, match="sample 17 is bad") as caught:
        for batch in penstock.feed(source(), device, prefetch_depth=depth):
            got.append(batch)
    assert same(got, [torch.ones(2), torch.ones(3)])
    assert any(entry.name == "source" for entry in caught.traceback)


def test_exceptions_of_dataset_in_a_worker_process():
    class Bad(Squares):
        def __getitem__(self, index):
            if index == 17:
                raise Broken("sample 17 is bad")
            return super().__getitem__(index)

    with pytest.raises(Broken, match="sample 17 is bad"):
        list(penstock.feed(DataLoader(Bad(), batch_size=5, num_workers=1), "host"))


def test_a_batch_that_cannot_be_sent_comes_after_those_before_it(device):
    got = []
    with pytest.raises(TypeError, match="Python objects"):
        for batch in penstock.feed([torch.ones(1), np.array([None])], device):
            got.append(batch)
    assert len(got) == 1


def test_keyboard_interrupt_is_not_put_off(device):
    def source():
        yield torch.ones(1)
        raise KeyboardInterrupt

    got = []
    with pytest.raises(KeyboardInterrupt):
        for batch in penstock.feed(source(), device, prefetch_depth=2):
            got.append(batch)
    assert not got


def test_two_feeds_at_once_and_on_two_devices(random):
    a, b = batches_of(10, random), batches_of(10, random)
    for x, y, p, q in zip(penstock.feed(a, "host"), penstock.feed(b, "host:late=1"), a, b, strict=True):
        assert same(x, p) and same(y, q)


def test_two_threads(device, random):
    wrong = []

    def work(seed):
        batches = batches_of(20, np.random.default_rng(seed), size=2000)
        if not same(list(penstock.feed(batches, device)), batches):
            wrong.append(seed)

    run_in_threads(work, range(4))
    assert not wrong


class Pinnable:
    """A batch as PyTorch documents it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin")
        return self

    def to(self, device, non_blocking=False):
        self.calls.append(("to", str(device), non_blocking))
        self.tensor = self.tensor.to(device)
        return self


def test_own_pin_memory_and_to_are_called(device):
    (batch,) = penstock.feed([Pinnable(torch.ones(3))], device)
    assert type(batch) is Pinnable
    assert batch.calls == (["pin", ("to", "cuda:0", True)] if is_gpu(device) else [("to", "cpu", False)])


def test_pin_memory_goes_before_what_a_container_is(device):
    class Batch(dict):
        def pin_memory(self):
            self["pinned"] = True
            return self

    (batch,) = penstock.feed([Batch(a=1)], device)
    assert type(batch) is Batch and batch.get("pinned", False) is is_gpu(device)


@gpu
@pytest.mark.parametrize("kind", ["keyword", "positional", "any"])
def test_pin_memory_gets_the_device_where_it_takes_one(kind):
    device = "cuda:0"
    got = []

    class Keyword:
        def pin_memory(self, device=None):
            got.append(device)
            return self

    class Positional:
        def pin_memory(self, device, /):
            got.append(device)
            return self

    class Any:
        def pin_memory(self, **options):
            got.append(options["device"])
            return self

    batch = {"keyword": Keyword, "positional": Positional, "any": Any}[kind]()
    assert list(penstock.feed([batch], device)) == [batch]
    assert got == [place(device)]


@gpu
def test_pin_memory_that_throws():
    class Throwing:
        def pin_memory(self):
            raise Broken("mine")

    with pytest.raises(Broken, match="mine"):
        list(penstock.feed([Throwing()], "cuda:0"))


def test_nothing_is_pinned_for_the_host():
    class Throwing:
        tensor = torch.ones(3)

        def pin_memory(self):
            raise Broken("no GPU, nothing to pin for")

    batch = Throwing()
    assert list(penstock.feed([batch], "host")) == [batch]


class Movable:
    """A batch with `to` alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        return Movable(self.tensor.to(device))


def test_an_object_with_to_moves_there_and_back(device):
    batch = Movable(torch.arange(9))
    (there,) = penstock.feed([batch], device)
    assert there.tensor.device.type == torch.device(place(device)).type
    assert torch.equal(penstock.to_host([there])[0].tensor, batch.tensor)


def test_packed_sequences(device):
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    (got,) = penstock.feed([packed], device)
    assert type(got) is type(packed)
    assert torch.equal(got.data.cpu(), packed.data)


class Graph:
    def __init__(self, nodes, edges, name):
        self.nodes, self.edges, self.name = nodes, edges, name


class NamedGraph(Graph):
    pass


def test_registered_types(device, random):
    def unflatten(old, nest):
        new = copy.copy(old)
        new.nodes, new.edges = nest
        return new

    penstock.register_batch_type(Graph, lambda graph: (graph.nodes, graph.edges), unflatten)
    graph = NamedGraph(torch.from_numpy(random.random(5)), [torch.ones(2)], "mine")
    (got,) = penstock.feed([{"graph": graph}], device)
    got = got["graph"]
    assert type(got) is NamedGraph and got.name == "mine"
    assert same(got.nodes, graph.nodes) and same(got.edges, graph.edges)
    assert got.nodes is not graph.nodes
    with pytest.raises(TypeError, match="takes a type"):
        penstock.register_batch_type("Graph", None, None)


def test_pinned_batches_of_a_dataloader(device):
    loader = DataLoader(Squares(), batch_size=8, pin_memory=torch.cuda.is_available())
    assert same(list(penstock.feed(loader, device)), list(DataLoader(Squares(), batch_size=8)))


def test_set_epoch_reaches_the_sampler_that_takes_it():
    class Sampler:
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter(range(4))

        def __len__(self):
            return 4

    sampler = Sampler()
    loader = DataLoader(Squares(), batch_size=2, sampler=sampler)
    penstock.feed(loader, "host").set_epoch(3)
    assert sampler.epoch == 3
    batched = DataLoader(Squares(), batch_sampler=torch.utils.data.BatchSampler(sampler, 2, False))
    penstock.feed(batched, "host").set_epoch(4)
    assert sampler.epoch == 4
    own = Sampler()
    penstock.feed(own, "host").set_epoch(5)
    assert own.epoch == 5
    assert not hasattr(penstock.feed([1], "host"), "set_epoch")
    with pytest.raises(AttributeError, match="list has no working set_epoch"):
        penstock.feed([1], "host").set_epoch(1)


class Counter:
    """A loader that keeps a state."""

    def __init__(self, count=10):
        self.count = count
        self.position = 0

    def __iter__(self):
        while self.position < self.count:
            self.position += 1
            yield torch.tensor(self.position)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_state_is_of_the_batch_that_was_handed_out(device):
    fed = penstock.feed(Counter(), device, prefetch_depth=4)
    iterator = iter(fed)
    assert [int(next(iterator)) for _ in range(3)] == [1, 2, 3]
    state = fed.state_dict()
    assert state == {"position": 3}
    resumed = penstock.feed(Counter(), device)
    resumed.load_state_dict(state)
    assert [int(x) for x in resumed] == [4, 5, 6, 7, 8, 9, 10]


def test_a_feed_without_a_length_and_unknown_attributes():
    fed = penstock.feed((i for i in range(3)), "host")
    assert fed, "it is true all the same"
    with pytest.raises(TypeError):
        len(fed)
    with pytest.raises(AttributeError, match="nonsense"):
        fed.nonsense  # noqa: B018
    assert not hasattr(fed, "state_dict_of_nobody")
    assert copy.copy(fed).loader is fed.loader


def test_under_tqdm(capsys):
    from tqdm import tqdm

    assert len([batch for batch in tqdm(penstock.feed([torch.ones(1)] * 5, "host"))]) == 5
    assert "5/5" in capsys.readouterr().err


@pytest.mark.parametrize("depth", [-1, 1.5, "2", None, True])
def test_wrong_depths(depth):
    with pytest.raises(penstock.InvalidArgument, match="prefetch_depth"):
        penstock.feed([], "host", prefetch_depth=depth)


def test_wrong_loaders_and_devices_are_refused_at_once():
    with pytest.raises(TypeError, match="This int is not iterable"):
        penstock.feed(3, "host")
    with pytest.raises(penstock.InvalidArgument):
        penstock.feed([], "nonsense")


class Table:
    def __iter__(self):
        return iter(["names", "of", "columns"])

    def __arrow_c_stream__(self, requested_schema=None):
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (Squares(), "penstock.feed(DataLoader(dataset, batch_size=64))"),
        (TensorDataset(torch.ones(3)), "penstock.feed(DataLoader(dataset, batch_size=64)), with batch_size=None if"),
        (DataLoader, "DataLoader is a class: write penstock.feed(DataLoader(...))"),
        (Squares, "Squares is a class"),
        ("x.npy", "'x.npy' is the name of a file: write penstock.Loader('x.npy', batch_size=64)"),
        (b"x.npy", "the name of a file"),
        (pathlib.Path("x.npy"), "the name of a file"),
        ({"x": torch.ones(3)}, "This dict is the data: write penstock.Loader(data, batch_size=64)"),
        (Table(), "This Table is the data"),
    ],
)
def test_what_gives_no_batches_is_told_the_line_to_write(given, line):
    with pytest.raises(TypeError, match=re.escape(line)):
        penstock.feed(given, "host")


def test_the_lines_to_write_are_right(tmp_path):
    assert [len(x) for x, _ in penstock.feed(DataLoader(Squares(), batch_size=64), "host")] == [50]
    path = tmp_path / "x.npy"
    np.save(path, np.ones((9, 2)))
    assert len(penstock.Loader(path, batch_size=4, device="host")) == 3
    batches = TensorDataset(torch.ones(3, 5))
    assert [len(x) for (x,) in penstock.feed(DataLoader(batches, batch_size=None), "host")] == [5, 5, 5]


def test_a_feed_shows_what_it_is():
    assert repr(penstock.feed([torch.ones(1)] * 1000, "host")) == "<penstock.feed of a list on host, prefetch_depth=2>"
    streams = penstock.feed(DataLoader(FedInWorker()), "host", prefetch_depth=0, sharded=True, native=False)
    assert repr(streams) == (
        "<penstock.feed of a DataLoader of a FedInWorker on host, prefetch_depth=0, sharded=True, native=False>"
    )
    tensors = DataLoader(TensorDataset(torch.ones(3)))
    assert repr(penstock.feed(tensors, "host", resumable=True)) == (
        "<penstock.feed of a DataLoader of a TensorDataset on host, prefetch_depth=2, resumable=True>"
    )
    assert "on host and host:late=1" in repr(penstock.feed(tensors, group=["host", "host:late=1"]))
    assert not any("worker" in line for line in streams.describe()), "it has none, and nobody iterates yet"
    shown = streams._repr_html_()
    assert shown.startswith("<p>penstock.feed of a DataLoader of a FedInWorker on host, prefetch_depth=0, ")
    assert shown.count("<li>") == len(streams.describe()) and "<li>the batches are those that the loader makes" in shown


class FedInWorker(IterableDataset):
    def __iter__(self):
        yield from penstock.feed([torch.ones(1)], "host")


def test_use_in_a_worker_process_is_explained():
    with pytest.raises(penstock.DeviceError, match="worker process of a DataLoader"):
        list(DataLoader(FedInWorker(), num_workers=1))


def test_statistics_count_what_was_done(device, random):
    fed = penstock.feed([[torch.ones(10), torch.ones(6)]] * 5, device)
    (last,) = collections.deque(fed, maxlen=1)
    penstock.to_host(last)  # a GPU's times are known once it is done
    statistics = fed.stats()
    assert (statistics.batches, statistics.samples, statistics.arrays, statistics.bytes) == (5, 50, 10, 5 * 64)
    assert statistics.loader_seconds > 0 and statistics.send_seconds > 0
    parts = ("startup", "loader", "send", "land", "consumer")
    assert sum(getattr(statistics, f"{part}_seconds") for part in parts) <= statistics.seconds
    assert "10, 2.0 a batch" in str(statistics) and "50 in 5 batches, " in str(statistics)
    figures = statistics.as_dict()
    assert figures["samples"] == 50 and figures["samples_per_second"] > 0 and "timeline" not in figures
    assert json.loads(json.dumps(figures)) == figures
    assert "<table>" in statistics._repr_html_()
    assert len(statistics.timeline) == 5


def test_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    fed = penstock.feed([torch.ones(10)] * 3, "host")
    collections.deque(fed, maxlen=0)
    axes = fed.stats().plot()
    lanes = [text.get_text() for text in axes.get_yticklabels()]
    assert lanes == ["loader", "send", "transfer", "waiting for data", "your step"]
    assert axes.get_title()


def test_the_start_of_an_epoch_is_told_apart(device):
    ran = []

    def source():
        ran.append("start")
        yield torch.ones(3)
        yield torch.ones(3)

    class Slow:
        def __iter__(self):
            return source()

    fed = penstock.feed(Slow(), device, prefetch_depth=0)
    iterator = iter(fed)
    assert not ran, "iter() asks for no batch"
    next(iterator)
    statistics = fed.stats()
    assert ran == ["start"] and statistics.startup_seconds > 0 and statistics.loader_seconds == 0
    next(iterator)
    assert statistics.loader_seconds > 0


class Moody:
    """An iterator that raises at some batches, and goes on after them."""

    def __init__(self, count, bad):
        self.count, self.bad, self.at = count, bad, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at in self.bad:
            raise Broken(f"batch {self.at}")
        if self.at >= self.count:
            raise StopIteration
        return torch.tensor(self.at)


def story(iterator, count):
    """What comes when so many batches are asked for."""
    told = []
    for _ in range(count):
        try:
            told.append(int(next(iterator)))
        except Broken as error:
            told.append(str(error))
        except StopIteration:
            told.append("end")
    return told


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_after_an_exception_the_next_batch_comes(device, depth):
    bad = {2, 3, 7}
    expected = story(Moody(8, bad), 12)
    assert expected[:5] == [0, 1, "batch 2", "batch 3", 4]
    assert story(iter(penstock.feed(Moody(8, bad), device, prefetch_depth=depth)), 12) == expected


def test_nothing_is_asked_for_past_an_exception_before_it_was_raised():
    source = Moody(8, {2})
    iterator = iter(penstock.feed(source, "host", prefetch_depth=5))
    next(iterator), next(iterator)
    assert source.at == 2
    with pytest.raises(Broken):
        next(iterator)
    assert source.at == 2
    assert int(next(iterator)) == 3


@pytest.mark.parametrize("loader", [[torch.tensor(i) for i in range(5)], DataLoader(range(5), None)], ids=["list", ""])
def test_two_iterators_of_a_feed_are_independent(device, loader):
    fed = penstock.feed(loader, device)
    assert [(int(a), int(b)) for a, b in zip(fed, fed, strict=True)] == [(i, i) for i in range(5)]
    assert sum(1 for _ in fed for _ in fed) == 25


def test_methods_are_there_only_if_they_work():
    for loader in ([1], DataLoader(Squares(), batch_size=5)):
        for name in ("state_dict", "load_state_dict", "set_epoch"):
            assert not hasattr(penstock.feed(loader, "host"), name), name
            assert inspect.getattr_static(penstock.feed(loader, "host"), name, None) is None
    fed = penstock.feed(Counter(), "host")
    assert isinstance(fed, penstock.Feed)
    # As runtime-checkable protocols ask from Python 3.12 on.
    assert inspect.getattr_static(fed, "state_dict") and inspect.getattr_static(fed, "load_state_dict")
    assert not hasattr(fed, "set_epoch")


def test_a_state_that_was_loaded_in_mid_loop_is_not_that_of_the_loop():
    loader = Counter()
    fed = penstock.feed(loader, "host", prefetch_depth=1)
    iterator = iter(fed)
    next(iterator)
    fed.load_state_dict({"position": 7})
    next(iterator)
    assert fed.state_dict() == loader.state_dict()


def test_the_state_after_the_end_is_the_loaders():
    fed = penstock.feed(Counter(3), "host", prefetch_depth=5)
    states = [fed.state_dict()["position"] for _ in fed]
    assert states == [1, 2, 3]
    assert fed.state_dict() == {"position": 0}


def test_a_feed_of_a_feed_is_a_feed_of_the_loader():
    loader = Counter()
    fed = penstock.feed(penstock.feed(loader, "host", prefetch_depth=0), "host:late=1", prefetch_depth=3)
    assert fed.loader is loader and fed.device == "host:late=1"
    assert [int(x) for x in fed] == list(range(1, 11))
    assert fed.state_dict() == {"position": 0}


def test_assigning_reaches_the_loader():
    loader = DataLoader(Squares(), batch_size=5)
    fed = penstock.feed(loader, "host")
    fed.worker_init_fn = print
    assert loader.worker_init_fn is print
    fed.mine = 3
    assert fed.mine == 3 and not hasattr(loader, "mine")
    assert not hasattr(fed, "_iterator"), "what begins with an underscore is the loader's own"


def test_pickling(device):
    fed = penstock.feed(DataLoader(Squares(), batch_size=5), device, prefetch_depth=4, sharded=True)
    again = pickle.loads(pickle.dumps(fed))
    assert (again.device, again.prefetch_depth, again.sharded) == (fed.device, 4, True)
    assert same(list(again), list(fed))
    assert hasattr(pickle.loads(pickle.dumps(penstock.feed(Counter(), "host"))), "state_dict")


def test_names_of_the_host():
    for name in ("cpu", torch.device("cpu"), "host"):
        assert penstock.feed([torch.ones(1)], name).device == "host"


def test_types_of_less_than_a_byte_stay_what_they_are(device):
    packed = torch.empty(3, dtype=torch.uint4)
    (got,) = penstock.feed([[packed, torch.ones(2, dtype=torch.uint8)]], device)
    assert got[0].dtype == torch.uint4 and got[1].dtype == torch.uint8


def test_a_module_is_refused():
    with pytest.raises(TypeError, match=r"batch\['m'\].*move_\(module"):
        penstock.to_device({"m": torch.nn.Linear(2, 2)}, "host")


def test_a_table_is_refused():
    class Table:
        def __arrow_c_stream__(self, requested_schema=None):
            raise AssertionError

    with pytest.raises(TypeError, match=r"table .*dict of its columns"):
        penstock.to_device(Table(), "host")


def test_a_nest_deeper_than_the_c_stack():
    nest = torch.ones(1)
    for _ in range(100_000):
        nest = [nest]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        with pytest.raises(RecursionError):
            penstock.to_device(nest, "host")
    finally:
        sys.setrecursionlimit(limit)
        while isinstance(nest, list):
            nest = nest.pop()


def test_an_array_whose_strides_are_no_multiple_of_its_items(device):
    buffer = np.arange(1 << 14, dtype=np.uint8)
    array = np.ndarray((1000,), np.float32, buffer, 0, (5,))
    there = penstock.to_host(penstock.to_device([array], device))
    assert np.asarray(there[0]).tobytes() == array.tobytes()


def test_running_out_of_memory_is_an_error_of_both(device):
    from penstock._errors import allocator_out_of_memory

    error = allocator_out_of_memory(
        MemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nException raised from malloc at x.cpp:1\nframe #0")
    )
    assert isinstance(error, penstock.OutOfMemory) and isinstance(error, torch.OutOfMemoryError)
    assert error.args == ("CUDA out of memory. Tried to allocate 20 GiB.",)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, torch.OutOfMemoryError) and again.args == error.args
    with pytest.raises(torch.OutOfMemoryError) as caught:
        penstock.Loader(np.zeros((100, 100)), 100, device=device, device_budget_bytes=1000)
    assert isinstance(caught.value, penstock.OutOfMemory) and caught.value.asked > 1000


class Live(Counter):
    """A loader that gives its state itself, not a copy."""

    def __init__(self):
        super().__init__()
        self.state = {"position": 0}

    def __iter__(self):
        while self.state["position"] < self.count:
            self.state["position"] += 1
            yield torch.tensor(self.state["position"])

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = {"position": state["position"]}


def test_a_state_that_the_loader_goes_on_writing_is_of_the_batch_handed_out():
    fed = penstock.feed(Live(), "host", prefetch_depth=3)
    iterator = iter(fed)
    next(iterator), next(iterator)
    state = fed.state_dict()
    assert state == {"position": 2}
    state["position"] = 99
    assert fed.state_dict() == {"position": 2}


def test_a_state_that_cannot_be_loaded_leaves_the_one_that_was():
    fed = penstock.feed(Live(), "host", prefetch_depth=3)
    iterator = iter(fed)
    next(iterator)
    with pytest.raises(KeyError):
        fed.load_state_dict({})
    assert fed.state_dict() == {"position": 1}


def test_a_state_that_cannot_be_had_is_an_error_in_the_batchs_place():
    class Moody(Counter):
        def state_dict(self):
            if self.position == 2:
                raise Broken("no state")
            return super().state_dict()

    iterator = iter(penstock.feed(Moody(4), "host", prefetch_depth=2))
    assert story(iterator, 5) == [1, "no state", 3, 4, "end"]


def test_an_iterator_that_was_closed_stays_at_its_end():
    fed = penstock.feed(Counter(), "host", prefetch_depth=3)
    iterator = iter(fed)
    next(iterator)
    iterator.close()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert fed.state_dict() == {"position": 1}


def test_an_iterator_that_was_closed_keeps_no_batch():
    iterator = iter(penstock.feed([np.zeros(1 << 20, np.uint8)] * 9, "host:memory=8MiB", prefetch_depth=2))
    next(iterator)
    iterator.close()
    while engine_for("host:memory=8MiB").in_flight():
        time.sleep(0.001)
    penstock.to_device(np.zeros(3 << 20, np.uint8), "host:memory=8MiB")


def test_an_exception_that_was_handled_is_let_go():
    iterator = iter(penstock.feed(Moody(8, {0}), "host"))
    gc.disable()
    try:
        try:
            next(iterator)
        except Broken as error:
            reference = weakref.ref(error)
        assert reference() is None
    finally:
        gc.enable()


class Prepared:
    """A loader like Accelerate's, as far as a feed asks for it."""

    device = None

    _drop_last = True

    def __init__(self, base):
        self.base_dataloader = base

    def __iter__(self):
        yield from self.base_dataloader

    def _update_state_dict(self):
        pass


def test_a_prepared_loader_is_what_it_was_after_the_loop():
    base = [torch.tensor(i) for i in range(3)]
    loader = Prepared(base)
    fed = penstock.feed(loader, "host")
    iterator = iter(fed)
    assert int(next(iterator)) == 0
    assert loader.base_dataloader is not base
    assert [int(x) for x in fed] == [0, 1, 2]
    assert loader.base_dataloader is not base
    iterator.close()
    assert loader.base_dataloader is base
    statistics = fed.stats()
    assert (statistics.epochs, statistics.batches) == (2, 4)


def test_accelerate_finds_a_prepared_loaders_private_attributes():
    fed = penstock.feed(Prepared([torch.zeros(1)]), "host")
    assert fed._drop_last is True and isinstance(fed, Prepared)
    with pytest.raises(AttributeError):
        fed._nonsense  # noqa: B018
    with pytest.raises(AttributeError):
        fed.nonsense  # noqa: B018
    assert not hasattr(penstock.feed(DataLoader(Squares()), "host"), "_dataset_kind"), "of another loader"


def test_a_loader_that_is_its_own_iterator_is_not_closed():
    class Own:
        closed = False

        def __iter__(self):
            self.at = 0
            return self

        def __next__(self):
            if self.at == 3 or self.closed:
                raise StopIteration
            self.at += 1
            return torch.tensor(self.at)

        def close(self):
            self.closed = True

    fed = penstock.feed(Own(), "host")
    assert [len(list(fed)) for _ in range(2)] == [3, 3]

    fed = penstock.feed((torch.tensor(i) for i in range(10)), "host", prefetch_depth=2)
    iterator = iter(fed)
    next(iterator)
    iterator.close()
    assert [int(x) for x in fed] == list(range(3, 10))


def test_stop_iteration_of_a_batchs_own_code_does_not_end_the_loop():
    class Stopping:
        def to(self, device):
            raise StopIteration

    iterator = iter(penstock.feed([torch.tensor(0), Stopping(), torch.tensor(2)], "host"))
    assert int(next(iterator)) == 0
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert int(next(iterator)) == 2
