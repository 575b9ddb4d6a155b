"""Tests over the fake driver of the C++ tests: its script, and the calls of another library on the device.

A test marked by `over_the_fake_driver` runs in another process, where the driver that penstock finds is the fake one:
PENSTOCK_FAKE_DRIVER names that library (tools/python.sh sets it to the one that the C++ tests have built).
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import multiprocessing
import os
import pathlib
import signal
import tempfile
import time
import traceback

import numpy as np
import pytest

LIBRARY = os.environ.get("PENSTOCK_FAKE_DRIVER", "")
PATIENCE_S = 300

# Bytes of small and large arrays, and of one that does not fit staging memory: when it was sent, the driver does not
# have all of it yet.
SMALL, LARGE, ENDLESS = 1000, 3 << 20, 24 << 20
SIZES = pytest.mark.parametrize("count", [SMALL, LARGE])
GATHERS = pytest.mark.parametrize("gather", ["host", "zero-copy", "copy-engine"])
LATE_NS, SOON_NS = 50_000_000, 5_000_000


def random_bytes(count):
    return np.random.default_rng().integers(0, 256, count, dtype=np.uint8)


def wait_until_idle(engine):
    while engine.in_flight():
        time.sleep(0.001)


def used_memory(allocator, engine):
    """What a framework's allocator has given out, once nothing of earlier work keeps any."""
    gc.collect()
    wait_until_idle(engine)
    return allocator.used


@functools.cache
def folder() -> tempfile.TemporaryDirectory:
    """A folder where the fake driver and, if it was built, the fake nvJPEG have the names of the real ones."""
    made = tempfile.TemporaryDirectory()
    driver = pathlib.Path(LIBRARY).resolve()
    pathlib.Path(made.name, "libcuda.so.1").symlink_to(driver)
    pathlib.Path(made.name, "libnvjpeg.so.13").symlink_to(driver.with_name("libfake_nvjpeg.so"))
    return made


def library_path() -> str:
    """LD_LIBRARY_PATH of programs over the fake driver. Skips the test if it was not built."""
    if not LIBRARY:
        pytest.skip("PENSTOCK_FAKE_DRIVER is not set")
    return folder().name


def over_the_fake_driver(test=None, *, torch=False):
    """Runs the test in another process. With `torch`, PyTorch's stand-in is imported there."""
    if test is None:
        return functools.partial(over_the_fake_driver, torch=torch)

    @functools.wraps(test)
    def run(**arguments):
        library_path()
        _worker(torch).run(test.__module__, test.__name__, arguments)

    return run


class Worker:
    """A process that runs tests, one after the other."""

    def __init__(self, torch):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, torch), daemon=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_LIBRARY_PATH", library_path())
            self._process.start()
        theirs.close()

    def run(self, module, name, arguments):
        self._connection.send((module, name, arguments))
        try:
            failure = self._connection.recv() if self._connection.poll(PATIENCE_S) else self._end("It does not end")
        except (EOFError, OSError):
            failure = self._end("Its process ended")
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    def _end(self, why):
        """Says how the process ended; the next test has a new process."""
        self._process.kill()
        self._process.join()
        _worker.cache_clear()
        return f"{why}: {self._process.exitcode}"


_worker = functools.cache(Worker)


def _serve(connection, torch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored
    driver.open()
    if torch:
        import stand_in_torch

        stand_in_torch.install()
    with contextlib.suppress(EOFError):
        while True:
            module, name, arguments = connection.recv()
            gc.collect()  # or what earlier tests have left goes in the midst of this one, which may count it
            driver.reset()
            failure = None
            try:
                getattr(importlib.import_module(module), name).__wrapped__(**arguments)
            except BaseException:
                failure = traceback.format_exc()
            connection.send(failure)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _do_nothing(_):
    pass


class Driver:
    """The fake driver's script by its own names (`driver.delay_work("cuMemcpyHtoDAsync", nanoseconds)`: see
    tests/fake_driver/fake_cuda.hpp), and another user of the device: streams, and what it queues on them."""

    def open(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._get = self._library["cuGetProcAddress_v2"]
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent", context)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        control = self._library["fake_cuda_" + name]
        control.restype = ctypes.c_long

        def steer(*arguments):
            return control(*(a.encode() if isinstance(a, str) else ctypes.c_longlong(a) for a in arguments))

        return steer

    def call(self, name, *arguments):
        entry = ctypes.c_void_p()
        assert self._get(name.encode(), ctypes.byref(entry), 13000, ctypes.c_ulonglong(0), None) == 0, name
        result = ctypes.CFUNCTYPE(ctypes.c_int)(entry.value)(*arguments)
        assert result == 0, f"{name}: {result}"

    def delay_copies(self, nanoseconds=LATE_NS):
        """Makes copies to the device start late. A consumer that does not wait for them finds other bytes."""
        for function in ("cuMemcpyHtoDAsync", "cuMemcpyBatchAsync", "cuLaunchKernel"):
            self.delay_work(function, nanoseconds)

    def leave_room(self, count):
        """Gives devices the memory that is used on the first, and `count` bytes more."""
        free, whole = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(whole))
        self.set_memory(whole.value - free.value + count)

    def stream(self):
        """The handle of a new stream, which stays."""
        handle = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(handle), 1, 0)
        return handle.value

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def allocate(self, count):
        """The address of device memory, which stays."""
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def allocate_host(self, count):
        """The address of locked memory, which stays."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(count), 0)
        return address.value

    def read(self, stream, address, count):
        """Queues a copy from device memory. It copies the bytes that are there when its turn comes."""
        host = self.allocate_host(count)
        self.call(
            *("cuMemcpyDtoHAsync", ctypes.c_void_p(host), ctypes.c_ulonglong(address)),
            *(ctypes.c_size_t(count), ctypes.c_void_p(stream)),
        )
        return Reading(self, stream, host, count)

    def copy_to_device(self, stream, address, source, count):
        """Queues a copy from locked memory."""
        self.call(
            *("cuMemcpyHtoDAsync", ctypes.c_ulonglong(address), ctypes.c_void_p(source)),
            *(ctypes.c_size_t(count), ctypes.c_void_p(stream)),
        )

    def fill(self, stream, address, value, count):
        """Queues a write to device memory."""
        self.call(
            *("cuMemsetD8Async", ctypes.c_ulonglong(address), ctypes.c_ubyte(value)),
            *(ctypes.c_size_t(count), ctypes.c_void_p(stream)),
        )

    def run_python(self, stream, nanoseconds=LATE_NS):
        """Queues a function that needs the interpreter's lock, after a while."""
        self.delay_work("cuLaunchHostFunc", nanoseconds)
        self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), _do_nothing, None)

    @contextlib.contextmanager
    def held(self, stream):
        """Work queued on `stream` meanwhile waits for the end of the block."""
        word, other = self.allocate(4), self.stream()
        self.fill(other, word, 0, 4)
        self.synchronize(other)
        self.call("cuStreamWaitValue32", ctypes.c_void_p(stream), ctypes.c_ulonglong(word), 1, 0)
        try:
            yield
        finally:
            self.fill(other, word, 1, 4)


class Reading:
    """Bytes on their way from the device."""

    def __init__(self, driver, stream, host, count):
        self._driver, self._stream, self._host, self._count = driver, stream, host, count

    def bytes(self):
        self._driver.synchronize(self._stream)
        return ctypes.string_at(self._host, self._count)


driver = Driver()
