"""to_device and to_host."""

from __future__ import annotations

from typing import Any

from . import _core
from ._engines import engine_for, host_engines
from ._nests import Expander


def expander_for(engine: _core.Engine) -> Expander:
    return Expander(f"cuda:{engine.index}" if engine.is_cuda else "cpu", sends=True)


def to_device(tree: Any, device: Any = "auto") -> Any:
    """Copy the arrays in a nest to a device, in as few transfers as possible.

    `tree` is any nest of dict, list, tuple, named tuple, dataclass, or a registered type, around PyTorch tensors,
    NumPy arrays, and arrays of other libraries that speak DLPack. Small arrays travel packed together; large ones
    through pinned staging memory, or directly where they are pinned. The result has the same structure, shapes,
    dtypes and (for arrays without gaps) strides; numbers, strings, and arrays that are on the device already are left
    as they are. Other objects are moved by their own `to(device)` if they have it, otherwise left as they are; modules
    and tables are refused.

    On a GPU results are PyTorch tensors where PyTorch is imported, otherwise `penstock.Array`. Later work of PyTorch's
    current stream waits for them; the host does not. On "host" they are what they were: tensors or NumPy arrays. When
    the call returns the sources may be changed. Arrays of one call share their memory: it is freed with the last of
    them.

    `device`: "auto", "cuda", "cuda:1", "cpu" or "host", or a torch.device. Raises InvalidArgument for another device,
    TypeError (with the place) for arrays that cannot be sent, OutOfMemory, DeviceError.
    """
    engine = engine_for(device)
    flight = engine.send(tree, expander_for(engine))
    flight.release_sources()
    return flight.land()


def to_host(tree: Any) -> Any:
    """Copy the arrays of a nest that lie on a device to the host; blocks until they are there.

    The structure stays. PyTorch tensors become PyTorch tensors on the CPU, other arrays NumPy arrays; what is on the
    host already is left as it is. Raises as `to_device` does.
    """
    return _core.fetch(tree, Expander("cpu", sends=False), host_engines(), lambda index: engine_for(f"cuda:{index}"))
