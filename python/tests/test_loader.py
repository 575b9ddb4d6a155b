import ctypes
import dataclasses
import gc
import json
import mmap
import pickle
import queue
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import penstock
from interrupts import CtrlC, alarms, taken_amid_alarms
from penstock import Tuning, _core
from support import place, run_program


@pytest.fixture
def images(random):
    return random.integers(0, 256, (100, 5, 7), dtype=np.uint8)


LABELS = np.arange(100)


def epoch_of(loader):
    """Clones of an epoch's batches, put together."""
    batches = [[field.cpu().clone() for field in batch] for batch in loader]
    return [torch.cat(field) for field in zip(*batches, strict=True)]


@pytest.mark.parametrize("gather", ["automatic", "host", "zero-copy", "copy-engine"])
@pytest.mark.parametrize("residency", ["none", "all", 0.3])
def test_every_sample_once_with_its_bytes(device, images, gather, residency):
    loader = penstock.Loader(
        (images, LABELS), batch_size=8, shuffle=True, device=device, residency=residency, tuning=Tuning(gather=gather)
    )
    assert len(loader) == 13
    orders = []
    for _ in range(2):
        x, y = epoch_of(loader)
        assert x.dtype == torch.uint8 and y.dtype == torch.int64
        assert torch.equal(y.sort().values, torch.arange(100))
        assert torch.equal(x, torch.from_numpy(images)[y])
        orders.append(y)
    assert not torch.equal(*orders)


def columns_of(random, count):
    """Columns of several types and shapes, and the numbers of the samples."""
    table = {f"i{k}": torch.from_numpy(random.integers(0, 50_000, count)) for k in range(12)}
    table |= {f"f{k}": torch.from_numpy(random.random(count, dtype=np.float32)) for k in range(5)}
    table |= {f"v{k}": torch.from_numpy(random.random((count, 3), dtype=np.float32)) for k in range(3)}
    table |= {"flag": torch.from_numpy(random.integers(0, 2, count).astype(bool)), "number": torch.arange(count)}
    return table


@pytest.mark.parametrize("batch_size", [64, 50])
@pytest.mark.parametrize("residency", ["none", "all", 0.5])
def test_columns_travel_in_rows(device, random, batch_size, residency):
    table = columns_of(random, 331)
    loader = penstock.Loader(table, batch_size, shuffle=True, device=device, residency=residency)
    assert all("in rows of" in line for line in loader.describe())
    for _ in range(3):
        kept, numbers = [], []
        for batch in loader:
            assert list(batch) == list(table)
            assert all(column.is_contiguous() and column.data_ptr() % 256 == 0 for column in batch.values())
            kept.append({name: column.clone() for name, column in batch.items()})
            numbers.append(kept[-1]["number"].cpu())
        assert torch.equal(torch.cat(numbers).sort().values, torch.arange(331))
        for batch, number in zip(kept, numbers, strict=True):
            assert all(torch.equal(batch[name].cpu(), column[number]) for name, column in table.items())


def test_columns_of_a_batch_are_tensors_of_their_own_for_autograd(device, random):
    weight = torch.ones((), requires_grad=True, device="cuda" if "cuda" in device else "cpu")
    loader = penstock.Loader(columns_of(random, 150), 50, device=device)
    for batch in loader:
        expected = batch["f0"].double().sum().cpu()
        loss = (batch["f0"] * weight).sum()
        batch["f1"].mul_(2)
        batch["f2"].mul_(weight)
        batch["v0"].requires_grad_()
        loss.backward()
        torch.testing.assert_close(weight.grad.double().cpu(), expected, rtol=1e-5, atol=1e-5)
        weight.grad = None


def test_one_column_keeps_its_batch(device, random):
    table = columns_of(random, 300)
    loader = penstock.Loader(table, 50, device=device)
    kept = [batch["f4"] for batch in loader]
    assert torch.equal(torch.cat(kept).cpu(), table["f4"])


def test_a_budget_for_rows(random):
    table = columns_of(random, 100)
    loader = penstock.Loader(table, 50, device="host", tuning=Tuning(row_budget_bytes=1))
    assert not any("in rows of" in line for line in loader.describe())
    assert torch.equal(torch.cat([batch["i3"].clone() for batch in loader]), table["i3"])


