"""The order between penstock's work on a GPU and its consumers', over the fake driver.

Copies that start late, and streams that are held, turn a wait that is missing into wrong bytes.
"""

import ctypes
import mmap
import weakref

import numpy as np
import pytest

import penstock
from dlpack import Taken
from fake_driver import (
    ENDLESS,
    GATHERS,
    LARGE,
    LATE_NS,
    SIZES,
    SMALL,
    SOON_NS,
    driver,
    over_the_fake_driver,
    random_bytes,
    wait_until_idle,
)
from penstock import _core
from penstock._engines import engine_for
from support import send_to


def take(array, stream):
    """Takes an array for work on another stream, as another library does."""
    return Taken(array.__dlpack__(stream=stream, max_version=(1, 1)))


def send(tree):
    """Like to_device, but does not wait for the sources."""
    engine = engine_for("cuda:0")
    return send_to(engine, tree).land()


def engine_with_room_for(count):
    """An engine whose pool has room for an array of so many bytes, and not for two."""
    driver.leave_room(3 * count)  # the pool takes half of what is free
    engine = _core.Engine("cuda:0")
    driver.set_memory(1 << 30)
    return engine


def address_by(protocol, array, stream=-1):
    """Checks the array as a consumer that names its stream, or as one that does not."""
    return take(array, stream).address if protocol == "dlpack" else array.__cuda_array_interface__["data"][0]


@SIZES
@pytest.mark.parametrize("stream", ["own", 1, None])
@over_the_fake_driver
def test_a_stream_that_takes_an_array_waits_for_it(count, stream):
    sent = random_bytes(count)
    driver.delay_copies()
    array = penstock.to_device(sent, "cuda:0")
    on = driver.stream() if stream == "own" else 0
    taken = take(array, on or stream)
    assert driver.read(on, taken.address, count).bytes() == sent.tobytes()


@SIZES
@pytest.mark.parametrize("protocol", ["dlpack", "cuda_array_interface"])
@over_the_fake_driver
def test_a_consumer_that_orders_nothing_finds_the_bytes(count, protocol):
    sent = random_bytes(count)
    driver.delay_copies()
    array = penstock.to_device(sent, "cuda:0")
    assert driver.read(driver.stream(), address_by(protocol, array), count).bytes() == sent.tobytes()


@SIZES
@over_the_fake_driver
def test_to_host_waits_for_the_transfers_of_an_array(count):
    sent = random_bytes(count)
    driver.delay_copies()
    assert penstock.to_host(penstock.to_device(sent, "cuda:0")).tobytes() == sent.tobytes()


def locked_array(count):
    """An array in memory that another library has locked."""
    memory = (ctypes.c_uint8 * count).from_address(driver.allocate_host(count))
    return np.frombuffer(memory, np.uint8)


@SIZES
@pytest.mark.parametrize("locked", [False, True])
@over_the_fake_driver
def test_to_host_waits_until_the_bytes_are_in_out(count, locked):
    sent = [random_bytes(count) for _ in range(2)]
    arrays = penstock.to_device(sent, "cuda:0")
    driver.delay_work("cuMemcpyDtoHAsync", SOON_NS)
    out = [locked_array(count) if locked else np.zeros(count, np.uint8) for _ in sent]
    penstock.to_host(arrays, out=out)
    assert [array.tobytes() for array in out] == [array.tobytes() for array in sent]


@pytest.mark.parametrize("ours", [False, True])
@over_the_fake_driver
def test_one_copy_goes_straight_to_locked_memory(ours):
    sent = random_bytes(ENDLESS)
    array = penstock.to_device(sent, "cuda:0")
    before = driver.calls("cuMemcpyDtoHAsync")
    back = penstock.to_host(array, pinned=True) if ours else penstock.to_host(array, out=locked_array(ENDLESS))
    assert driver.calls("cuMemcpyDtoHAsync") == before + 1
    assert back.tobytes() == sent.tobytes()


@over_the_fake_driver
def test_pinned_results_stay_and_arrays_of_the_host_are_pinned():
    sent = {"there": [random_bytes(count) for count in (0, SMALL, LARGE)], "here": random_bytes(SMALL)}
    back = penstock.to_host({**sent, "there": penstock.to_device(sent["there"], "cuda:0")}, pinned=True)
    assert back["here"] is not sent["here"] and back["here"].tobytes() == sent["here"].tobytes()
    assert [array.tobytes() for array in back["there"]] == [array.tobytes() for array in sent["there"]]
    again = penstock.to_host(back, pinned=True)
    assert again["here"] is back["here"]
    assert all(a is b for a, b in zip(again["there"], back["there"], strict=True))


