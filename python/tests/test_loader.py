import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from support import place


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
        (images, LABELS), batch_size=8, shuffle=True, device=device, gather=gather, residency=residency
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


@pytest.mark.parametrize("gather_blocks", [1, 7, 1000])
def test_any_number_of_blocks_gathers(device, images, gather_blocks):
    loader = penstock.Loader(
        (images, LABELS), 8, shuffle=True, device=device, gather="zero-copy", gather_blocks=gather_blocks, to="float32"
    )
    x, y = epoch_of(loader)
    assert torch.equal(x, torch.from_numpy(images)[y].float())


def test_arrays_beside_the_loaders_can_still_be_moved(device, random):
    """A page that is locked for one array must not keep PyTorch from copying out of another that begins in it."""
    small = [random.integers(0, 256, (50, 37), dtype=np.uint8) for _ in range(40)]
    whole = random.integers(0, 256, (3000, 20011), dtype=np.uint8)
    train, rest = whole[:2001], whole[2001:]
    loaders = [penstock.Loader(a, 16, shuffle=True, device=device) for a in (*small[::2], train)]
    for loader, expected in zip(loaders, (*small[::2], train), strict=True):
        total = sum(int(x.sum(dtype=torch.int64)) for x in loader)
        assert total == int(expected.sum(dtype=np.int64))
    for array in (*small, rest, train[5:], whole):
        moved = torch.from_numpy(array).to(place(device))
        assert torch.equal(moved.cpu(), torch.from_numpy(array))
        back = torch.empty(array.shape, dtype=torch.uint8)
        assert torch.equal(back.copy_(moved), moved.cpu())
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


def test_one_scale_for_each_channel(device, images):
    scale = np.linspace(0.5, 2, 5)
    loader = penstock.Loader({"x": images}, 16, device=device, to={"x": np.float16}, scale={"x": scale})
    x = torch.cat([batch["x"].cpu().clone() for batch in loader])
    assert x.dtype == torch.float16
    torch.testing.assert_close(x, torch.from_numpy(images * scale[:, None].astype(np.float32)).half())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"])
def test_dtypes(device, random, dtype):
    array = (random.random((20, 3)) * 100).astype(dtype)
    (x,) = epoch_of([[b] for b in penstock.Loader(array, 6, device=device)])
    assert torch.equal(x, torch.from_numpy(array))


def test_bfloat16_tensors(device):
    tensor = torch.rand(20, 3).bfloat16()
    (x,) = epoch_of([[b] for b in penstock.Loader(tensor, 6, device=device)])
    assert torch.equal(x, tensor)


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
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    assert statistics.plot() is not None


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
        ({"gather": "quickly"}, "quickly"),
        ({"to": "float99"}, "float99"),
        ({"to": {"nobody": "float32"}}, "nobody"),
        ({"to": ["float32"]}, "entries"),
        ({"to": "uint8", "data": np.zeros((3, 3))}, "widened"),
        ({"rank": 1}, "both"),
        ({"rank": 2, "world_size": 2}, "rank"),
    ],
)
def test_what_does_not_fit(images, arguments, message):
    arguments = {"data": (images, LABELS), "device": "host", "batch_size": 8, **arguments}
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Loader(**arguments)


def test_a_budget_that_is_too_small(images):
    with pytest.raises(penstock.OutOfMemory):
        penstock.Loader(images, 100, device="host", device_budget_bytes=1000)


def test_arrays_are_let_go_with_the_loader():
    import gc
    import weakref

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

EXIT_IN_MID_EPOCH = """
import numpy, penstock, sys
loader = penstock.Loader(numpy.zeros((1000, 100000), numpy.uint8), 50, device="host")
iterator = iter(loader)
kept = next(iterator), next(iterator)
fed = iter(penstock.feed((numpy.full(10**6, i, float) for i in range(100)), "host"))
also = next(fed)
sys.exit(7)
"""

FORK = """
import numpy, os, penstock
loader = penstock.Loader(numpy.zeros((100, 10)), 10, device="host")
iterator = iter(loader)
kept = next(iterator)
child = os.fork()
if child == 0:
    for attempt in (lambda: next(iterator), lambda: penstock.to_device(kept, "host")):
        try:
            attempt()
        except penstock.DeviceError as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
    raise SystemExit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
next(iterator)
"""


@pytest.mark.parametrize(
    ("program", "status"), [(WITHOUT_TORCH, 0), (EXIT_IN_MID_EPOCH, 7), (FORK, 0)], ids=["no torch", "exit", "fork"]
)
def test_programs(program, status):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