def test_processes_of_torchrun_on_one_host_share_the_default_budget_for_rows(random, monkeypatch):
    table = {f"i{k}": torch.from_numpy(random.integers(0, 256, 1000)) for k in range(64)}

    def in_rows(row_budget_bytes=0):
        loader = penstock.Loader(table, 50, device="host", tuning=Tuning(row_budget_bytes=row_budget_bytes))
        return sum("in rows of" in line for line in loader.describe())

    monkeypatch.setattr(_core, "host_memory_bytes", lambda: 8 * 64 * 1000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert in_rows() == 64
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert in_rows() == 32
    assert in_rows(64 * 1000) == 64


@pytest.mark.parametrize("gather_blocks", [1, 7, 1000])
def test_any_number_of_blocks_gathers(device, images, gather_blocks):
    loader = penstock.Loader(
        *((images, LABELS), 8, True, device),
        to="float32",
        tuning=Tuning(gather="zero-copy", gather_blocks=gather_blocks),
    )
    x, y = epoch_of(loader)
    assert torch.equal(x, torch.from_numpy(images)[y].float())


def test_arrays_beside_the_loaders_can_still_be_moved(device, random):
    """PyTorch must still copy from an array that begins in a page that is locked for another array."""
    small = [random.integers(0, 256, (50, 37), dtype=np.uint8) for _ in range(40)]
    whole = random.integers(0, 256, (3000, 20011), dtype=np.uint8)
    train, rest = whole[:2001], whole[2001:]
    loaders = [penstock.Loader(a, 16, shuffle=True, device=device) for a in (*small[::2], train)]
    for loader, expected in zip(loaders, (*small[::2], train), strict=True):
        total = sum(int(x.sum(dtype=torch.int64)) for x in loader)
        assert total == int(expected.sum(dtype=np.int64))
    for number, array in enumerate((*small, rest, train[5:], whole)):
        moved = torch.from_numpy(array).to(place(device))
        back = torch.empty(array.shape, dtype=torch.uint8)
        try:
            back.copy_(moved)
        except RuntimeError as error:
            pytest.fail(
                f"array {number}, back to {back.data_ptr():#x}, the large one at {whole.ctypes.data:#x}: {error}"
            )
        assert torch.equal(back, torch.from_numpy(array))
        assert torch.equal(moved.cpu(), back)
    penstock.Loader(rest, 16, device=device).close()


def test_batches_are_on_the_device_and_of_the_same_structure(device, images):
    t = torch.from_numpy(images)
    assert type(next(iter(penstock.Loader(images, 4, device=device)))) is torch.Tensor
    assert type(next(iter(penstock.Loader([t, LABELS], 4, device=device)))) is list
    batch = next(iter(penstock.Loader({"x": t, "y": LABELS}, 4, device=device)))
    assert list(batch) == ["x", "y"] and batch["x"].shape == (4, 5, 7)
    assert batch["x"].device.type == torch.device(place(device)).type
    x, y = next(iter(penstock.Loader(TensorDataset(t, torch.from_numpy(LABELS)), 4, device=device)))
    assert torch.equal(x.cpu(), t[:4]) and torch.equal(y.cpu(), torch.arange(4))


def test_widening_and_scaling(device, images):
    loader = penstock.Loader((images, LABELS), batch_size=16, device=device, to="float32", scale=1 / 255, shift=-0.5)
    x, y = epoch_of(loader)
    assert x.dtype == torch.float32 and y.dtype == torch.int64, "labels stay"
    torch.testing.assert_close(x, torch.from_numpy(images) / 255 - 0.5)


@pytest.mark.parametrize("shape", [(5, 1), (7,)])
def test_one_scale_for_each_channel(device, images, shape):
    scale = np.linspace(0.5, 2, max(shape)).astype(np.float32)
    loader = penstock.Loader({"x": images}, 16, device=device, to={"x": np.float16}, scale={"x": scale})
    x = torch.cat([batch["x"].cpu().clone() for batch in loader])
    assert x.dtype == torch.float16
    torch.testing.assert_close(x, torch.from_numpy(images * scale.reshape(shape)).half())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"])
def test_dtypes(device, random, dtype):
    array = (random.random((20, 3)) * 100).astype(dtype)
    (x,) = epoch_of([[b] for b in penstock.Loader(array, 6, device=device)])
    assert torch.equal(x, torch.from_numpy(array))


def test_bfloat16_tensors(device):
    tensor = torch.rand(20, 3).bfloat16()
    (x,) = epoch_of([[b] for b in penstock.Loader(tensor, 6, device=device)])
    assert torch.equal(x, tensor)


@pytest.mark.parametrize("to", [None, "float32", "float16"])
@pytest.mark.parametrize("swap", [False, True])
def test_bfloat16_of_numpy(device, to, swap):
    tensor = torch.arange(60).reshape(20, 3).bfloat16()
    array = tensor.view(torch.uint16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)
    array = np.ascontiguousarray(array.T).T if swap else array
    batches = list(penstock.Loader(array, 6, device=device, to=to))
    if isinstance(batches[0], np.ndarray):
        batches = [torch.from_numpy(batch.astype(np.float32)) for batch in batches]
    assert torch.equal(torch.cat([batch.float().cpu() for batch in batches]), tensor.float())


def test_memory_maps_and_arrays_with_gaps(device, images, tmp_path):
    np.save(tmp_path / "x.npy", images)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    x, y = epoch_of(penstock.Loader((mapped, images[:, ::2, 1:]), 9, device=device))
    assert torch.equal(x, torch.from_numpy(images))
    assert torch.equal(y, torch.from_numpy(images[:, ::2, 1:].copy()))


def test_batches_that_are_kept_stay_valid(device, images):
    kept = list(penstock.Loader((images, LABELS), batch_size=4, shuffle=True, device=device))
    assert torch.equal(torch.cat([y.cpu() for _, y in kept]).sort().values, torch.arange(100))
    for x, y in kept:
        assert torch.equal(x.cpu(), torch.from_numpy(images)[y.cpu()])


def test_a_view_keeps_the_batch(device, images):
    rows = [batch[1] for batch in penstock.Loader(images, batch_size=4, device=device)]
    assert torch.equal(torch.stack(rows).cpu(), torch.from_numpy(images)[1::4])


def test_batches_outlive_the_loader(device, images):
    loader = penstock.Loader(images, batch_size=50, device=device)
    first = next(iter(loader))
    loader.close()
    with pytest.raises(penstock.Closed):
        next(iter(loader))
    del loader
    assert torch.equal(first.cpu(), torch.from_numpy(images)[:50])


def test_ranks_share_an_epoch_without_overlap(device, images):
    got = []
    for rank in range(4):
        loader = penstock.Loader((images, LABELS), 7, shuffle=True, device=device, rank=rank, world_size=4, seed=3)
        got.append(epoch_of(loader)[1])
    assert torch.equal(torch.cat(got).sort().values, torch.arange(100))


def test_two_loaders_over_the_same_arrays(device, images):
    first = penstock.Loader((images, LABELS), 8, device=device)
    second = penstock.Loader((images, LABELS), 8, device=device)
    epoch_of(first)
    first.close()
    del first
    assert torch.equal(epoch_of(second)[0], torch.from_numpy(images))


def test_torchruns_environment(monkeypatch, images):
    with pytest.raises(penstock.InvalidArgument, match="torchrun"):
        penstock.Loader(images, distributed=True, device="host")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (x,) = epoch_of([[b] for b in penstock.Loader(images, 10, distributed=True, device="host")])
    assert torch.equal(x, torch.from_numpy(images)[1::2])


def test_state_goes_on_where_it_was_taken(device, images):
    arguments = dict(batch_size=8, shuffle=True, device=device, seed=5)
    whole = epoch_of(penstock.Loader((images, LABELS), **arguments))[1]
    loader = penstock.Loader((images, LABELS), **arguments)
    iterator = iter(loader)
    begun = [next(iterator)[1].cpu().clone() for _ in range(4)]
    state = loader.state_dict()
    resumed = penstock.Loader((images, LABELS), **arguments)
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat([*begun, epoch_of(resumed)[1]]), whole)
    assert len(epoch_of(resumed)[1]) == 100, "then comes a whole epoch"
    other = penstock.Loader((images, LABELS), **{**arguments, "seed": 6})
    with pytest.raises(penstock.InvalidArgument):
        other.load_state_dict(state)


