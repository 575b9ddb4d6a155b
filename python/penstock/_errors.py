"""The errors that penstock raises. Each message says what happened and what to do about it."""

from __future__ import annotations

import functools
import sys


class Error(Exception):
    """Root of penstock's own errors."""


class InvalidArgument(Error, ValueError):
    """Something was passed that cannot mean anything: an unknown device, a wrong shape."""


class Unsupported(Error, RuntimeError):
    """The machine, the kernel or a limit forbids what was asked; elsewhere the same call works."""


class OutOfMemory(Error, MemoryError):
    """A request did not fit. `asked`, `used` and `free` are bytes of the pool or device that refused, 0 if unknown.

    If PyTorch is imported, it is a `torch.OutOfMemoryError` too, which is what batch-size finders catch.
    """

    asked: int = 0
    used: int = 0
    free: int = 0


class DeviceError(Error, RuntimeError):
    """A device or its driver failed. `name` is the driver's word for it, `call` the function, `code` its number."""

    name: str = ""
    call: str = ""
    code: int = 0


class Closed(Error, RuntimeError):
    """The object was closed before the work was done."""


class NotShardedWarning(UserWarning):
    """Several processes train together, and each is given all samples. The message says what to write."""


def out_of_memory(message: str) -> OutOfMemory:
    """An OutOfMemory; if PyTorch is imported, one that is PyTorch's as well."""
    base = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return OutOfMemory(message) if base is None else _torch_out_of_memory(base)(message)


def allocator_out_of_memory(error: BaseException) -> OutOfMemory:
    """What a framework's allocator raised, as an OutOfMemory without its C++ frames."""
    text = str(error).split("\nException raised from")[0].strip()
    return out_of_memory(text if "out of memory" in text else f"CUDA out of memory. {text}")


@functools.cache
def _torch_out_of_memory(base: type[Exception]) -> type[OutOfMemory]:
    def reduce(self: OutOfMemory) -> tuple:
        return out_of_memory, self.args, self.__dict__

    return type("OutOfMemory", (OutOfMemory, base), {"__module__": "penstock", "__reduce__": reduce})