@over_the_fake_driver
def test_pinned_memory_goes_back_with_its_array():
    engine = engine_for("cuda:0")
    array = penstock.to_device(random_bytes(LARGE), "cuda:0")
    penstock.to_host(array, pinned=True)
    before = driver.locked_bytes()
    for _ in range(40):
        penstock.to_host(array, pinned=True)
    assert driver.locked_bytes() == before and engine.in_flight() == 0


@over_the_fake_driver
def test_after_an_error_nothing_is_on_its_way_to_out():
    arrays = penstock.to_device([random_bytes(LARGE) for _ in range(3)], "cuda:0")
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    driver.fail("cuMemcpyDtoHAsync", 1, 2)
    out = [locked_array(LARGE) for _ in arrays]
    with pytest.raises(penstock.DeviceError, match="cuMemcpyDtoHAsync"):
        penstock.to_host(arrays, out=out)
    for array in out:
        array.fill(7)
    driver.call("cuCtxSynchronize")
    assert all((array == 7).all() for array in out)


@SIZES
@pytest.mark.parametrize("protocol", ["dlpack", "cuda_array_interface"])
@over_the_fake_driver
def test_memory_that_a_stream_still_reads_is_not_used_again(count, protocol):
    sent = random_bytes(count)
    array = penstock.to_device(sent, "cuda:0")
    stream = driver.stream() if protocol == "dlpack" else 0
    address = address_by(protocol, array, stream)
    with driver.held(stream):
        reading = driver.read(stream, address, count)
        del array
        penstock.to_host(penstock.to_device([random_bytes(count) for _ in range(3)], "cuda:0"))
    assert reading.bytes() == sent.tobytes()