def test_leaving_early_begins_the_next_epoch(device, images):
    loader = penstock.Loader((images, LABELS), batch_size=8, shuffle=True, device=device)
    for _ in loader:
        break
    second = epoch_of(loader)[1]
    assert len(second) == 100
    loader.set_epoch(0)
    first = epoch_of(loader)[1]
    loader.set_epoch(1)
    assert torch.equal(epoch_of(loader)[1], second)
    assert not torch.equal(first, second)


def test_drop_last(images):
    assert len(penstock.Loader(images, 8, drop_last=True, device="host")) == 12


def test_statistics(device, images):
    loader = penstock.Loader((images, LABELS), batch_size=8, device=device, to="float32")
    epoch_of(loader)
    statistics = loader.stats()
    assert statistics.batches == 13 and statistics.samples == 100
    assert statistics.delivered_bytes == 100 * (35 * 4 + 8)
    assert "13 batches" in str(statistics) and "13 batches" in statistics._repr_html_()
    assert len(loader.describe()) == 2 and "field0" in repr(loader)
    assert "Loader object at" in repr(object.__new__(penstock.Loader)), "as a debugger sees one that is not made"
    assert "13 batches of 8" in loader._repr_html_() and loader._repr_html_().count("<li>") == 2
    assert repr(statistics.timeline[0]).startswith("BatchTimes(")
    figures = statistics.as_dict()
    assert figures["samples"] == 100 and figures["limited_by"] == statistics.limited_by
    assert json.loads(json.dumps(figures)) == figures and "sentence" in figures
    assert "13 batches" in repr(statistics) and "samples" in dir(statistics)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    assert statistics.plot() is not None


