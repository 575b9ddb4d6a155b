"""feed(static=True): batches at fixed addresses."""

import gc
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import penstock
from support import is_gpu, place, same

COUNT, BATCH = 22, 4  # the last batch is smaller


class Samples(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return {"x": torch.full((3, 5), float(i)), "wide": torch.full((70_000,), i), "label": i}


def tensors():
    return TensorDataset(torch.arange(COUNT * 6.0).view(COUNT, 6), torch.arange(COUNT))


# The three ways of a batch: made in this process, by workers, and gathered natively.
LOADERS = {
    "own": lambda **options: DataLoader(Samples(), BATCH, **options),
    "workers": lambda **options: DataLoader(Samples(), BATCH, num_workers=2, **options),
    "native": lambda **options: DataLoader(tensors(), BATCH, **options),
}


@pytest.fixture(params=LOADERS)
def make(request):
    return LOADERS[request.param]


def arrays_of(batch):
    return list(batch.values() if isinstance(batch, dict) else batch)


def copied(batch):
    return torch.utils._pytree.tree_map(lambda tensor: tensor.to("cpu", copy=True), batch)


def each(feed):
    """The arrays of each batch, by their identities and addresses, and copies of the batches."""
    seen, copies = [], []
    for batch in feed:
        assert all(array.device.type == place(feed.device)[:4].rstrip(":") for array in arrays_of(batch))
        seen.append([(id(array), array.data_ptr()) for array in arrays_of(batch)])
        copies.append(copied(batch))
    return seen, copies


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_same_arrays_in_turn(make, depth, device):
    feed = penstock.feed(make(drop_last=True), device, depth, static=True)
    expected = list(make(drop_last=True))
    before = []
    for _ in range(4):
        seen, copies = each(feed)
        assert same(copies, expected)
        before += seen
    # In turn: as many sets as there are, again and again. From native epoch to epoch, the turn may be another.
    for seen in before if make is LOADERS["native"] else before[depth + 1 :]:
        assert seen in before[: 2 * (depth + 1)]
    for columns in zip(*before, strict=True):
        assert len(set(columns)) == depth + 1
        assert len({address for _, address in columns}) == depth + 1


@pytest.mark.parametrize("make", [LOADERS["own"], LOADERS["workers"]])
def test_sets_come_in_turn(make, device):
    feed = penstock.feed(make(drop_last=True), device, 2, static=True)
    seen = [arrays for _ in range(3) for arrays in each(feed)[0]]
    assert seen[3:] == seen[:-3]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_it_reads_ahead(depth, device):
    asked = []

    class Source:
        def __iter__(self):
            for i in range(40):
                asked.append(i)
                yield torch.full((3,), i)

    for number, batch in enumerate(penstock.feed(Source(), device, depth, static=True)):
        assert batch.tolist() == [number] * 3
        assert len(asked) >= min(40, number + depth), "the one in hand, and depth - 1 ahead"


def test_they_are_marked(make, device):
    for batch in penstock.feed(make(), device, static=True):
        assert all(tensor._dynamo_static_input_type == "unguarded" for tensor in arrays_of(batch))
    assert not hasattr(arrays_of(next(iter(penstock.feed(make(), device))))[0], "_dynamo_static_input_type")


def test_a_smaller_batch_has_arrays_of_its_own(make, device):
    feed = penstock.feed(make(), device, static=True)
    epochs = [each(feed) for _ in range(4)]
    for _, copies in epochs:
        assert same(copies, list(make()))
    full = {tuple(arrays) for seen, _ in epochs for arrays in seen[:-1]}
    last = {tuple(seen[-1]) for seen, _ in epochs}
    assert len(full) == 3 and len(last) <= 3 and not full & last


KEEP = {
    "the batch": lambda batch: batch,
    "an array": lambda batch: arrays_of(batch)[1],
    "a view": lambda batch: arrays_of(batch)[0][1:],
    "a detached view": lambda batch: arrays_of(batch)[0].detach(),
    "its memory": lambda batch: arrays_of(batch)[0].untyped_storage(),
    "a graph": lambda batch: graph_of(arrays_of(batch)[0]),
}


def graph_of(array):
    return (array * torch.ones(1, device=array.device, requires_grad=True)).sum()


@pytest.mark.parametrize(("what", "which"), [(what, number % 2 * 2) for number, what in enumerate(KEEP)])
def test_keeping_is_an_error_and_nothing_is_lost(make, what, which, device):
    feed = penstock.feed(make(), device, static=True)
    expected = list(make())
    copies, kept = [], None
    iterator = iter(feed)
    with pytest.raises(penstock.InvalidArgument, match=r"static=True: a batch is kept.*clone"):
        for i, batch in enumerate(iterator):
            copies.append(copied(batch))
            if i == which:
                kept, wanted = KEEP[what](batch), copied(batch)
            if kept is not None and what == "the batch":
                assert same(copied(kept), wanted), "it was overwritten"
    assert which < len(copies) <= which + 3
    batch = None
    with pytest.raises(penstock.InvalidArgument, match="kept"):
        next(iterator)
    if what == "the batch":
        assert same(copied(kept), wanted)
    kept = None
    assert same(copies + [copied(batch) for batch in iterator], expected)


def test_the_last_two_batches_may_be_used_together(make, device):
    before, pairs = None, []
    for batch in penstock.feed(make(), device, static=True):
        if before is not None:
            pairs.append((copied(before), copied(batch)))
        before = batch
    expected = list(make())
    assert same(pairs, list(itertools.pairwise(expected)))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_variable_of_a_loop_that_was_left_is_not_in_the_way(make, depth, device):
    feed, expected = penstock.feed(make(), device, depth, static=True), list(make())
    for count in (1, 2, 1, 5):
        for number, batch in enumerate(feed, 1):  # noqa: B007
            if number == count:
                break
        seen = []
        for batch in feed:
            seen.append(copied(batch))
        assert same(seen, expected)


def test_what_is_kept_as_garbage_is_not_in_the_way(make, device):
    def careless(batch):
        try:
            raise ValueError(batch)
        except ValueError as error:
            cycle = [error]
            cycle.append(cycle)

    expected, copies = list(make()), []
    gc.disable()
    try:
        for batch in penstock.feed(make(), device, static=True):
            careless(batch)
            copies.append(copied(batch))
    finally:
        gc.enable()
    assert same(copies, expected)


def test_batches_that_were_made_in_inference_mode_serve_training(make, device):
    feed = penstock.feed(make(), device, static=True)
    with torch.inference_mode():
        each(feed)
    weight = torch.ones(1, device=place(device), requires_grad=True)
    for batch in feed:
        (arrays_of(batch)[0] * weight).sum().backward()


def test_two_loops_at_once_are_an_error(device):
    feed = penstock.feed(LOADERS["own"](), device, static=True)
    with pytest.raises(penstock.InvalidArgument, match="a batch is kept"):
        for _ in feed:
            for _ in feed:
                pass


def test_a_loop_that_is_left_early(make, device):
    feed, expected = penstock.feed(make(), device, static=True), list(make())
    for taken in (1, 3, 2):
        batches = [copied(batch) for _, batch in zip(range(taken), feed, strict=False)]
        assert same(batches, expected[:taken])
    assert same(each(feed)[1], expected)


CHANGES = {
    "grad": lambda array: array.requires_grad_(),
    "shape": lambda array: array.unsqueeze_(0),
    "memory": lambda array: array.set_(torch.zeros_like(array)),
    "data": lambda array: setattr(array, "data", array.clone()),
    "gradient": lambda array: ((array.requires_grad_() * 2).sum().backward(), array.requires_grad_(False)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_arrays_that_were_changed(make, what, device):
    """The error comes once, and no batch is lost."""
    feed, expected = penstock.feed(make(), device, 1, static=True), list(make())
    iterator, copies = iter(feed), []
    for _ in range(2):
        batch = next(iterator)
        copies.append(copied(batch))
        CHANGES[what](arrays_of(batch)[0])
        batch = None
        with pytest.raises(penstock.InvalidArgument, match="one of them was changed"):
            for batch in iterator:
                copies.append(copied(batch))
    batch = None
    copies += [copied(batch) for batch in iterator]
    assert same(copies, expected)
    assert same(each(feed)[1], expected)


def test_values_may_be_changed(make, device):
    copies = []
    for batch in penstock.feed(make(), device, static=True):
        copies.append(copied(batch))
        for array in arrays_of(batch):
            array.zero_()
    assert same(copies, list(make()))


def test_any_nest_and_what_is_no_array(device):
    def batches():
        for i in range(7):
            yield {"pair": (torch.full((3,), i), [np.full(2, i, np.int16)]), "name": f"batch {i}", "none": None, "i": i}

    seen, arrays = [], set()
    for batch in penstock.feed(list(batches()), device, static=True):
        first, second = batch["pair"][0], batch["pair"][1][0]
        seen.append((copied(first), copied_array(second), batch["name"], batch["i"]))
        arrays.add((id(first), id(second)))
    assert [(name, i) for *_, name, i in seen] == [(f"batch {i}", i) for i in range(7)]
    for i, (first, second, *_) in enumerate(seen):
        assert first.tolist() == [i] * 3 and second.tolist() == [i] * 2
    assert len(arrays) == 3


def copied_array(array):
    return array.cpu().numpy().copy() if isinstance(array, torch.Tensor) else array.copy()


def test_arrays_without_elements_and_of_other_strides(device):
    batches = [[torch.empty(0, 4), torch.randn(4, 6).t(), torch.tensor(float(i))] for i in range(7)]
    addresses = set()
    for batch, expected in zip(penstock.feed(batches, device, static=True), batches, strict=True):
        assert same(copied(batch), expected) and batch[1].stride() == (1, 6)
        addresses.add(batch[1].data_ptr())
    assert len(addresses) == 3


def test_shapes_that_alternate(device):
    batches = [torch.full((2 + i % 4,), i) for i in range(30)]
    feed = penstock.feed(batches, device, static=True)
    for _ in range(2):
        assert same(each(Single(feed))[1], [[batch] for batch in batches])


class Single:
    """A feed of arrays as one of lists."""

    def __init__(self, feed):
        self.feed, self.device = feed, feed.device

    def __iter__(self):
        return ([batch] for batch in self.feed)


def test_too_many_shapes(device):
    feed = penstock.feed([torch.zeros(count) for count in range(1, 20)], device, static=True)
    with pytest.raises(penstock.InvalidArgument, match="the 9th kind of batch"):
        for _ in feed:
            pass


class Moving:
    def __init__(self, data):
        self.data = data

    def to(self, device, non_blocking=False):
        return Moving(self.data.to(device))


class Pinning(Moving):
    def pin_memory(self):
        return self


@pytest.mark.parametrize(
    "value",
    [Moving(torch.zeros(3)), Pinning(torch.zeros(3)), torch.eye(3).to_sparse(), torch.zeros(3, requires_grad=True)],
    ids=lambda value: type(value).__name__,
)
def test_what_moves_itself_is_refused(value, device):
    feed = penstock.feed([{"x": [value]}], device, static=True)
    with pytest.raises(TypeError, match=r"batch\['x'\]\[0\]: static=True delivers plain arrays.*register_batch_type"):
        next(iter(feed))


def test_what_is_on_the_gpu_is_refused(device):
    if not is_gpu(device):
        pytest.skip("needs a GPU")
    with pytest.raises(TypeError, match="lies elsewhere"):
        next(iter(penstock.feed([[torch.zeros(3, device="cuda")]], device, static=True)))


class Registered:
    def __init__(self, data, name):
        self.data, self.name = data, name

    def to(self, device):
        raise AssertionError("not called")


def test_registered_types(device):
    penstock.register_batch_type(
        Registered, lambda batch: [batch.data], lambda batch, nest: Registered(nest[0], batch.name)
    )
    batches = [Registered(torch.full((3,), i), f"{i}") for i in range(7)]
    seen, arrays = [], set()
    for batch in penstock.feed(batches, device, static=True):
        seen.append((batch.data.tolist(), batch.name))
        arrays.add(id(batch.data))
    assert seen == [([i] * 3, f"{i}") for i in range(7)] and len(arrays) == 3


def test_bad_options(device):
    with pytest.raises(penstock.InvalidArgument, match="prefetch_depth of 1 or more"):
        penstock.feed([], device, 0, static=True)
    feed = penstock.feed([1], device, static=True)
    feed.prefetch_depth = 0
    with pytest.raises(penstock.InvalidArgument, match="prefetch_depth of 1 or more"):
        next(iter(feed))


@pytest.mark.parametrize("native", [True, False])
def test_memory_that_is_short_is_told_as_such(native):
    tensor = torch.zeros(16, 3 << 20, dtype=torch.uint8)
    device = f"host:memory={30 + native}MiB"  # for two batches, but not for three
    feed = penstock.feed(DataLoader(TensorDataset(tensor), 4), device, static=True, native=native)
    with pytest.raises(penstock.OutOfMemory, match="cannot give 12"):
        list(feed)
    assert "the batches are those that the loader makes" in feed.describe()[0]


def test_what_a_feed_tells(make, device):
    feed = penstock.feed(make(), device, static=True)
    assert feed.static and pickle.loads(pickle.dumps(penstock.feed([1], device, static=True))).static
    assert not penstock.feed(make(), device).static
    copies = each(feed)[1]
    assert feed.stats().batches == len(copies)
    assert any("3 fixed sets" in line for line in feed.describe())
    feed.prefetch_depth = 4
    assert len({tuple(arrays) for arrays in each(feed)[0][:-1]}) == 5


def test_a_batch_without_arrays(device):
    def batches():
        for i in range(9):
            if i == 4:
                yield object  # a type is sent as it is
            yield torch.full((3,), i)

    feed = penstock.feed(list(batches()), device, static=True)
    got = [batch if batch is object else batch.tolist() for batch in feed]
    assert got == [[i] * 3 for i in range(4)] + [object] + [[i] * 3 for i in range(4, 9)]


def test_compiled_once(make):
    feed = penstock.feed(make(drop_last=True), "host", static=True)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    model = torch.nn.Linear(arrays_of(next(iter(feed)))[0].shape[-1], 2)
    step = torch.compile(lambda x: model(x).square().mean(), backend="aot_eager")
    for _ in range(3):
        for batch in feed:
            loss = step(arrays_of(batch)[0])
            loss.backward()
    assert counters["unique_graphs"] == before + 1
