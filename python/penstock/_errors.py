"""The errors that penstock raises. Each message says what happened and what to do about it."""


class Error(Exception):
    """Root of penstock's own errors."""


class InvalidArgument(Error, ValueError):
    """Something was passed that cannot mean anything: an unknown device, a wrong shape."""


class Unsupported(Error, RuntimeError):
    """The machine, the kernel or a limit forbids what was asked; elsewhere the same call works."""


class OutOfMemory(Error, MemoryError):
    """A request did not fit. `asked`, `used` and `free` are bytes of the pool or device that refused."""

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