class Squares(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return index * index  # never raises IndexError: an iteration over it has no end


def freed():
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": ()}, "at least one"),
        ({"data": np.array(3)}, "scalar"),
        ({"data": np.array(["a"])}, "holds"),
        ({"data": np.array([None])}, "holds"),
        ({"data": np.zeros(3, complex)}, "holds"),
        ({"data": np.zeros((0, 3))}, "sample"),
        ({"data": (np.zeros(3), np.zeros(4))}, "3.*4|4.*3"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": "8"}, "batch_size"),
        ({"prefetch_depth": 0}, "depth"),
        ({"residency": "half"}, "half"),
        ({"tuning": Tuning(gather="quickly")}, "quickly"),
        ({"tuning": "host"}, "tuning is a penstock.Tuning"),
        ({"to": "float99"}, "float99"),
        ({"to": {"nobody": "float32"}}, "nobody"),
        ({"to": ["float32"]}, "entries"),
        ({"to": "uint8", "data": np.zeros((3, 3))}, "widened"),
        ({"rank": 1}, "both"),
        ({"rank": 2, "world_size": 2}, "rank is .* 0 to 1, not 2"),
        ({"rank": 0, "world_size": 0}, "world_size is .* 1 or more"),
        ({"seed": -1}, "seed is a whole number, 0 or more, not -1"),
        ({"seed": 2**64}, "seed is a whole number, 0 to"),
        ({"prefetch_depth": -1}, "prefetch_depth is a number of batches, 1 to 64, not -1"),
        ({"prefetch_depth": 1.5}, "prefetch_depth"),
        ({"tuning": Tuning(threads=2**33)}, "threads is a number of threads"),
        ({"tuning": Tuning(gather_blocks=-1)}, "gather_blocks"),
        ({"device_budget_bytes": -1}, "device_budget_bytes"),
        ({"memory": "much"}, "'much' is not a size; write bytes"),
        ({"memory": -1}, "'-1' is not a size"),
        ({"channel_axis": 1}, "does not take channel_axis"),
        ({"scale": 1 / 255}, "`scale` needs a field that `to` delivers"),
        ({"shift": [1, 2]}, "`shift` needs a field"),
        ({"to": "int64", "scale": 2}, "`scale` needs a field"),
        ({"to": "float32", "scale": {"nobody": 2}}, "`scale` names unknown fields: nobody"),
        ({"to": "float32", "shift": {"field1": 2}}, "'field1', which `to` does not deliver"),
        ({"to": "float32", "scale": "much"}, "`scale` is a number"),
        ({"to": "float32", "scale": [1, 2, 3]}, r"3 numbers for 'field0', whose .* shape \(5, 7\).*none has 3"),
        ({"to": "float32", "scale": range(5), "shift": range(7)}, "does not have 5 channels in axis 1"),
        ({"data": np.zeros((3, 4, 4), np.uint8), "to": "float32", "shift": range(4)}, "more than one has 4.* reshape"),
        ({"num_workers": 4}, "does not take num_workers.*threads"),
        ({"pin_memory": True}, "does not take pin_memory"),
        ({"collate_fn": list}, "does not take collate_fn.*penstock.feed"),
        ({"prefetch_factor": 2}, "prefetch_depth"),
        ({"data": Squares()}, r"penstock\.feed\(DataLoader"),
        ({"data": {"x": Squares()}}, "Field 'x' is a"),
        ({"data": iter([1])}, r"penstock\.feed\(DataLoader"),
        ({"data": "nothing.npy"}, "There is no file or directory"),
        ({"data": freed()}, "storage is smaller"),
        ({"data": torch.empty(3, dtype=torch.uint4)}, "convert it"),
        ({"data": {1: np.zeros(3), "1": np.zeros(3)}}, "same name"),
        ({"batch_size": True}, "batch_size"),
        ({"data": torch.zeros(3, dtype=torch.complex64)}, r"view_as_real\(x\)"),
        ({"data": torch.tensor(3)}, "scalar"),
    ],
)
def test_what_does_not_fit(images, arguments, message):
    arguments = {"data": (images, LABELS), "device": "host", "batch_size": 8, **arguments}
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Loader(**arguments)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Tuning)])
def test_what_tuning_holds_is_no_argument(images, name):
    with pytest.raises(TypeError, match=rf"tuning=penstock\.Tuning\({name}=\.\.\.\)"):
        penstock.Loader(images, 8, device="host", **{name: 1})


def test_an_unknown_argument(images):
    with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
        penstock.Loader(images, 8, device="host", shufle=True)


def test_a_newer_iterator_ends_the_older_one(device, images):
    loader = penstock.Loader(LABELS, batch_size=10, device=device)
    older = iter(loader)
    next(older)
    assert [int(batch[0]) for batch in loader] == list(range(0, 100, 10))
    with pytest.raises(penstock.Closed, match="two Loaders"):
        next(older)
    with pytest.raises(penstock.Closed):
        next(zip(loader, loader))  # noqa: B905
    with pytest.raises(penstock.Closed):
        for _ in loader:
            for _ in loader:
                break
    assert len(list(loader)) == 10


def test_a_state_that_is_loaded_ends_the_iterators_from_before():
    loader = penstock.Loader(LABELS, batch_size=10, device="host")
    older = iter(loader)
    next(older)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(penstock.Closed, match="a state was loaded"):
        next(older)


def test_an_iterator_that_was_never_used_costs_no_epoch(images):
    loader = penstock.Loader(LABELS, batch_size=10, shuffle=True, device="host", seed=4)
    iter(loader), iter(loader)
    assert loader.state_dict()["epoch"] == 0
    (first,) = epoch_of([[b] for b in loader])
    (again,) = epoch_of([[b] for b in penstock.Loader(LABELS, 10, shuffle=True, device="host", seed=4)])
    assert torch.equal(first, again)


