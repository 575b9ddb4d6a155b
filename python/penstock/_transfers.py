"""to_device and to_host."""

from __future__ import annotations

from typing import Any

from . import _core
from ._engines import engine_for, host_engines
from ._nests import Expander


def expander_for(engine: _core.Engine, static: bool = False) -> Expander:
    return Expander(f"cuda:{engine.index}" if engine.is_cuda else "cpu", sends=True, static=static)


def to_device(tree: Any, device: Any = "auto") -> Any:
    """Copy the arrays in a nest to a device, in as few transfers as possible.

    `tree` is any nest of dict, list, tuple, named tuple, dataclass, or a registered type, around PyTorch tensors,
    NumPy arrays, and arrays of other libraries that support DLPack. Small arrays travel packed together. Large ones
    travel through pinned staging memory, or directly if they are pinned. The result has the same structure, shapes,
    dtypes and (for arrays without gaps) strides. Numbers, strings, and arrays that are already on the device stay as
    they are. Other objects are moved by their own `to(device)`, or stay as they are if they have none. Modules and
    tables are refused.

    On a GPU results are PyTorch tensors if PyTorch is imported, otherwise `penstock.Array`. Later work of PyTorch's
    current stream waits for them; the host does not. On "host" tensors stay tensors, and NumPy arrays stay NumPy
    arrays. When the call returns, the sources may be changed. Arrays of one call share their memory, which is freed
    with the last of them.

    `device`: "auto", "cuda", "cuda:1", "cpu" or "host", or a torch.device. Raises InvalidArgument for an unknown
    device, TypeError (with the place) for arrays that cannot be sent, OutOfMemory, DeviceError.
    """
    engine = engine_for(device)
    flight = engine.send(tree, expander_for(engine))
    flight.release_sources()
    return flight.land()


def to_host(tree: Any) -> Any:
    """Copy the arrays of a nest from devices to the host; blocks until they are there.

    The structure stays. PyTorch tensors become PyTorch tensors on the CPU, and other arrays become NumPy arrays. Arrays
    that are already on the host stay as they are. Raises as `to_device` does.
    """
    return _core.fetch(tree, Expander("cpu", sends=False), host_engines(), lambda index: engine_for(f"cuda:{index}"))
