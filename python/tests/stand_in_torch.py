"""Stands in for PyTorch on the fake driver: the functions that penstock uses, with similar streams and allocator.

As PyTorch's does, the allocator hands memory out again at once: what was queued on the current stream comes first.
"""

import contextlib
import ctypes
import sys
import types

import dlpack
from fake_driver import driver

CPU, CUDA = 1, 2
UINT8, INT8 = (1, 8), (0, 8)


class Tensor:
    requires_grad = is_quantized = is_meta = False
    layout = "strided"

    def __init__(self, memory, address, shape, kind, place):
        self._memory = memory  # keeps it
        self.address, self.shape, self.dtype, self.place = address, shape, kind, place
        self.device = types.SimpleNamespace(type="cuda" if place[0] == CUDA else "cpu", index=place[1])

    def is_neg(self):
        return False

    def to(self, device, non_blocking):
        return f"moved to {device} by PyTorch"

    def stride(self):
        return (1,)

    def pin_memory(self):
        _fail("pin_memory")
        (count,) = self.shape
        address = driver.allocate_host(count)
        ctypes.memmove(address, self.address, count)
        copies.append(Tensor(None, address, self.shape, self.dtype, self.place))
        return copies[-1]

    def bytes(self):
        """The data of a tensor on the host."""
        assert self.place[0] == CPU
        return ctypes.string_at(self.address, self._memory.nbytes)


copies = []  # that were pinned
failures = {}  # what the next call of a function raises, by its name


def _fail(name):
    if name in failures:
        raise failures.pop(name)


def from_numpy(array):
    return Tensor(array, array.ctypes.data, array.shape, UINT8, (CPU, 0))


class Block:
    """Device memory of the allocator. It goes back there with the last tensor in it."""

    def __init__(self, count):
        idle = allocator.idle.setdefault(count, [])
        self.count, self.address = count, idle.pop() if idle else driver.allocate(count)
        allocator.used += count

    def __del__(self):
        allocator.used -= self.count
        allocator.idle[self.count].append(self.address)


class Allocator:
    def __init__(self):
        self.idle, self.used = {}, 0


allocator = Allocator()


def empty(count, dtype, device):
    assert dtype == UINT8 and device.startswith("cuda:")
    _fail("empty")
    block = Block(count)
    return Tensor(block, block.address, (count,), UINT8, (CUDA, int(device[5:])))


def to_dlpack(tensor):
    return dlpack.give(tensor, tensor.address, tensor.shape, *tensor.dtype, tensor.place)


def from_dlpack(capsule):
    _fail("from_dlpack")
    taken = dlpack.Taken(capsule)
    kind = (taken.code, taken.bits)
    kind = next((known for known in (UINT8, INT8) if known == kind), kind)  # types are compared by identity
    return Tensor(taken, taken.address, taken.shape, kind, taken.device)


class Stream:
    def __init__(self, handle):
        self.cuda_stream = handle


_current = [Stream(0)]


@contextlib.contextmanager
def current(handle):
    """Makes a stream the current one, as `torch.cuda.stream` does."""
    _current.append(Stream(handle))
    try:
        yield handle
    finally:
        _current.pop()


def install():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.empty, torch.uint8, torch.int8 = Tensor, empty, UINT8, INT8
    torch.strided = Tensor.layout
    torch.nn = types.SimpleNamespace(Module=type("Module", (), {}))
    torch.cuda = types.SimpleNamespace(
        current_stream=lambda device: _current[-1],
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
    )
    torch.utils = types.ModuleType("torch.utils")
    torch.utils.dlpack = types.ModuleType("torch.utils.dlpack")
    torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack = to_dlpack, from_dlpack
    torch.__path__ = torch.utils.__path__ = []
    modules = torch, torch.utils, torch.utils.dlpack
    sys.modules.update({module.__name__: module for module in modules})
