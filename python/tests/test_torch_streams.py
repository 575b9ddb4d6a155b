"""The order between penstock's work and PyTorch's current stream, over the fake driver, with a stand-in for PyTorch.

test_cuda.py has its like on a GPU with PyTorch itself.
"""

import contextlib
import time

import pytest

import penstock
import safetensors_files as files
import stand_in_torch
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
    used_memory,
    wait_until_idle,
)
from penstock import _core
from penstock._engines import engine_for
from support import send_to

over_the_fake_driver_with_torch = over_the_fake_driver(torch=True)


@SIZES
@over_the_fake_driver_with_torch
def test_the_current_stream_waits_for_what_was_sent(count):
    sent = random_bytes(count)
    engine = engine_for("cuda:0")
    driver.delay_copies()
    flight = send_to(engine, sent)
    stream = driver.stream()
    with stand_in_torch.current(stream):
        tensor = flight.land()
    assert type(tensor) is stand_in_torch.Tensor and tensor.shape == (count,)
    assert driver.read(stream, tensor.address, count).bytes() == sent.tobytes()


@SIZES
@pytest.mark.parametrize("relay", [None, ["cuda:1"]])
@pytest.mark.parametrize("kind", ["array", "file"])
@over_the_fake_driver_with_torch
def test_memory_that_the_current_stream_still_reads_is_not_overwritten(tmp_path, count, kind, relay):
    stream, sent, read = driver.stream(), [random_bytes(count) for _ in range(4)], []
    for number, array in enumerate(sent):
        files.write(tmp_path / str(number), {"w": ("U8", (count,), array.tobytes())})
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    with stand_in_torch.current(stream):
        for number, array in enumerate(sent):
            if kind == "array":
                there = penstock.to_device(array, "cuda:0", relay=relay)
            else:
                there = penstock.load_safetensors(tmp_path / str(number), "cuda:0", relay=relay)["w"]
            read.append(driver.read(stream, there.address, count))
            del there  # the allocator hands its memory out again
    assert [reading.bytes() for reading in read] == [array.tobytes() for array in sent]


@SIZES
@over_the_fake_driver_with_torch
def test_to_host_waits_for_what_the_current_stream_writes(count):
    stream = driver.stream()
    driver.delay_work("cuMemsetD8Async", LATE_NS)
    tensor = stand_in_torch.empty(count, stand_in_torch.UINT8, "cuda:0")
    driver.fill(stream, tensor.address, 0xA5, count)
    with stand_in_torch.current(stream):
        assert penstock.to_host([tensor])[0].bytes() == b"\xa5" * count


@SIZES
@over_the_fake_driver_with_torch
def test_pinned_results_stay_while_a_copy_of_the_program_reads_them(count):
    stream, tensor = driver.stream(), stand_in_torch.empty(count, stand_in_torch.UINT8, "cuda:0")
    driver.fill(stream, tensor.address, 0xA5, count)
    copies, locked = driver.calls("cuMemcpyDtoHAsync"), driver.locked_bytes
    with stand_in_torch.current(stream):
        back = penstock.to_host([tensor], pinned=True)[0]
        assert back.bytes() == b"\xa5" * count and driver.calls("cuMemcpyDtoHAsync") == copies + 1
        before, other = locked(), stand_in_torch.empty(count, stand_in_torch.UINT8, "cuda:0")
        driver.delay_work("cuMemcpyHtoDAsync", LATE_NS)
        driver.copy_to_device(driver.stream(), other.address, back.address, count)
        del back
        driver.fill(stream, tensor.address, 0x5A, count)
        assert penstock.to_host([tensor], pinned=True)[0].bytes() == b"\x5a" * count and locked() == before
        assert penstock.to_host([other])[0].bytes() == b"\xa5" * count


