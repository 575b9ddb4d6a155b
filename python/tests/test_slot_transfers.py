"""The transfer of a slot that a worker process has filled, over the fake driver, with a stand-in for PyTorch."""

import ctypes
import time

import pytest

import penstock
import stand_in_torch
from fake_driver import (
    ENDLESS,
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
from penstock._engines import engine_for, group_for
from penstock._feed import workers as _worker_feed
from penstock._feed.slots import Received
from penstock._move.transfers import expander_for
from support import send_to

over_the_fake_driver_with_torch = over_the_fake_driver(torch=True)

PATIENCE_S = 120
APART = 256  # arrays in a slot


def take_when_free(slots, number=0):
    deadline = time.monotonic() + PATIENCE_S
    while slots.claim(number) is None:
        assert time.monotonic() < deadline, "the slot is not free"
        time.sleep(0.001)
    return slots.take(number)


class Filled:
    """A slot that lies full of random bytes, and the feed that sends them."""

    most_bytes = 16 << 20

    def __init__(self, count, locked=True):
        self.count, self.engine = count, engine_for("cuda:0")
        self.slots = _core.SharedSlots(1, self.most_bytes, -1)
        self.slots.allow(0, 3 * self.second)
        self.sent = random_bytes(3 * self.second)
        self.slots.claim(0)[:] = self.sent
        self.slot = self.slots.take(0)
        if locked:
            self.lock()
        self.begin()

    @property
    def engines(self):
        return [self.engine]

    def lock(self):
        """Has the slot locked, as it is once a batch in it is gone. The next one has the same bytes."""
        self.slots.lock_soon(self.slot, self.engine)
        while not self.slot.locked:
            self.let_go()
            self.slot = take_when_free(self.slots)
            self.slots.lock_soon(self.slot, self.engine)

    def begin(self):
        """Begins an account, in which a batch has been asked for and loaded."""
        self.account = _core.FeedAccount(self.engine, 1)
        self._iteration = _core.FeedIteration(self.account)
        self._iteration.ask(0)
        self._iteration.load()
        self._iteration.loaded()

    @property
    def second(self):
        """Where the second array begins."""
        return -(-self.count // APART) * APART

    def array(self, number):
        return self.slot.array(True, number * self.second, 1, 8, [self.count], [1])

    def bytes(self, number):
        return self.sent[number * self.second :][: self.count].tobytes()

    def send(self, batch):
        place = _core.Destination.device(self.engine)
        return self._iteration.send(place, batch, [expander_for(self.engine)], False, self.slot)

    def land(self, flight):
        return self._iteration.land(flight)

    def let_go(self):
        self.slot = None

    def overwrite_when_free(self):
        """As a worker does, at once. If the slot is free too early, the device gets these bytes."""
        deadline = time.monotonic() + PATIENCE_S
        while (memory := self.slots.claim(0)) is None:
            assert time.monotonic() < deadline, "the slot is not free"
            for engine in self.engines:
                engine.in_flight()
        memory[:] = bytes(len(memory))


class Object:
    """Moves itself, as a batch with its own `to` does: by a copy that is queued on the current stream."""

    def __init__(self, array, stream):
        self.array, self.stream = array, stream
        self.moved = driver.allocate(array.shape[0])

    def to(self, device, non_blocking):
        driver.call(
            *("cuMemcpyHtoDAsync", ctypes.c_ulonglong(self.moved), ctypes.c_void_p(self.array.address)),
            *(ctypes.c_size_t(self.array.shape[0]), ctypes.c_void_p(self.stream)),
        )
        return self.moved


@SIZES
@pytest.mark.parametrize("lands", [True, False])
@over_the_fake_driver_with_torch
def test_a_slot_stays_taken_until_the_device_has_read_it(count, lands):
    filled = Filled(count)
    driver.delay_copies()
    stream = driver.stream()
    with stand_in_torch.current(stream):
        flight = filled.send({"a": filled.array(0), "b": [filled.array(1)]})
        batch = filled.land(flight) if lands else None
        del flight
        filled.let_go()
        assert filled.slots.claim(0) is None
        filled.overwrite_when_free()
        if lands:
            assert filled.account.stats().arrays == 2
            for number, tensor in enumerate([batch["a"], batch["b"][0]]):
                assert driver.read(stream, tensor.address, count).bytes() == filled.bytes(number)


@SIZES
@over_the_fake_driver_with_torch
def test_a_slot_travels_as_one(count):
    filled = Filled(count)
    before = driver.calls("cuMemcpyHtoDAsync")
    other = random_bytes(SMALL)
    flight = filled.send([filled.array(1), filled.array(0)])
    parts = -(-2 * count // (4 << 20))  # a part has 4 MiB
    assert driver.calls("cuMemcpyHtoDAsync") == before + parts
    stream = driver.stream()
    with stand_in_torch.current(stream):
        second, first = filled.land(flight)
        assert second.address - first.address == filled.second
        assert driver.read(stream, first.address, count).bytes() == filled.bytes(0)
        assert driver.read(stream, second.address, count).bytes() == filled.bytes(1)
        # With arrays that lie elsewhere.
        filled = Filled(count)
        theirs, ours = filled.land(filled.send([stand_in_torch.from_numpy(other), filled.array(0)]))
        assert driver.read(stream, theirs.address, SMALL).bytes() == other.tobytes()
        assert driver.read(stream, ours.address, count).bytes() == filled.bytes(0)


@SIZES
@pytest.mark.parametrize("then", ["lands", "is dropped", "the engine closes"])
@pytest.mark.parametrize("others", [True, False])
@over_the_fake_driver_with_torch
def test_a_slot_stays_taken_until_what_moved_itself_has_moved(count, then, others):
    filled = Filled(count)
    if then == "the engine closes":
        filled.engine = _core.Engine("cuda:0")
        filled.begin()
    driver.delay_copies()
    stream = driver.stream()
    with stand_in_torch.current(stream):
        batch = [Object(filled.array(0), stream)] + [filled.array(1)] * others
        flight = filled.send(batch)
        moved = batch[0].moved
        del batch
        if then != "is dropped":
            filled.land(flight)
        del flight
        filled.let_go()
        if then == "the engine closes":
            filled.engine.close()
        else:
            assert filled.slots.claim(0) is None
        filled.overwrite_when_free()
    assert driver.read(stream, moved, count).bytes() == filled.bytes(0)


def sent_and_seen(filled):
    """Sends two arrays of a slot, which are seen until both are gone. Returns the flight."""
    first, second = filled.array(0), filled.array(1)
    flight = filled.send([first, second])
    assert filled.slot.is_seen(flight)
    del first
    assert filled.slot.is_seen(flight)
    del second
    assert not filled.slot.is_seen(flight)
    return flight


@over_the_fake_driver_with_torch
def test_arrays_that_are_left_are_seen():
    sent_and_seen(Filled(SMALL))
    filled = Filled(SMALL)
    flight = filled.send([{filled.array(0)}])
    assert filled.slot.is_seen(flight), "a set stays as it is"
    filled.land(flight)
    wait_until_idle(filled.engine)
    assert not filled.slot.is_seen(flight)


@SIZES
@over_the_fake_driver_with_torch
def test_a_slot_that_is_not_locked_is_copied_first(count):
    filled = Filled(count, locked=False)
    driver.delay_copies()
    stream = driver.stream()
    with stand_in_torch.current(stream):
        flight = filled.send([filled.array(0)])
        filled.let_go()
        if count == SMALL:
            assert filled.slots.claim(0) is not None, "its bytes were packed"
            filled.slots.give_up(0)
        (tensor,) = filled.land(flight)
        filled.overwrite_when_free()
        assert driver.read(stream, tensor.address, count).bytes() == filled.bytes(0)


def put(pool, number, content):
    """A batch as a worker sends it, in a slot that it has filled."""
    pool.shared.claim(number)[: len(content)] = content
    return Received(None, pool.shared.take(number), len(content))


@over_the_fake_driver_with_torch
def test_batches_keep_coming_while_slots_are_locked():
    content = random_bytes(3 * SMALL)
    stream, pool, filled = driver.stream(), _worker_feed._Pool("cuda:0", 1, 3), Filled(SMALL, locked=False)
    tensors = []

    def send(received):
        filled.begin()
        pool.open(received)
        filled.slot = received.slot
        locked = filled.slot.locked
        tensors.extend(filled.land(filled.send([filled.slot.array(True, 0, 1, 8, [len(content)], [1])])))
        filled.let_go()
        wait_until_idle(filled.engine)
        return locked

    with stand_in_torch.current(stream):
        pool.open(Received(None, None, len(content)))  # slots get their room
        filled.let_go()
        driver.delay("cuMemHostRegister", 20 * LATE_NS)
        assert not send(put(pool, 0, content)), "it is locked from here on"
        assert pool.shared.claim(0) is None
        assert not any(send(put(pool, number, content)) for number in (1, 2)), "and others come meanwhile"
        assert pool.shared.claim(0) is None
        driver.delay("cuMemHostRegister", 0)
        for number in range(3):
            received = Received(None, take_when_free(pool.shared, number), len(content))
            assert send(received), "it is locked now"
        assert filled.account.stats().send_pin_seconds == 0
        for tensor in tensors:
            assert driver.read(stream, tensor.address, len(content)).bytes() == content.tobytes()
    assert len(tensors) == 6
    pool.close()


@over_the_fake_driver_with_torch
def test_the_limit_of_locked_memory_is_named_and_batches_are_right():
    engine = engine_for("cuda:0")
    stream, pool = driver.stream(), _worker_feed._Pool("cuda:0", 1, 2)
    sent, filled = random_bytes(1 << 20), Filled(SMALL, locked=False)
    with stand_in_torch.current(stream):
        filled.land(filled.send([filled.array(0)]))  # the engine has its own locked memory now
        driver.set_lock_limit(driver.locked_bytes())
        before = driver.calls("cuMemHostRegister")
        pool.open(Received(None, None, 1 << 20))  # slots get their room
        tensors = []
        for number in (0, 1):
            received = put(pool, number, sent)
            pool.open(received)
            filled.slot = received.slot
            del received
            assert not filled.slot.locked
            tensors += filled.land(filled.send([filled.slot.array(True, 0, 1, 8, [len(sent)], [1])]))
            filled.let_go()
            wait_until_idle(engine)
            take_when_free(pool.shared, number)
        assert driver.calls("cuMemHostRegister") == before + 1, "it is tried once"
        driver.set_lock_limit(1 << 40)
        for tensor in tensors:
            assert driver.read(stream, tensor.address, len(sent)).bytes() == sent.tobytes()
    assert any(line.startswith("the device does not read them where they lie: ") for line in pool.describe())
    wait_until_idle(engine)


GPUS = ["cuda:0", "cuda:1"]


class FilledForAll(Filled):
    """The same for two GPUs, without PyTorch."""

    most_bytes = 3 * ENDLESS

    @property
    def engines(self):
        return [engine_for(spec) for spec in GPUS]

    def array(self, number):
        return self.slot.array(False, number * self.second, 1, 8, [self.count], [1])

    def send(self, batch):
        expand = [expander_for(engine) for engine in self.engines]
        place = _core.Destination.group(group_for(self.engines), relays=False)
        return self._iteration.send(place, batch, expand, False, self.slot)


@SIZES
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("late", GPUS)
@over_the_fake_driver
def test_a_slot_stays_taken_until_all_gpus_have_read_it(count, locked, late):
    filled = FilledForAll(count, locked)
    driver.delay_copies()
    busy = [send_to(engine_for(late), random_bytes(SMALL)) for _ in range(10)]
    flight = filled.send({"a": filled.array(0), "b": [filled.array(1)]})
    batches = filled.land(flight)
    del flight
    filled.let_go()
    if locked:
        assert filled.slots.claim(0) is None
    filled.overwrite_when_free()
    for device, batch in enumerate(batches):
        assert batch["a"].__dlpack_device__() == (2, device)
        assert penstock.to_host(batch["a"]).tobytes() == filled.bytes(0)
        assert penstock.to_host(batch["b"][0]).tobytes() == filled.bytes(1)
    del busy


@over_the_fake_driver
def test_slots_that_gpus_have_read_are_free_once_an_epoch_begins():
    filled, pool = FilledForAll(SMALL), _worker_feed._Pool("cuda:0", 1, 1)
    driver.delay_copies()
    filled.land(filled.send([filled.array(0)]))
    filled.let_go()
    assert filled.slots.claim(0) is None
    deadline = time.monotonic() + PATIENCE_S
    while filled.slots.claim(0) is None:
        assert time.monotonic() < deadline, "the slot is not free"
        pool._return_lent()


@over_the_fake_driver
def test_a_slot_that_is_not_locked_stays_taken_until_it_was_copied_for_all_gpus():
    filled = FilledForAll(ENDLESS, locked=False)
    driver.delay_copies()
    each = 64 << 10  # for one device such arrays would be packed, and not be read later
    places = range(0, 2 * ENDLESS, each)
    batches = filled.land(filled.send([filled.slot.array(False, at, 1, 8, [each], [1]) for at in places]))
    filled.let_go()
    filled.overwrite_when_free()
    sent = filled.sent[: 2 * ENDLESS].tobytes()
    assert all(b"".join(penstock.to_host(array).tobytes() for array in batch) == sent for batch in batches)


@over_the_fake_driver
def test_a_slot_travels_as_one_to_all():
    filled = FilledForAll(LARGE)
    other = random_bytes(SMALL)
    first = filled.land(filled.send([filled.array(1), other, filled.array(0)]))
    for second, theirs, ours in first:
        assert penstock.to_host(second).tobytes() == filled.bytes(1)
        assert penstock.to_host(theirs).tobytes() == other.tobytes()
        assert penstock.to_host(ours).tobytes() == filled.bytes(0)
    wait_until_idle(filled.engines[0])
    wait_until_idle(filled.engines[1])


@over_the_fake_driver
def test_arrays_that_are_left_are_seen_though_all_gpus_read_them():
    filled = FilledForAll(LARGE)
    flight = sent_and_seen(filled)
    filled.land(flight)
    for engine in filled.engines:
        wait_until_idle(engine)
    assert not filled.slot.is_seen(flight)
