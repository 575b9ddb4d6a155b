"""The order of transfers to fixed addresses, over the fake driver, with a stand-in for PyTorch."""

import numpy as np
import pytest

import penstock
import stand_in_torch
from fake_driver import (
    GATHERS,
    LARGE,
    LATE_NS,
    SIZES,
    SMALL,
    driver,
    over_the_fake_driver,
    random_bytes,
    wait_until_idle,
)
from penstock import _core
from penstock._destination import Destination
from penstock._engines import engine_for
from penstock._move.transfers import expander_for
from test_slot_transfers import Filled

over_the_fake_driver_with_torch = over_the_fake_driver(torch=True)


def fixed_batches(sets):
    return _core.FixedBatches(sets, stand_in_torch.marked.append)


class Sender:
    """A feed of single arrays, which all lie at one address."""

    def __init__(self):
        self._engine, self._fixed = engine_for("cuda:0"), fixed_batches(1)
        self._account = _core.FeedIteration(_core.FeedAccount(self._engine, 1))

    def send(self, array, pin=False):
        self._account.ask(0)
        self._account.load()
        self._account.loaded()
        tensor = stand_in_torch.from_numpy(array)
        return self._account.send([tensor], expander_for(self._engine), pin, None, self._fixed)

    def land(self, flight):
        (tensor,) = self._account.land(flight)
        return tensor


@SIZES
@over_the_fake_driver_with_torch
def test_a_batch_is_not_overwritten_before_it_was_read(count):
    stream, sent, read, addresses = driver.stream(), [random_bytes(count) for _ in range(8)], [], []
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    with stand_in_torch.current(stream):
        for tensor in penstock.feed(sent, "cuda:0", static=True):
            addresses.append(tensor.address)
            read.append(driver.read(stream, tensor.address, count))
            assert any(tensor is one for one in stand_in_torch.marked)
    assert [reading.bytes() for reading in read] == [array.tobytes() for array in sent]
    assert len(set(addresses)) == 3 and addresses[3:] == addresses[:-3]


@SIZES
@over_the_fake_driver_with_torch
def test_a_batch_is_not_overwritten_before_another_stream_has_read_it(count):
    feed, sent = Sender(), [random_bytes(count) for _ in range(4)]
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    read = []
    for array in sent:
        with stand_in_torch.current(driver.stream()) as stream:
            read.append(driver.read(stream, feed.land(feed.send(array)).address, count))
    assert [reading.bytes() for reading in read] == [array.tobytes() for array in sent]


@SIZES
@pytest.mark.parametrize("pinned", [False, True])
@over_the_fake_driver_with_torch
def test_a_batch_that_was_dropped_does_not_arrive_after_the_next(count, pinned):
    """Pageable and pinned memory of this size travel in different ways, on streams of their own."""
    engine, stream, feed = engine_for("cuda:0"), driver.stream(), Sender()
    sent = [random_bytes(count) for _ in range(2)]
    with stand_in_torch.current(stream):
        driver.delay_copies(4 * LATE_NS)
        dropped = feed.send(sent[0])
        dropped.release_sources()  # staging threads have read them
        del dropped
        driver.delay_copies(0)
        tensor = feed.land(feed.send(sent[1], pinned))
        wait_until_idle(engine)
        assert driver.read(stream, tensor.address, count).bytes() == sent[1].tobytes()


@over_the_fake_driver_with_torch
def test_memory_that_somebody_keeps_is_not_written():
    stream, feed, sent = driver.stream(), Sender(), random_bytes(SMALL)
    with stand_in_torch.current(stream):
        tensor = feed.land(feed.send(sent))
        with pytest.raises(penstock.InvalidArgument, match="a batch is kept"):
            feed.send(random_bytes(SMALL))
        assert driver.read(stream, tensor.address, SMALL).bytes() == sent.tobytes()