@pytest.mark.parametrize("pinned", [True, False])
@SIZES
@over_the_fake_driver_with_torch
def test_parked_bytes_go_down_after_what_the_current_stream_writes(count, pinned):
    stream, block = driver.stream(), _core.ParkedBlock(engine_for("cuda:0"), 3 * count, pinned)
    here, there = (stand_in_torch.empty(count, stand_in_torch.UINT8, "cuda:0") for _ in range(2))
    driver.delay_work("cuMemsetD8Async", LATE_NS)
    driver.fill(stream, here.address, 0xA5, count)
    with stand_in_torch.current(stream):
        block.down([(here.address, count, count), (here.address, 0, count // 2)]).wait()
        block.up([(there.address, count, count)]).wait()
        assert driver.read(stream, there.address, count).bytes() == b"\xa5" * count


@pytest.mark.parametrize("pinned", [True, False])
@SIZES
@over_the_fake_driver_with_torch
def test_parked_bytes_come_back_after_what_the_current_stream_reads(count, pinned):
    stream, block = driver.stream(), _core.ParkedBlock(engine_for("cuda:0"), count, pinned)
    here, there = (stand_in_torch.empty(count, stand_in_torch.UINT8, "cuda:0") for _ in range(2))
    driver.fill(stream, here.address, 0xA5, count)
    driver.fill(stream, there.address, 0x5A, count)
    with stand_in_torch.current(stream):
        block.down([(here.address, 0, count)]).wait()
        driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
        reading = driver.read(stream, there.address, count)
        block.up([(there.address, 0, count)]).wait()
    assert reading.bytes() == b"\x5a" * count
    assert driver.read(stream, there.address, count).bytes() == b"\xa5" * count


@over_the_fake_driver_with_torch
def test_any_call_of_the_driver_may_fail_while_bytes_are_parked():
    """Either the bytes are right, or there is an error; and then all of it succeeds."""
    engine, stream = _core.Engine("cuda:0"), driver.stream()
    here, there = (stand_in_torch.empty(SMALL, stand_in_torch.UINT8, "cuda:0") for _ in range(2))
    driver.fill(stream, here.address, 0xA5, SMALL)

    def park():
        block = _core.ParkedBlock(engine, SMALL, True)
        block.down([(here.address, 0, SMALL)]).wait()
        block.up([(there.address, 0, SMALL)]).wait()

    with stand_in_torch.current(stream):
        for turn in range(1, 1000):
            driver.fill(stream, there.address, 0, SMALL)
            driver.fail_any(turn, 999)
            done = False
            with contextlib.suppress(penstock.Error):
                park()
                done = True
            failed = driver.failed()
            driver.reset()
            if not done:
                park()
            assert driver.read(stream, there.address, SMALL).bytes() == b"\xa5" * SMALL
            if not failed:
                break
    assert 5 < turn < 999
    engine.close()


@over_the_fake_driver_with_torch
def test_a_passage_that_is_dropped_is_waited_for():
    stream, block = driver.stream(), _core.ParkedBlock(engine_for("cuda:0"), LARGE, True)
    here = stand_in_torch.empty(LARGE, stand_in_torch.UINT8, "cuda:0")
    driver.delay_work("cuMemcpyHtoDAsync", LATE_NS)
    with stand_in_torch.current(stream):
        block.up([(here.address, 0, LARGE)])
    driver.fill(stream, here.address, 0xA5, LARGE)  # on memory that is free again
    driver.synchronize(stream)
    time.sleep(2 * LATE_NS / 1e9)
    assert driver.read(stream, here.address, LARGE).bytes() == b"\xa5" * LARGE


@pytest.mark.parametrize("waits", ["to_device", "to_host", "close"])
@over_the_fake_driver_with_torch
def test_python_runs_while_penstock_waits(waits):
    engine, sent = _core.Engine("cuda:0"), random_bytes(ENDLESS)
    penstock.to_device(sent[:SMALL], "cuda:0")
    with stand_in_torch.current(driver.stream()) as stream:
        # A first transfer may take a while before anything waits.
        driver.run_python(stream, 8 * LATE_NS if waits == "close" else LATE_NS)
        if waits == "to_device":
            penstock.to_device(sent, "cuda:0")
        elif waits == "to_host":
            penstock.to_host(stand_in_torch.empty(SMALL, stand_in_torch.UINT8, "cuda:0"))
        else:
            send_to(engine, sent)
    engine.close()


@pytest.mark.parametrize("lands", [False, True])
@over_the_fake_driver_with_torch
def test_memory_is_pytorchs_again_when_the_order_of_the_streams_keeps_it(lands):
    before = used_memory(stand_in_torch.allocator, engine_for("cuda:0"))
    engine, sent = engine_for("cuda:0"), random_bytes(ENDLESS)
    driver.delay_copies(SOON_NS if lands else 4 * LATE_NS)
    flight = send_to(engine, sent)
    if lands:
        flight.land()
        assert stand_in_torch.allocator.used == before, "the current stream waits for the copies"
    del flight
    assert lands or stand_in_torch.allocator.used > before, "nothing waits for the copies"
    driver.delay_copies(0)
    wait_until_idle(engine)
    assert stand_in_torch.allocator.used == before


@over_the_fake_driver_with_torch
def test_an_allocator_without_memory_raises_an_error_of_both():
    failures = stand_in_torch.failures
    failures["empty"] = MemoryError("Tried to allocate 20 GiB.\nException raised from malloc at x.cpp:1")
    with pytest.raises(penstock.OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate 20 GiB\.$"):
        penstock.to_device(random_bytes(SMALL), "cuda:0")
    failures["empty"] = KeyError("something else")
    with pytest.raises(KeyError, match="something else"):
        penstock.to_device(random_bytes(SMALL), "cuda:0")


@over_the_fake_driver_with_torch
def test_memory_of_a_result_that_pytorch_does_not_take_is_its_own_again():
    before = used_memory(stand_in_torch.allocator, engine_for("cuda:0"))
    stand_in_torch.failures["from_dlpack"] = RuntimeError("no tensor today")
    with pytest.raises(RuntimeError, match="no tensor today"):
        penstock.to_device(random_bytes(SMALL), "cuda:0")
    wait_until_idle(engine_for("cuda:0"))
    assert stand_in_torch.allocator.used == before


@over_the_fake_driver_with_torch
def test_tensors_on_a_gpu_stay_there_or_are_moved_by_pytorch():
    tensor = stand_in_torch.empty(SMALL, stand_in_torch.UINT8, "cuda:1")
    assert penstock.to_device([tensor], "cuda:1")[0] is tensor
    assert penstock.to_device([tensor], "cuda:0") == ["moved to cuda:0 by PyTorch"]


@over_the_fake_driver_with_torch
def test_pytorch_pins_its_tensors_if_it_can():
    engine, copies = engine_for("cuda:0"), stand_in_torch.copies
    copies.clear()
    arrays = [random_bytes(LARGE) for _ in range(3)]
    tensors = [stand_in_torch.from_numpy(array) for array in arrays[:2]]

    def arrive():
        flight = send_to(engine, [*tensors, arrays[2]], True)
        with stand_in_torch.current(driver.stream()) as stream:
            landed = flight.land()
            read = [driver.read(stream, tensor.address, LARGE) for tensor in landed]
        return [reading.bytes() for reading in read] == [array.tobytes() for array in arrays]

    assert arrive() and len(copies) == 2
    stand_in_torch.failures["pin_memory"] = RuntimeError("no memory to pin")
    assert arrive() and len(copies) == 3
    stand_in_torch.failures["pin_memory"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        arrive()


@over_the_fake_driver_with_torch
def test_a_loader_refuses_what_is_on_a_gpu_already():
    with pytest.raises(penstock.InvalidArgument, match="already"):
        penstock.Loader(stand_in_torch.empty(SMALL, stand_in_torch.UINT8, "cuda:0"), 8, device="cuda:0")


@GATHERS
@over_the_fake_driver_with_torch
def test_the_current_stream_waits_for_a_loaders_batch(gather):
    samples = random_bytes(64 * 1000).reshape(64, 1000)
    stream = driver.stream()
    driver.delay_copies()
    with stand_in_torch.current(stream):
        loader = penstock.Loader(samples, 64, device="cuda:0", tuning=penstock.Tuning(gather=gather))
        batch = next(iter(loader))
    assert driver.read(stream, batch.address, samples.size).bytes() == samples.tobytes()


@GATHERS
@over_the_fake_driver_with_torch
def test_a_loaders_batch_is_not_refilled_while_the_current_stream_reads_it(gather):
    samples = random_bytes(256 * 1000).reshape(256, 1000)
    driver.delay_work("cuMemcpyDtoHAsync", SOON_NS)
    stream, read = driver.stream(), []
    with stand_in_torch.current(stream):
        for batch in penstock.Loader(samples, 16, device="cuda:0", tuning=penstock.Tuning(gather=gather)):
            read.append(driver.read(stream, batch.address, 16 * 1000))
            del batch
    assert b"".join(reading.bytes() for reading in read) == samples.tobytes()