def test_a_loop_that_was_left_with_its_batches_kept_does_not_block_the_next(device, images):
    loader = penstock.Loader(images, batch_size=8, device=device)
    kept = []
    for _ in range(5):
        for batch in loader:
            kept.append(batch)
            break
    assert len(list(loader)) == 13
    assert all(torch.equal(batch.cpu(), torch.from_numpy(images[:8])) for batch in kept)


def test_iterators_that_ended_stay_at_their_end(images):
    iterator = iter(penstock.Loader(images, batch_size=50, device="host"))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def order_of(loader):
    return [int(i) for batch in loader for i in batch]


def test_resuming_three_times_in_an_epoch_and_at_its_end(device):
    arguments = dict(batch_size=8, shuffle=True, device=device, seed=5)
    loader = penstock.Loader(LABELS, **arguments)
    expected = order_of(loader) + order_of(loader)
    got = []
    state = penstock.Loader(LABELS, **arguments).state_dict()
    for batches in (3, 4, 2, 4, 5):
        resumed = penstock.Loader(LABELS, **arguments)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(resumed)
        for _ in range(batches):
            try:
                got += [int(i) for i in next(iterator)]
            except StopIteration:
                iterator = iter(resumed)
                got += [int(i) for i in next(iterator)]
        state = resumed.state_dict()
    assert got == expected[: len(got)] and len(got) > 100
    whole = penstock.Loader(LABELS, **arguments)
    assert order_of(whole) == expected[:100]
    after = penstock.Loader(LABELS, **arguments)
    after.load_state_dict(whole.state_dict())
    assert order_of(after) == expected[100:], "after an epoch that ran to its end comes the next one"


def test_set_epoch_of_the_epoch_that_was_resumed_goes_on_in_it():
    arguments = dict(batch_size=10, shuffle=True, device="host", seed=2)
    loader = penstock.Loader(LABELS, **arguments)
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3 and loader.state_dict()["consumed"] == 0
    iterator = iter(loader)
    begun = [int(i) for _ in range(4) for i in next(iterator)]
    resumed = penstock.Loader(LABELS, **arguments)
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    resumed.set_epoch(3)
    rest = order_of(resumed)
    loader.set_epoch(3)
    assert begun + rest == order_of(loader)
    resumed.load_state_dict({**loader.state_dict(), "epoch": 3, "consumed": 40})
    resumed.set_epoch(1)
    assert len(order_of(resumed)) == 100


@pytest.mark.parametrize("key", ["sample_count", "seed", "shuffle", "order_version", "epoch", "consumed"])
@pytest.mark.parametrize("value", [-1, "x", None, 1.5, 2**64])
def test_a_state_with_a_wrong_value_is_refused_by_name(key, value):
    loader = penstock.Loader(LABELS, 10, device="host")
    with pytest.raises(penstock.InvalidArgument, match=f"'{key}'"):
        loader.load_state_dict({**loader.state_dict(), key: value})


def test_what_is_no_state_is_refused():
    loader = penstock.Loader(LABELS, 10, device="host")
    with pytest.raises(penstock.InvalidArgument, match=r"lacks .*epoch"):
        loader.load_state_dict({})
    with pytest.raises(penstock.InvalidArgument, match="a dict"):
        loader.load_state_dict([1])
    with pytest.raises(penstock.InvalidArgument, match="epoch"):
        loader.set_epoch(-1)
    assert order_of(loader) == list(range(100))


def test_what_code_around_a_loader_asks_for(images):
    loader = penstock.Loader({"x": images, "y": LABELS}, batch_size=8, drop_last=True, device="host")
    assert (loader.batch_size, loader.drop_last, len(loader.dataset), len(loader)) == (8, True, 100, 12)
    sample = loader.dataset[3]
    assert list(sample) == ["x", "y"] and (sample["x"] == images[3]).all() and sample["y"] == 3


def test_pickling_goes_on_where_the_loader_stood(device):
    loader = penstock.Loader({"y": LABELS}, batch_size=10, shuffle=True, device=device, seed=9)
    iterator = iter(loader)
    begun = [int(i) for _ in range(3) for i in next(iterator)["y"]]
    again = pickle.loads(pickle.dumps(loader))
    rest = [int(i) for batch in again for i in batch["y"]]
    assert sorted(begun + rest) == list(range(100))
    assert rest == [int(i) for batch in iterator for i in batch["y"]]


def test_set_epoch_in_mid_loop_keeps_the_state_of_the_loop():
    loader = penstock.Loader(LABELS, 10, device="host")
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(7)
    next(iterator)
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (0, 20)
    assert len(list(iterator)) == 8 and loader.state_dict()["epoch"] == 7
    next(iter(loader))
    assert loader.state_dict()["epoch"] == 7


def test_a_dataset_that_makes_other_samples_is_not_taken_apart():
    class Times100(TensorDataset):
        def __getitem__(self, index):
            return tuple(100 * x for x in super().__getitem__(index))

    with pytest.raises(penstock.InvalidArgument, match=r"penstock\.feed\(DataLoader"):
        penstock.Loader(Times100(torch.arange(4)), 2, device="host")


