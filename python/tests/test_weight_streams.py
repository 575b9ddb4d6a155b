"""load_safetensors and save_safetensors without PyTorch, and over the fake driver: what they make, in what order."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import penstock
import safetensors_files as files
import stand_in_torch
from fake_driver import LATE_NS, SOON_NS, driver, over_the_fake_driver, used_memory, wait_until_idle
from penstock import _core
from penstock._destination import Destination
from penstock._engines import engine_for

over_the_fake_driver_with_torch = over_the_fake_driver(torch=True)

NUMPYS = [name for name, dtype in files.TYPES.items() if not dtype.startswith("V")]


# Without PyTorch, on the host.


@over_the_fake_driver
def test_on_the_host_without_pytorch_arrays_are_numpys(tmp_path):
    tensors = files.mixed(np.random.default_rng(), NUMPYS)
    loaded = penstock.load_safetensors(files.write(tmp_path / "model", tensors), "host")
    assert "torch" not in sys.modules
    assert list(loaded) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        array = loaded[name]
        assert type(array) is np.ndarray and array.flags.writeable
        assert (array.dtype, array.shape, array.tobytes()) == (np.dtype(files.TYPES[dtype]), shape, data)
        assert not data or array.ctypes.data % 512 == 0


@over_the_fake_driver
def test_types_that_only_pytorch_has_are_refused_before_anything_is_read(tmp_path):
    for number, dtype in enumerate(["F8_E4M3", "F8_E5M2FNUZ", "F4", "F6_E2M3", "C64"]):
        path = files.write(
            tmp_path / f"{number}",
            {"rare": (dtype, (8,), bytes(8 * 8)[: {"F4": 4, "F6_E2M3": 6, "C64": 64}.get(dtype, 8)])},
        )
        places = ["cuda:0"] if dtype == "C64" or (_has_ml_dtypes() and dtype.startswith("F8")) else ["host", "cuda:0"]
        for device in places:
            with pytest.raises(penstock.Unsupported, match=f"'rare' is of type {dtype}: import torch"):
                penstock.load_safetensors(path, device)
    if not _has_ml_dtypes():
        path = files.write(tmp_path / "half", {"half": ("BF16", (2,), b"abcd")})
        load = _core.WeightLoad(Destination("host").native, [str(path)], None)
        with pytest.raises(penstock.Unsupported, match="NumPy has no bfloat16: import torch"):
            load.start()


@over_the_fake_driver
def test_complex_numbers_and_8_bit_floats_of_ml_dtypes(tmp_path):
    values = np.array([[1 + 2j, 3j], [0, -1]], np.complex64)
    one = files.write(
        tmp_path / "one", {"c": ("C64", (2, 2), values.tobytes()), "s": ("C64", (), values[0, 0].tobytes())}
    )
    loaded = penstock.load_safetensors(one, "host")
    assert loaded["c"].dtype == np.complex64 and loaded["c"].tolist() == values.tolist()
    assert loaded["s"].shape == () and loaded["s"] == 1 + 2j
    penstock.save_safetensors(loaded, tmp_path / "two", metadata=None)
    assert files.content(tmp_path / "two") == files.content(one)
    if _has_ml_dtypes():
        import ml_dtypes

        eight = files.write(tmp_path / "eight", {"e": ("F8_E5M2", (2, 2), bytes([0x3C, 0xBC, 0x40, 0]))})
        array = penstock.load_safetensors(eight, "host")["e"]
        assert array.dtype == ml_dtypes.float8_e5m2 and array.astype(np.float32).tolist() == [[1, -1], [2, 0]]


@over_the_fake_driver
def test_without_pytorch_numpy_converts_on_the_host_alone(tmp_path):
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, -0.1], np.float32)  # halfway between two of float16
    tensors = {"w": ("F32", (3,), values.tobytes()), "i": ("I64", (), (2**60 + 1).to_bytes(8, "little"))}
    path = files.write(tmp_path / "a", tensors)
    loaded = penstock.load_safetensors(path, "host", dtype="float16")
    assert loaded["w"].dtype == np.float16 and loaded["w"].tolist() == values.astype(np.float16).tolist()
    assert loaded["w"][1] == 1 + 2**-9 and loaded["i"] == 2**60 + 1
    assert all(array.base is None for array in loaded.values()), "none keeps the block"
    with pytest.raises(penstock.Unsupported, match="needs PyTorch: import torch before"):
        penstock.load_safetensors(path, "cuda:0", dtype="float16")
    if _has_ml_dtypes():
        assert str(penstock.load_safetensors(path, "host", dtype="bfloat16")["w"].dtype) == "bfloat16"
    else:
        with pytest.raises(penstock.Unsupported, match="bfloat16: import torch, or install ml_dtypes"):
            penstock.load_safetensors(path, "host", dtype="bfloat16")


def _has_ml_dtypes():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


# On a GPU, over the fake driver.


@over_the_fake_driver
def test_on_a_gpu_without_pytorch_arrays_are_penstocks(tmp_path):
    tensors = files.mixed(np.random.default_rng(), [*NUMPYS, "BF16"])
    tensors["large"] = ("U8", (9_000_001,), np.random.default_rng().bytes(9_000_001))
    driver.delay_copies(SOON_NS)
    loaded = penstock.load_safetensors(files.write(tmp_path / "model", tensors), "cuda:0")
    assert list(loaded) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        assert type(loaded[name]) is penstock.Array and loaded[name].shape == shape
        if dtype == "BF16":
            assert loaded[name].dtype == "bfloat16"
        else:
            array = penstock.to_host(loaded[name])
            assert (array.dtype, array.tobytes()) == (np.dtype(files.TYPES[dtype]), data)


@over_the_fake_driver_with_torch
def test_the_current_stream_sees_the_bytes(tmp_path):
    tensors = {name: ("U8", (count,), os.urandom(count)) for name, count in [("a", 1), ("b", 3_000_001), ("c", 513)]}
    path = files.write(tmp_path / "model", tensors)
    driver.delay_copies(SOON_NS)
    stream = driver.stream()
    with stand_in_torch.current(stream):
        loaded = penstock.load_safetensors(path, "cuda:0")
        read = [driver.read(stream, tensor.address, tensor.shape[0]) for tensor in loaded.values()]
    assert all(type(tensor) is stand_in_torch.Tensor for tensor in loaded.values())
    assert [reading.bytes() for reading in read] == [data for _, _, data in tensors.values()]
    del loaded
    wait_until_idle(engine_for("cuda:0"))


@over_the_fake_driver_with_torch
def test_other_threads_run_while_a_process_of_a_group_begins_to_read(tmp_path):
    path = files.write(tmp_path / "model", {"w": ("U8", (1000,), os.urandom(1000))})
    engine = engine_for("cuda:0")
    place = penstock.ProcessGroup(rank=0, processes=1).place(engine)
    load = _core.WeightLoad(place, [str(path)], None)
    load.start()
    assert not load.fill_with_ranks()
    ticks, over = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not over.wait(0.01):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    driver.delay("cuEventRecord", 1_000_000_000)
    before = ticks
    load.send_all()
    during = ticks - before
    driver.delay("cuEventRecord", 0)
    over.set()
    ticker.join()
    load.wait()
    load.finish()
    assert during > 3


@over_the_fake_driver_with_torch
def test_memory_is_pytorchs_again_after_a_failure(tmp_path):
    path = files.write(tmp_path / "model", {"w": ("U8", (6_000_000,), os.urandom(6_000_000))})
    before = used_memory(stand_in_torch.allocator, engine_for("cuda:0"))
    driver.fail("cuMemcpyHtoDAsync", 2, 999)
    with pytest.raises(penstock.DeviceError):
        penstock.load_safetensors(path, "cuda:0")
    stand_in_torch.failures["empty"] = MemoryError("Tried to allocate 20 GiB.")
    with pytest.raises(penstock.OutOfMemory, match="20 GiB"):
        penstock.load_safetensors(path, "cuda:0")
    stand_in_torch.failures["from_dlpack"] = RuntimeError("no tensor today")
    with pytest.raises(RuntimeError, match="no tensor today"):
        penstock.load_safetensors(path, "cuda:0")
    assert used_memory(stand_in_torch.allocator, engine_for("cuda:0")) == before
    assert penstock.load_safetensors(path, "cuda:0")["w"].shape == (6_000_000,)


@over_the_fake_driver
def test_a_device_that_is_full_says_so_and_the_next_load_works(tmp_path):
    small = ("U8", (1_000_000,), os.urandom(1_000_000))
    paths = [
        files.write(tmp_path / "small", {"s": small}),
        files.write(tmp_path / "large", {"l": ("U8", (96 << 20,), bytes(96 << 20))}),
    ]
    penstock.load_safetensors(paths[0], "cuda:0")  # what the engine itself keeps is there from now on
    gc.collect()
    wait_until_idle(engine_for("cuda:0"))
    before = driver.device_bytes()  # of all devices
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    driver.set_memory(total.value - free.value + (64 << 20))
    for _ in range(2):
        with pytest.raises(penstock.OutOfMemory, match=r"memory of cuda:0 cannot give 96 MiB: .* and 64 MiB are free"):
            penstock.load_safetensors(paths, "cuda:0")
        gc.collect()
        wait_until_idle(engine_for("cuda:0"))
        assert driver.device_bytes() == before
    loaded = penstock.load_safetensors(paths[0], "cuda:0")
    assert penstock.to_host(loaded["s"]).tobytes() == small[2]


@over_the_fake_driver_with_torch
def test_memory_of_a_load_that_is_dropped_is_written_no_more(tmp_path):
    data = os.urandom(3_000_000)
    path = files.write(tmp_path / "model", {"w": ("U8", (len(data),), data)})
    driver.delay_copies(SOON_NS)
    load = _core.WeightLoad(Destination("cuda:0").native, [str(path)], None)
    load.start()
    del load
    gc.collect()
    other = stand_in_torch.empty(3_000_320, stand_in_torch.UINT8, "cuda:0")  # the same memory
    stream = driver.stream()
    driver.fill(stream, other.address, 7, 3_000_320)
    driver.synchronize(stream)
    time.sleep(0.1)
    assert driver.read(stream, other.address, 3_000_320).bytes() == b"\7" * 3_000_320


@over_the_fake_driver_with_torch
def test_ctrl_c_is_heard_while_it_loads(tmp_path):
    path = files.write(tmp_path / "model", {"w": ("U8", (40_000_000,), bytes(40_000_000))})
    driver.delay_work("cuMemcpyHtoDAsync", 4 * LATE_NS)  # the whole file takes seconds

    def interrupt():
        while not any(thread.name == "penstock-load" for thread in threading.enumerate()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        penstock.load_safetensors(path, "cuda:0")
    driver.reset()
    loaded = penstock.load_safetensors(path, "cuda:0")
    assert driver.read(0, loaded["w"].address, 40_000_000).bytes() == bytes(40_000_000)


@over_the_fake_driver
def test_a_closed_engine_says_so(tmp_path):
    path = files.write(tmp_path / "model", {"w": ("U8", (1,), b"a")})
    for spec in ["host", "cuda:0"]:
        engine = _core.Engine(spec)
        engine.close()
        with pytest.raises(penstock.Closed, match="was closed"):
            _core.WeightLoad(_core.Destination.device(engine), [str(path)], None).start()


# Saving


@over_the_fake_driver
def test_arrays_of_a_gpu_may_change_once_the_call_returns(tmp_path):
    data = {str(n): np.random.default_rng().integers(0, 256, n, dtype=np.uint8) for n in (1, 1000, 300_000, 5_000_000)}
    there = penstock.to_device(data, "cuda:0")
    stream = driver.stream()
    driver.delay_work("cuMemcpyDtoHAsync", LATE_NS)
    pending = penstock.save_safetensors(there, tmp_path / "model", wait=False)
    for name, array in there.items():
        driver.fill(stream, array.__cuda_array_interface__["data"][0], 7, int(name))
    driver.synchronize(stream)
    pending.wait()
    read, _ = files.content(tmp_path / "model")
    assert {name: values for name, (_, _, values) in read.items()} == {name: a.tobytes() for name, a in data.items()}


@over_the_fake_driver
def test_the_memory_is_locked_once(tmp_path):
    array = np.arange(12_500_000)  # more than the pool has left of other tests
    there = penstock.to_device({"a": array}, "cuda:0")
    calls = []
    for step in ("9", "10", "11"):
        penstock.save_safetensors(there, tmp_path / "model", metadata={"step": step})
        calls.append([driver.calls(name) for name in ("cuMemHostRegister", "cuMemHostAlloc")])
    assert any(calls[0]) and calls[1] == calls[2] == calls[0]
    assert files.content(tmp_path / "model")[0]["a"][2] == array.tobytes()
