"""to_device and to_host."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._destination import Destination
from .._engines import engine_for, engine_of_gpu, host_engines, resolve
from .._errors import InvalidArgument
from . import outputs
from .nests import Expander


def expander_for(engine: _core.Engine) -> Expander:
    return Expander(f"cuda:{engine.index}" if engine.is_cuda else "cpu", sends=True)


def to_device(tree: Any, device: Any = "auto", *, group: Any = None, relay: Any = None) -> Any:
    """Copy the arrays in a nest to a device, in as few transfers as possible.

    Small arrays travel packed together. Large ones travel through pinned staging memory, and small ones with them, or
    directly if they are pinned. When the call returns, the sources may be changed.

    The result has the same structure, shapes, dtypes and (for arrays without gaps) strides. On a GPU results are
    PyTorch tensors if PyTorch is imported, otherwise `penstock.Array`. Later work of PyTorch's current stream waits for
    them; the host does not. On "host" tensors stay tensors, and NumPy arrays stay NumPy arrays. Arrays of one call
    share their memory, which is freed with the last of them. Numbers, strings, and arrays that are already on the
    device stay as they are, and so do objects without a `to(device)`, and containers of other types than dict, list and
    tuple in which nothing moves.

    Args:
        tree: Any nest of dict, list, tuple, named tuple, dataclass, other containers, or a registered type, around
            PyTorch tensors, NumPy arrays, and arrays of other libraries that support DLPack. Objects and containers
            with a `to(device)` are moved by it. Modules and tables are refused.
        device: "auto", "cuda", "cuda:1", "cpu" or "host", or a torch.device. "auto" is PyTorch's current GPU, otherwise
            the first one, otherwise the host. A list of devices, a ProcessGroup, or `penstock.relayed("cuda:0",
            over=["cuda:1"])` is the same as `group` and `relay`.
        group: A list of devices, GPUs only or host devices only. Each receives the whole nest, and the result is a list
            of nests. Each byte crosses one link: each device pulls a part, and pushes it on to the others. Devices that
            do not reach each other's memory pull all bytes themselves, and a warning in the log `penstock` names them.
            Or a ProcessGroup, whose processes call this together, with trees of the same structure, shapes, dtypes and
            strides. Each sends a part of the bytes to its own `device`, and copies the others' parts. That the arrays
            hold the same values is up to the caller. The call returns when the arrays are there.
        relay: A list of other devices, whose links help to fill `device`. They pull parts of the bytes into buffers of
            their own, and push them on. The less room their links have, the less they carry. "auto" takes all devices
            that reach the memory of `device`, and opens all GPUs that this process sees, which costs some hundred MB of
            memory on each. Nests of less than 1 MiB go over the device's own link, also with `group`.

    Raises:
        InvalidArgument: The device is unknown, the devices of a group do not fit, or the trees of a ProcessGroup
            differ.
        TypeError: An array cannot be sent. The error has its place.
        OutOfMemory, DeviceError: A device has no room, or fails.
        Error: Another process of a ProcessGroup ends or fails.

    Examples:
        >>> there = penstock.to_device({"x": images, "y": labels}, "auto")
        >>> there["x"].shape == images.shape
        True
    """
    destination = Destination(device, group, relay)
    flights = destination.native.send(tree, [expander_for(engine) for engine in destination.engines])
    flights.release_sources()
    return flights.land()


def to_host(tree: Any, *, out: Any = None, pinned: bool = False) -> Any:
    """Copy the arrays of a nest from devices to the host; blocks until they are there.

    The structure stays. PyTorch tensors become PyTorch tensors on the CPU, and other arrays become NumPy arrays. Arrays
    that are already on the host stay as they are. Each result has memory of its own. On a GPU the copies come after the
    work that is queued on PyTorch's current stream. Thread-safe.

    Args:
        tree: What `to_device` takes or gives.
        out: A nest of the same structure that receives the bytes, and is returned. Its arrays are PyTorch tensors on
            the CPU or NumPy arrays. They have the same shapes and dtypes, no gaps between their elements, and may be
            pinned. Arrays of `tree` that are on the host are copied too. If an array has other strides there, its
            source is put into that order first, on its device. What is not an array stays as it is in `out`. Others may
            not use `out` during the call. All of it is checked before anything is written; after a DeviceError its
            bytes are unspecified.
        pinned: If True, results lie in page-locked memory, to and from which copies run at the speed of the link.
            Arrays that are on the host are copied there, unless they are pinned. The memory is of the exact size, and
            of a pool of penstock, which uses it again once the device has done all work. A forked process does not have
            it. What only PyTorch can copy, such as a sparse tensor, is not pinned, and without a GPU nothing is. To pin
            takes longer than to copy: for repeated copies, pass an earlier result as `out`.

    Raises:
        InvalidArgument: An array of `out` is missing, has another shape or dtype, is read-only, is not on the host,
            shares memory with another, or is a tensor that requires a gradient outside of `torch.no_grad()`.
        TypeError: An array cannot be copied, or in `out` only PyTorch could. The error has its place.
        OutOfMemory, DeviceError: The host has no room, or the device fails.

    Examples:
        >>> there = penstock.to_device(images, "host:1")
        >>> assert (penstock.to_host(there) == images).all()
    """
    if out is None:
        engine = engine_for("auto") if pinned and resolve("auto") != "host" else None
        expander = Expander("cpu", sends=False, copies=engine is not None)
        return _core.fetch(tree, expander, host_engines(), engine_of_gpu, engine)
    if pinned:
        raise InvalidArgument("to_host copies into the arrays of out=. Leave `pinned` out, or pass pinned ones.")
    expander = Expander("cpu", sends=False, refuse=outputs.why_not, copies=True)
    _core.fetch_into(tree, out, expander, outputs.Outputs(), host_engines(), engine_of_gpu)
    return out