def test_masks_are_not_lost():
    masked = np.ma.array([1, 999, 3], mask=[0, 1, 0])
    with pytest.raises(penstock.InvalidArgument, match="'x' is a masked array"):
        penstock.Loader({"x": masked}, 1, device="host")
    assert order_of(penstock.Loader(np.ma.array([1, 2]), 1, device="host")) == [1, 2]


def test_the_sampler_of_a_loader_is_named_in_its_html(images):
    assert "a sampler's batches" in penstock.Loader(images, sampler=range(4), device="host")._repr_html_()


def test_a_name_is_asked_for_where_only_scalars_could_be_widened():
    with pytest.raises(penstock.InvalidArgument, match=r"to=\{'data': 'float32'\}"):
        penstock.Loader(np.zeros(4, np.uint8), 2, device="host", to="float32")


def test_scales_of_no_axes(images):
    for half in (np.array(0.5), torch.tensor(0.5), np.float32(0.5)):
        (x,) = epoch_of([[b] for b in penstock.Loader(images, 50, device="host", to="float32", scale=half)])
        assert torch.equal(x, torch.from_numpy(images) * 0.5)
    with pytest.raises(penstock.InvalidArgument, match="`scale` is a number"):
        penstock.Loader(images, 50, device="host", to="float32", scale="12")


def test_a_budget_that_is_too_small(images):
    with pytest.raises(penstock.OutOfMemory):
        penstock.Loader(images, 100, device="host", device_budget_bytes=1000)


def test_batches_that_are_all_held_fail_at_once_if_they_are_to(images):
    loader = penstock.Loader(images, 10, device="host", device_budget_bytes=3 * 768, tuning=Tuning(when_full="fail"))
    with pytest.raises(penstock.OutOfMemory, match="batches are held"):
        list(loader)
    assert len([batch.shape for batch in loader]) == 10, "those that are dropped make room"
    with pytest.raises(penstock.InvalidArgument, match="use wait or fail"):
        penstock.Loader(images, 10, device="host", tuning=Tuning(when_full="hope"))


def test_a_batch_that_another_thread_will_drop_is_waited_for(images):
    loader = penstock.Loader(images, 10, device="host", device_budget_bytes=3 * 768)
    passed_on: queue.SimpleQueue = queue.SimpleQueue()
    sums = []

    def consume():
        held = []
        while (batch := passed_on.get()) is not None:
            held.append(batch)
            del batch
            if passed_on.empty():
                sums.extend(int(each.sum()) for each in held)
                held.clear()
        sums.extend(int(each.sum()) for each in held)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for batch in loader:
        passed_on.put(batch)
        del batch
    passed_on.put(None)
    consumer.join()
    assert sums == [int(images[first : first + 10].sum()) for first in range(0, 100, 10)]


def test_arrays_are_let_go_with_the_loader():
    class Owner(np.ndarray):
        pass

    base = Owner((100, 4), np.float32)
    base[:] = 0
    reference = weakref.ref(base)
    loader = penstock.Loader(np.asarray(base), 10, device="host")
    del base
    list(loader)
    assert reference() is not None, "the array's owner is kept"
    loader.close()
    del loader
    gc.collect()
    assert reference() is None


def test_an_array_that_only_the_loader_has_is_kept():
    class Made:
        def __array__(self, dtype=None, copy=None):
            memory = mmap.mmap(-1, 4000)
            self.memory = weakref.ref(memory)
            return np.frombuffer(memory, np.uint8).reshape(100, 40)

    made = Made()
    loader = penstock.Loader(made, 10, device="host")
    loader.dataset = None
    assert made.memory() is not None
    assert len(list(loader)) == 10


def test_an_array_whose_base_is_no_owner_of_its_memory():
    """An extension module may keep anything alive as the base of its array, another array for instance."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.POINTER(ctypes.c_void_p), (ctypes.py_object, ctypes.c_char_p)
    set_base_object = get(np._core._multiarray_umath._ARRAY_API, None)[282]
    set_base = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(set_base_object)
    array, base = np.arange(100), np.zeros(3)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(base))
    assert set_base(array, base) == 0 and array.base is base
    assert order_of(penstock.Loader(array, 10, device="host")) == list(range(100))


WITHOUT_TORCH = """
import numpy, penstock, sys
x = numpy.arange(40, dtype=numpy.int32).reshape(10, 4)
for batch in penstock.Loader(x, 5, device="host:late=1"):
    assert type(batch) is numpy.ndarray and batch.dtype == numpy.int32
assert (batch == x[5:]).all()
sent = penstock.to_device({"x": x}, "host:late=1")["x"]
assert type(sent) is numpy.ndarray and (sent == x).all()
assert (list(penstock.feed([x], "host"))[0] == x).all()
assert "torch" not in sys.modules
"""

BFLOAT16_WITHOUT_TORCH = """
import numpy, penstock, sys
x = numpy.arange(40, dtype=numpy.uint8).reshape(10, 4)
try:
    import ml_dtypes