@pytest.mark.parametrize("fails", [False, True])
@over_the_fake_driver
def test_memory_that_a_transfer_still_writes_is_not_used_again(fails):
    engine = engine_with_room_for(ENDLESS)
    tree = [random_bytes(ENDLESS)]
    # These go to the driver at once, before the rest of the first transfer.
    sent = [random_bytes(200_000) for _ in range(ENDLESS // 200_192)]
    driver.delay_copies(4 * SOON_NS)
    if fails:
        driver.fail("cuMemcpyHtoDAsync", 1, 2)
        tree.append(random_bytes(SMALL))
    send_to(engine, tree).land()
    arrays = send_to(engine, sent).land()
    wait_until_idle(engine)
    assert [back.tobytes() for back in penstock.to_host(arrays)] == [array.tobytes() for array in sent]


@pytest.mark.parametrize("count", [ENDLESS, SMALL])
@over_the_fake_driver
def test_sources_are_kept_while_they_are_read(count):
    """Also a small one that travels with a large one."""
    engine, large = engine_for("cuda:0"), random_bytes(ENDLESS)
    memory = mmap.mmap(-1, count)
    source, owner = np.frombuffer(memory, np.uint8), weakref.ref(memory)
    driver.delay_copies(4 * LATE_NS)
    arrays = send_to(engine, [source] if count == ENDLESS else [source, large]).land()
    del source, memory
    assert engine.in_flight() == 1 and owner() is not None
    driver.delay_copies(0)
    wait_until_idle(engine)
    assert owner() is None
    sent = [bytes(count), large.tobytes()][: len(arrays)]
    assert [back.tobytes() for back in penstock.to_host(arrays)] == sent


@over_the_fake_driver
def test_what_was_handed_out_is_there_after_its_engine_was_closed():
    engine, sent = _core.Engine("cuda:0"), random_bytes(ENDLESS)
    driver.delay("cuMemcpyHtoDAsync", SOON_NS // 2)  # the call itself: the stream is idle before most copies are queued
    array = send_to(engine, sent).land()
    engine.close()
    assert penstock.to_host(array).tobytes() == sent.tobytes()


@over_the_fake_driver
def test_closing_with_a_transfer_that_failed():
    engine = _core.Engine("cuda:0")
    driver.fail("cuMemcpyHtoDAsync", 1, 2)
    send_to(engine, random_bytes(SMALL))
    engine.close()
    with pytest.raises(penstock.Closed):
        send_to(engine, random_bytes(SMALL))


@over_the_fake_driver
def test_a_transfer_that_fails_is_told_where_its_array_is_used():
    driver.fail("cuMemcpyHtoDAsync", 1, 2)
    array = send(random_bytes(SMALL))
    for use in (lambda: penstock.to_host(array), lambda: take(array, 1), lambda: array.__cuda_array_interface__):
        with pytest.raises(penstock.DeviceError) as caught:
            use()
        assert (caught.value.name, caught.value.code) == ("CUDA_ERROR_OUT_OF_MEMORY", 2)
        assert caught.value.call == "cuMemcpyHtoDAsync"
    engine = engine_for("cuda:0")
    driver.fail("cuMemcpyHtoDAsync", 1, 2)
    send_to(engine, random_bytes(SMALL))
    assert engine.in_flight() == 0


@pytest.mark.parametrize("version", [(1, 1), None])
@over_the_fake_driver
def test_a_capsule_that_nobody_takes_lets_go_of_the_memory(version):
    engine = engine_with_room_for(LARGE)
    for _ in range(3):
        send_to(engine, random_bytes(LARGE)).land().__dlpack__(max_version=version)


@pytest.mark.parametrize("version", [(1, 1), None])
@over_the_fake_driver
def test_a_capsule_that_was_taken_leaves_the_memory_to_its_taker(version):
    sent = random_bytes(SMALL)
    capsule = penstock.to_device(sent, "cuda:0").__dlpack__(max_version=version)
    taken = Taken(capsule)
    del capsule
    penstock.to_host(penstock.to_device([random_bytes(SMALL) for _ in range(3)], "cuda:0"))
    assert driver.read(0, taken.address, SMALL).bytes() == sent.tobytes()


@GATHERS
@pytest.mark.parametrize("consumer", ["a stream", "the default stream", "dlpack", "cuda_array_interface", "to_host"])
@over_the_fake_driver
def test_a_loaders_batch_is_there_for_its_consumer(gather, consumer):
    """For a stream that takes it, and for those who order nothing."""
    samples = random_bytes(64 * 1000).reshape(64, 1000)
    driver.delay_copies()
    loader = penstock.Loader(samples, 64, device="cuda:0", tuning=penstock.Tuning(gather=gather))
    batch = next(iter(loader))
    if consumer == "to_host":
        assert penstock.to_host(batch).tobytes() == samples.tobytes()
        return
    stream = 0 if consumer == "the default stream" else driver.stream()
    taken = take(batch, stream or None) if "stream" in consumer else None
    address = taken.address if taken else address_by(consumer, batch)
    assert driver.read(stream, address, samples.size).bytes() == samples.tobytes()


@GATHERS
@over_the_fake_driver
def test_a_loaders_batch_is_not_refilled_while_a_stream_reads_it(gather):
    samples = random_bytes(256 * 1000).reshape(256, 1000)
    driver.delay_work("cuMemcpyDtoHAsync", SOON_NS)
    stream, read = driver.stream(), []
    for batch in penstock.Loader(samples, 16, device="cuda:0", tuning=penstock.Tuning(gather=gather)):
        read.append(driver.read(stream, take(batch, stream).address, 16 * 1000))
        del batch
    assert b"".join(reading.bytes() for reading in read) == samples.tobytes()


@pytest.mark.parametrize("ends", ["close", "del"])
@over_the_fake_driver
def test_python_runs_while_a_loader_waits_for_its_end(ends):
    loader = penstock.Loader(random_bytes(256 * 1000).reshape(256, 1000), 16, device="cuda:0")
    stream = driver.stream()
    for _, batch in zip(range(4), loader, strict=False):
        take(batch, stream)
        driver.run_python(stream)
    del batch
    if ends == "close":
        loader.close()
    del loader


@over_the_fake_driver
def test_python_runs_while_memory_is_waited_for():
    engine = engine_with_room_for(LARGE)
    stream = driver.stream()
    for _ in range(2):
        array = send_to(engine, random_bytes(LARGE)).land()
        take(array, stream)
        driver.run_python(stream)
        del array


@over_the_fake_driver
def test_pin_memory_that_returns_nothing_is_explained():
    class Forgetful:
        def pin_memory(self):
            pass

    with pytest.raises(TypeError, match=r"Forgetful\.pin_memory\(\) returned None.*return self"):
        penstock.to_device(Forgetful(), "cuda:0")


@over_the_fake_driver
def test_bfloat16_has_no_name_in_the_cuda_array_interface():
    for batch in penstock.Loader(np.arange(12, dtype=np.uint8).reshape(4, 3), 4, device="cuda:0", to="bfloat16"):
        assert batch.dtype == "bfloat16" and not hasattr(batch, "__cuda_array_interface__")


@over_the_fake_driver
def test_packs_cross_the_link_without_the_room_behind_them():
    lengths = np.random.default_rng(1).integers(1, 60, 400)
    values = np.arange(lengths.sum(), dtype=np.uint16)
    data = {"ids": (values, np.concatenate([[0], np.cumsum(lengths)]))}
    loader = penstock.Loader(data, pack={"ids": 4096}, shuffle=True, to="int64", device="cuda:0")
    packs = [penstock.to_host(dict(batch)) for batch in loader]
    assert np.array_equal(np.sort(np.concatenate([pack["ids"] for pack in packs])), values)
    assert all(pack["cu_seqlens"][-1] == len(pack["ids"]) for pack in packs)
    assert loader.stats().link_bytes == values.nbytes + 4 * (len(lengths) + len(packs))
    with pytest.raises(penstock.InvalidArgument, match="leave out the residency"):
        penstock.Loader(data, pack={"ids": 4096}, residency="all", device="cuda:0")
