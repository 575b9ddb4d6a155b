"""The errors that penstock raises. Each message says what happened and what to do about it."""

from __future__ import annotations

import functools
import os
import sys


class Error(Exception):
    """Base of penstock's own errors.

    Examples:
        >>> issubclass(penstock.OutOfMemory, penstock.Error), issubclass(penstock.OutOfMemory, MemoryError)
        (True, True)
    """


class InvalidArgument(Error, ValueError):
    """An argument has no meaning: an unknown device, a wrong shape.

    Examples:
        >>> penstock.to_device(images, "gpu")
        Traceback (most recent call last):
        penstock.InvalidArgument: unknown device
    """


class Unsupported(Error, RuntimeError):
    """The machine, the kernel or a limit refuses a call that works elsewhere.

    Examples:
        >>> try:
        ...     weights = penstock.load_safetensors(model_file, "host", dtype="float16")
        ... except penstock.Unsupported:  # by the library of the tensors
        ...     weights = penstock.load_safetensors(model_file, "host")
    """


class OutOfMemory(Error, MemoryError):
    """A request did not fit. If PyTorch is imported, it is also a `torch.OutOfMemoryError`.

    Attributes:
        asked: Bytes that were asked for; like the others, 0 if unknown.
        used: Bytes that are in use of the pool or device that refused.
        free: Bytes that are free there.

    Examples:
        >>> penstock.Loader(images, batch_size=64, device="host", device_budget_bytes=1000)
        Traceback (most recent call last):
        penstock.OutOfMemory: device_budget_bytes
    """

    asked: int = 0
    used: int = 0
    free: int = 0


class DeviceError(Error, RuntimeError):
    """A device or its driver failed.

    Attributes:
        name: The driver's name of the error.
        call: The function that failed.
        code: The error's number.

    Examples:
        >>> try:
        ...     there = penstock.to_device(images, "auto")
        ... except penstock.DeviceError as error:
        ...     print(error.name, error.call, error.code)
    """

    name: str = ""
    call: str = ""
    code: int = 0


class FileError(Error, OSError):
    """The system refused to open, read or write a file.

    It is also what Python raises for that reason: FileNotFoundError, PermissionError, IsADirectoryError.
    """

    def __str__(self) -> str:
        return str(self.args[0])


class Closed(Error, RuntimeError):
    """The object was closed before the work was done.

    Examples:
        >>> closed = penstock.Loader(images, 64, device="host")
        >>> closed.close()
        >>> next(iter(closed))
        Traceback (most recent call last):
        penstock.Closed: This Loader is closed.
    """


def note(error: BaseException, text: str) -> None:
    """Adds a line to what Python prints of the exception."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
        return
    while True:  # Python 3.10 prints causes
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if earlier is None:
            error.__cause__ = Error(text)
            return
        error = earlier


class NotShardedWarning(UserWarning):
    """Several processes train together, and each gets all samples. The message says what to write.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", penstock.NotShardedWarning)  # let a job fail
    """


def out_of_memory(message: str) -> OutOfMemory:
    """An OutOfMemory. If PyTorch is imported, it is also PyTorch's OutOfMemoryError."""
    base = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return OutOfMemory(message) if base is None else _torch_out_of_memory(base)(message)


def file_error(message: str, code: int, file: str | os.PathLike) -> FileError:
    """A FileError of an errno, which is also Python's error for it."""
    error = _of_errno(type(OSError(code, "")))(message)
    error.errno, error.strerror, error.filename = code, os.strerror(code), os.fspath(file)
    return error


@functools.cache
def _of_errno(base: type[OSError]) -> type[FileError]:
    def reduce(self: FileError) -> tuple:
        return file_error, (*self.args, self.errno, self.filename)

    return type("FileError", (FileError, base), {"__module__": "penstock._errors", "__reduce__": reduce})


def allocator_out_of_memory(error: BaseException) -> OutOfMemory:
    """The error of a framework's allocator as an OutOfMemory, without its C++ frames."""
    text = str(error).split("\nException raised from")[0].strip()
    return out_of_memory(text if "out of memory" in text else f"CUDA out of memory. {text}")


@functools.cache
def _torch_out_of_memory(base: type[Exception]) -> type[OutOfMemory]:
    def reduce(self: OutOfMemory) -> tuple:
        return out_of_memory, self.args, self.__dict__

    return type("OutOfMemory", (OutOfMemory, base), {"__module__": "penstock", "__reduce__": reduce})