except ImportError:
    sys.modules["ml_dtypes"] = None
    try:
        penstock.Loader(x, 5, device="host", to="bfloat16")
    except penstock.InvalidArgument as error:
        assert "ml_dtypes" in str(error), error
    else:
        raise SystemExit("no error")
else:
    for i, batch in enumerate(penstock.Loader(x, 5, device="host:late=1", to="bfloat16")):
        assert batch.dtype == ml_dtypes.bfloat16 and batch.shape == (5, 4)
        assert (batch.astype(float) == x[5 * i:5 * i + 5]).all()
    sys.modules["ml_dtypes"] = None
    try:
        penstock.Loader(x, 5, device="host", to="bfloat16")
    except penstock.InvalidArgument as error:
        assert "ml_dtypes" in str(error), error
    else:
        raise SystemExit("no error")
assert "torch" not in sys.modules
"""

INTERRUPTED = """
import numpy, os, penstock, signal, threading
threading.Timer(300, os._exit, (4,)).start()
loader = penstock.Loader(numpy.zeros((8, 10)), 4, device="host:latency=600e6")  # ten minutes, in microseconds
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    next(iter(loader))
except KeyboardInterrupt:
    os._exit(3)
"""

EXIT_IN_MID_EPOCH = """
import numpy, penstock, sys, torch
from torch.utils.data import DataLoader, TensorDataset
loader = penstock.Loader(numpy.zeros((1000, 100000), numpy.uint8), 50, device="host")
iterator = iter(loader)
kept = next(iterator), next(iterator)
fed = iter(penstock.feed((numpy.full(10**6, i, float) for i in range(100)), "host"))
also = next(fed)
native = iter(penstock.feed(DataLoader(TensorDataset(torch.arange(100)), 2, shuffle=True), "host"))
more = next(native), next(native)
class Sampler:
    def __iter__(self):
        yield 0
        yield 1
        raise ValueError("never seen")
drawn = iter(penstock.Loader(torch.arange(5), sampler=Sampler(), device="host"))
assert next(drawn).tolist() == [0]
sys.exit(7)
"""

FORK = """
import numpy, os, penstock
loader = penstock.Loader(numpy.zeros((100, 10)), 10, device="host")
iterator = iter(loader)
kept = next(iterator)
fed = iter(penstock.feed([kept, kept + 1, kept + 2], "host", prefetch_depth=0))
next(fed)
child = os.fork()
if child == 0:
    for attempt in (
        lambda: next(iterator),
        lambda: next(fed),
        lambda: penstock.to_device(kept, "host"),
        lambda: penstock.feed([], "host"),
    ):
        try:
            attempt()
        except penstock.DeviceError as error:
            assert "Use penstock in the parent" in str(error), error
        else:
            os._exit(1)
    assert penstock.to_host([kept])[0] is kept
    raise SystemExit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
next(iterator)
"""

FORK_FIRST = """
import numpy, os, penstock
x = numpy.ones(3)
child = os.fork()
if child == 0:
    for _ in range(2):
        penstock.to_device(x, "host")
    raise SystemExit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""

FORK_IN_FLIGHT = """
import numpy, os, penstock, signal
from penstock._engines import engine_for
from penstock._move.transfers import expander_for
engine = engine_for("host:latency=600e6")  # ten minutes
penstock._core.Destination.device(engine).send(numpy.zeros(1 << 20), [expander_for(engine)])
assert engine.in_flight() == 1
child = os.fork()
if child == 0:
    signal.alarm(300)
    raise SystemExit(5)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FORK_UNDER_THE_LOCK = """
import numpy, os, penstock, signal
penstock.to_device(numpy.ones(3), "host")
with penstock._engines._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        try:
            penstock.to_device(numpy.ones(3), "host")
        except penstock.DeviceError:
            os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""

WHILE_TORCH_IS_IMPORTED = """
import numpy, penstock, sys, types
sys.modules["torch"] = types.ModuleType("torch")
assert type(penstock.to_device(numpy.ones(3), "host")) is numpy.ndarray
"""

PROGRAMS = {
    "no torch": (WITHOUT_TORCH, 0),
    "bfloat16 without torch": (BFLOAT16_WITHOUT_TORCH, 0),
    "torch half imported": (WHILE_TORCH_IS_IMPORTED, 0),
    "interrupted": (INTERRUPTED, 3),
    "exit": (EXIT_IN_MID_EPOCH, 7),
    "fork": (FORK, 0),
    "fork before a device is opened": (FORK_FIRST, 0),
    "fork with a batch in flight": (FORK_IN_FLIGHT, 5),
    "fork under a lock": (FORK_UNDER_THE_LOCK, 0),
}


