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

    `tree` is any nest of dict, list, tuple, named tuple, dataclass, other containers, or a registered type, around
    PyTorch tensors, NumPy arrays, and arrays of other libraries that support DLPack. Small arrays travel packed
    together. Large ones travel through pinned staging memory, and small ones with them, or directly if they are pinned.
    The result has the same structure, shapes, dtypes and (for arrays without gaps) strides. Numbers, strings, and
    arrays that are already on the device stay as they are, and so do containers of other types than dict, list and
    tuple in which nothing moves. Objects and containers are moved by their own `to(device)`. Objects that have none
    stay as they are. Modules and tables are refused.

    On a GPU results are PyTorch tensors if PyTorch is imported, otherwise `penstock.Array`. Later work of PyTorch's
    current stream waits for them; the host does not. On "host" tensors stay tensors, and NumPy arrays stay NumPy
    arrays. When the call returns, the sources may be changed. Arrays of one call share their memory, which is freed
    with the last of them.

    `device`: "auto", "cuda", "cuda:1", "cpu" or "host", or a torch.device. A list of devices, a ProcessGroup, or
    `penstock.relayed("cuda:0", over=["cuda:1"])` is the same as `group` and `relay`. Raises InvalidArgument for an
    unknown device, TypeError (with the place) for arrays that cannot be sent, OutOfMemory, DeviceError.

    `group`: a list of devices, in place of `device`. Each receives the whole nest, and the result is a list of nests,
    one for each device. The devices are GPUs only, or host devices only. Each pulls a part of the bytes over its own
    link, and pushes it on to the others, so that all links are used and each byte is read once. Devices that do not
    reach each other's memory pull all bytes themselves, and a warning in the log `penstock` names them. If a device
    fails, the call raises its error. Nests of less than 1 MiB, and those with arrays that are on one of the devices
    already, are sent to each device for itself.

    Or `group` is a ProcessGroup: all its processes call this together, with trees of the same structure, shapes, dtypes
    and strides. Each sends a part of the bytes to its own `device`, and copies the parts of the others from their
    devices' memory. The parts are those of a ProcessGroup. That the arrays hold the same values is up to the caller.
    The call returns when the arrays are there. Trees of less than 1 MiB, and those on devices that do not reach each
    other, are sent by each process for itself. If the trees differ, all raise InvalidArgument. If a process ends or
    fails, the others raise Error.

    `relay`: a list of other devices, whose links help to fill `device`. They pull parts of the bytes into buffers of
    their own, at most 4 chunks of some MiB each, and push them on. A stored profile of the group may say other chunks,
    at most 8 of 16 MiB. The less room their links have, the less they carry. Nests of less than 1 MiB are not relayed.
    A neighbour's link is the neighbour's, so nothing is relayed unless this is given. "auto" takes all devices that
    reach the memory of `device`: of the GPUs that this process sees, or of the host devices that it has open. It opens
    all GPUs that this process sees, which costs some hundred MB of memory on each. They may be those of other processes
    of torchrun, which do nothing.
    """
    destination = Destination(device, group, relay)
    flights = destination.native.send(tree, [expander_for(engine) for engine in destination.engines])
    flights.release_sources()
    return flights.land()


def to_host(tree: Any, *, out: Any = None, pinned: bool = False) -> Any:
    """Copy the arrays of a nest from devices to the host; blocks until they are there.

    The structure stays. PyTorch tensors become PyTorch tensors on the CPU, and other arrays become NumPy arrays. Arrays
    that are already on the host stay as they are. Each result has memory of its own. On a GPU the copies come after the
    work that is queued on PyTorch's current stream. Thread-safe. Raises as `to_device` does.

    `out`: a nest of the same structure that receives the bytes, and is returned. Its arrays are PyTorch tensors on the
    CPU or NumPy arrays. They have the same shapes and dtypes, no gaps between their elements, and may be pinned. Arrays
    of `tree` that are on the host are copied too. The bytes go straight to `out`. If an array has other strides there,
    its source is put into that order first, on its device. What is not an array stays as it is in `out`. Others may not
    use `out` during the call. After a DeviceError its bytes are unspecified.

    All of `out` is checked before anything is written. InvalidArgument names the place of an array that is missing, has
    another shape or dtype, is read-only, is not on the host, or shares memory with another. The same goes for a tensor
    that requires a gradient, unless the call is within `torch.no_grad()`. TypeError names what only PyTorch can copy.

    `pinned`: if True, results lie in page-locked memory, to and from which copies run at the speed of the link. Arrays
    that are on the host are copied there, unless they are pinned. The memory is of the exact size, and of a pool of
    penstock, which keeps it for later results. A result that is dropped may still be read by copies that the program
    has enqueued: its memory is used again once the device has done all work. A forked process does not have it. What
    only PyTorch can copy, such as a sparse tensor, is not pinned. If the machine has no GPU, nothing is pinned, and the
    call is as without `pinned`. To pin takes longer than to copy: for repeated copies, pass an earlier result as `out`.
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