@SIZES
@over_the_fake_driver_with_torch
def test_a_slot_travels_as_one_if_its_arrays_lie_alike(count):
    fixed = fixed_batches(2)
    stream = driver.stream()
    with stand_in_torch.current(stream):
        other = [stand_in_torch.from_numpy(random_bytes(count)) for _ in range(3)]
        ordinary = Filled(count, fixed=fixed)
        ordinary.land(ordinary.send(other))
        for _ in range(3):
            filled = Filled(count, fixed=fixed)
            before = driver.calls("cuMemcpyHtoDAsync")
            flight = filled.send([filled.array(number) for number in range(3)])
            landed = filled.land(flight)
            parts = -(-3 * count // (4 << 20))  # a part has 4 MiB
            assert driver.calls("cuMemcpyHtoDAsync") == before + parts
            for number, tensor in enumerate(landed):
                assert driver.read(stream, tensor.address, count).bytes() == filled.bytes(number)
            del flight, landed, tensor


# The places of a batch's arrays in the slot; None: an array that lies elsewhere.
OTHER_ORDERS = [[1, 0], [0, 2], [0, None, 2], [None, 0], [2, 1, 0], [0, 1, None]]


@SIZES
@pytest.mark.parametrize("places", OTHER_ORDERS, ids=str)
@over_the_fake_driver_with_torch
def test_arrays_of_a_slot_that_lie_in_another_way(count, places):
    fixed = fixed_batches(1)
    driver.delay_copies()
    stream = driver.stream()
    with stand_in_torch.current(stream):
        for _ in range(2):
            filled = Filled(count, fixed=fixed)
            other = random_bytes(count)
            batch = [stand_in_torch.from_numpy(other) if p is None else filled.array(p) for p in places]
            flight = filled.send(batch)
            del batch
            assert not filled.slot.is_seen(flight), "it is the device that reads it"
            tensors = filled.land(flight)
            del flight
            filled.let_go()
            filled.overwrite_when_free()
            for place, tensor in zip(places, tensors, strict=True):
                expected = other.tobytes() if place is None else filled.bytes(place)
                assert driver.read(stream, tensor.address, count).bytes() == expected
            del tensors, tensor


@over_the_fake_driver_with_torch
def test_an_array_between_those_of_a_slot_is_not_copied_over():
    """It has the size of the gap that it leaves in the slot."""
    other, calls = stand_in_torch.from_numpy(random_bytes(LARGE)), []
    with stand_in_torch.current(driver.stream()):
        for places in ([0], [None], [2], [0, None, 2]):
            filled = Filled(LARGE, fixed=fixed_batches(1))
            before = driver.calls("cuMemcpyHtoDAsync")
            filled.land(filled.send([other if place is None else filled.array(place) for place in places]))
            calls.append(driver.calls("cuMemcpyHtoDAsync") - before)
    assert calls[3] == sum(calls[:3])


@over_the_fake_driver_with_torch
def test_memory_that_cannot_be_had_is_asked_for_again():
    stream, feed, sent = driver.stream(), Sender(), random_bytes(SMALL)
    with stand_in_torch.current(stream):
        stand_in_torch.failures["empty"] = MemoryError("no memory")
        with pytest.raises(penstock.OutOfMemory):
            feed.send(sent)
        tensor = feed.land(feed.send(sent))
        assert driver.read(stream, tensor.address, SMALL).bytes() == sent.tobytes()


@over_the_fake_driver_with_torch
def test_a_mark_that_fails_is_made_again():
    stream, feed, sent = driver.stream(), Sender(), random_bytes(SMALL)
    feed._fixed = _core.FixedBatches(1, mark := Marks())
    with stand_in_torch.current(stream):
        with pytest.raises(ZeroDivisionError):
            feed.send(sent)
        tensor = feed.land(feed.send(sent))
        assert mark.made == [tensor]
        assert driver.read(stream, tensor.address, SMALL).bytes() == sent.tobytes()


class Marks:
    def __init__(self):
        self.made, self._failures = [], 1

    def __call__(self, tensor):
        if self._failures:
            self._failures -= 1
            raise ZeroDivisionError
        self.made.append(tensor)


@GATHERS
@over_the_fake_driver_with_torch
def test_a_native_batch_is_not_overwritten_before_it_was_read(gather):
    samples, batch, stream = random_bytes(40 * LARGE // 4).reshape(40, -1), 4, driver.stream()
    count, marked, read, addresses = batch * samples.shape[1], [], [], []
    loader = _core.NativeLoader(
        Destination("cuda:0").native,
        [("x", samples)],
        [],
        **dict(batch_size=batch, shuffle=False, seed=0, drop_last=False, batch_sampler=None, rank=0, world_size=1),
        **dict(prefetch_depth=2, residency="none", gather=gather, gather_blocks=0, narrow=False, data_may_change=False),
        **dict(device_budget_bytes=1 << 30, threads=0, when_full="fail", mark=marked.append),
    )
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    tensor = None
    with stand_in_torch.current(stream):
        while True:
            assert loader.end_leases()
            made = []
            assert loader.next_into(made)
            if made == [None]:
                break
            ((tensor,),) = made
            addresses.append(tensor.address)
            read.append(driver.read(stream, tensor.address, count))
            assert any(tensor is one for one in marked)
    assert b"".join(reading.bytes() for reading in read) == samples.tobytes()
    assert len(set(addresses)) == 3 == len(marked)
    loader.close()


@over_the_fake_driver
def test_a_native_batch_comes_again_after_memory_was_short():
    short = pytest.importorskip("_testcapi")
    samples, count, got, failures = np.arange(400), 4, [], []
    loader = _core.NativeLoader(
        Destination("host:6").native,
        [("x", samples)],
        [],
        **dict(batch_size=count, shuffle=False, seed=0, drop_last=False, batch_sampler=None, rank=0, world_size=1),
        **dict(prefetch_depth=2, residency="none", gather="auto", gather_blocks=0, narrow=False, data_may_change=False),
        **dict(device_budget_bytes=1 << 30, threads=0, when_full="fail", mark=[].append),
    )
    while len(got) * count < len(samples):
        assert loader.end_leases()
        made = [None, None]
        made.pop()  # there is room for one
        which = len(got) + len(failures)
        if len(got) >= 3:  # all arrays are made
            short.set_nomemory(which % 8, which % 8 + 1)
        try:
            loader.next_into(made)
        except MemoryError:
            failures.append(which)
            continue
        finally:
            short.remove_mem_hooks()
        got.append(made[1][0].tobytes())
        del made
    assert failures
    assert b"".join(got) == samples.tobytes()
    loader.close()


@over_the_fake_driver()
def test_without_pytorch_it_is_refused():
    with pytest.raises(penstock.InvalidArgument, match="for PyTorch"):
        penstock.feed([np.zeros(3)], "cuda:0", static=True)