@pytest.mark.parametrize(("program", "status"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs(program, status):
    done = run_program(program)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout


# Links so slow that the host waits for most batches for an eighth of a second.
SLOW = ",link=0.01"
SIGNALLED = {
    "one": lambda link: {"device": f"host:13{link}"},
    "group": lambda link: {"group": [f"host:13{link}", f"host:14{link}"]},
    "relay": lambda link: {"device": f"host:13{link}", "relay": [f"host:14{link}"]},
    "process": lambda link: {"device": f"host:13{link}", "group": penstock.ProcessGroup(rank=0, processes=1)},
}


@pytest.mark.parametrize("kind", SIGNALLED)
def test_a_signal_while_the_host_waits_for_a_batch_loses_none(kind):
    """Nor does that batch come after the loader went elsewhere."""
    x = np.arange(20, dtype=np.float32)[:, None] + np.zeros(80_000, np.float32)
    loader = penstock.Loader(x, 4, residency="none", **SIGNALLED[kind](SLOW))

    def first(batch):
        return int((batch[0] if kind == "group" else batch)[0, 0])

    def held_up():
        """An iterator that a signal has interrupted, and what it gave before."""
        iterator, rang = iter(loader), False
        given = [first(next(iterator))]
        with alarms() as asked:
            while not rang:
                taken, rang = asked(iterator, 0.02)
                assert taken or rang, "the epoch is over"
                given += map(first, taken)
        return iterator, given

    beginning = loader.state_dict()
    iterator, given = held_up()
    assert loader.state_dict()["consumed"] == 4 * len(given)
    assert given + [first(batch) for batch in iterator] == [0, 4, 8, 12, 16]
    loader.load_state_dict(beginning)
    held_up()
    loader.load_state_dict(beginning)
    assert first(next(iter(loader))) == 0
    loader.load_state_dict(beginning)
    iterator, _ = held_up()
    loader.close()
    with pytest.raises(penstock.Closed):
        next(iterator)


@pytest.mark.parametrize("kind", SIGNALLED)
def test_a_signals_handler_sees_the_place_of_what_the_program_has(kind):
    """While the loader waits for a batch that the program does not have yet."""
    x = np.arange(20, dtype=np.float32)[:, None] + np.zeros(80_000, np.float32)
    loader = penstock.Loader(x, 4, residency="none", **SIGNALLED[kind](SLOW))
    given, seen = 0, []

    def look(_, frame):
        if frame.f_globals["__name__"].startswith("penstock."):
            seen.append((4 * given, loader.state_dict()["consumed"]))

    before = signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
        for _ in loader:
            given += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert given == 5
    assert seen
    assert all(has == says for has, says in seen), seen


WHOLE = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


def interrupted(iterator, kind, when):
    """The batches of `iterator` before a Ctrl-C at that moment, or all of them if none came; whether it came."""
    ctrl_c, before, given = CtrlC(when), sys.gettrace(), []
    sys.settrace(ctrl_c)
    try:
        for batch in iterator:
            given.append(plain(batch, kind))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return given, ctrl_c.came


def plain(batch, kind):
    return (batch[0] if kind == "group" else batch).tolist()


@pytest.mark.parametrize("kind", SIGNALLED)
def test_ctrl_c_at_any_moment_loses_no_batch(kind):
    """The state is always that after the batches that were handed out."""
    loader = penstock.Loader(np.arange(11), 3, **SIGNALLED[kind](""))
    for when in range(1000):  # of which every one is tried
        iterator = iter(loader)
        given, came = interrupted(iterator, kind, when)
        if given and came:
            state = loader.state_dict()
            assert state["consumed"] == sum(map(len, given)) or (given == WHOLE and state["epoch"] == when + 1)
        assert given + [plain(batch, kind) for batch in iterator] == WHOLE
        assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (when + 1, 0)
        if not came:
            break
    assert when > 20


@pytest.mark.parametrize("kind", SIGNALLED)
def test_ctrl_c_at_any_moment_leaves_none_to_others(kind):
    loader = penstock.Loader(np.arange(11), 3, **SIGNALLED[kind](""))
    beginning, came, when = loader.state_dict(), True, -1
    while came:
        when += 1
        interrupted(iter(loader), kind, when)
        assert [plain(batch, kind) for batch in loader] == WHOLE, "the next epoch"
        _, came = interrupted(iter(loader), kind, when)
        loader.load_state_dict(beginning)
        assert loader.state_dict() == beginning
        assert [plain(batch, kind) for batch in loader] == WHOLE


# An alarm in a weak reference's callback is one more moment, in which Python only says that it ignores it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", SIGNALLED)
def test_signals_at_random_moments_lose_no_batch(kind):
    """Also while arrays are made: that runs Python code in a mode of PyTorch."""
    loader = penstock.Loader({name: np.arange(4000) for name in "xyz"}, 2, **SIGNALLED[kind](""))

    def kept(batch):
        return (batch[0] if kind == "group" else batch)["x"].tolist()

    count = 0
    with torch.device("cpu"):
        for _ in range(10):  # epochs, until enough came: on a fast machine one takes 30 ms
            got, came, _ = taken_amid_alarms(loader, kept, delays=(13e-6, 61e-6, 0.0017))
            assert [number for numbers in got for number in numbers] == list(range(4000))
            count += came
            if count > 20:
                break
    assert count > 20
