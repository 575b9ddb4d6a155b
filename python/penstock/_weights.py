"""load_safetensors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from . import _core
from ._checks import numpy_for
from ._engines import engine_for, engines_of, group_for, refuse_other_receivers, relays_of
from ._errors import InvalidArgument, Unsupported
from ._process_group import ProcessGroup

Path = str | os.PathLike

# Python does not hear a signal that comes between its last look and the system call of a wait until the wait ends.
HEARS_SIGNALS_S = 0.2


def load_safetensors(
    files: Path | Iterable[Path],
    device: Any = "auto",
    names: Iterable[str] | None = None,
    *,
    group: Any = None,
    relay: Any = None,
) -> Any:
    """Load the tensors of .safetensors files to a device.

    `files` is a path, or several: the shards of one model. Each byte is read once. On a GPU it is read straight into
    pinned memory, and earlier bytes cross the link meanwhile. On "host" it is read into the memory of the results.

    Returns a dict from name to tensor, in the order of the files. Each tensor has its shape and dtype: PyTorch tensors
    if PyTorch is imported, otherwise NumPy arrays on "host" and `penstock.Array` on a GPU. They are ordinary tensors,
    may be kept and written to, and begin at multiples of 512 bytes. The tensors of one file share one block of memory:
    it is freed with the last of them, so a single tensor that is kept keeps the whole block. Clone it if that matters.
    8-bit floats need a PyTorch that has them.

    `names`: load only these tensors, in any order. Nothing else is read, nor gets memory.

    `group`, `relay`: as in `to_device`. With `group`, a list of devices, each receives all tensors, and the result is a
    list of dicts, one for each device. Each byte is read once. With `relay`, a list of other devices or "auto", their
    links help to fill `device`. With a ProcessGroup, all its processes load tensors of the same names, types and
    shapes together. Each reads a part of the bytes, and copies the parts of the others.

    `device`: as in `to_device`. The memory is used only once the work that is queued on PyTorch's current stream is
    done. The host blocks until the tensors are on the device. Ctrl-C is heard meanwhile.

    Raises InvalidArgument for an unknown device, or for a name that no file holds, with similar names. Raises Error for
    a file that cannot be read, is not sound or is cut short meanwhile, with the file, the tensor and the offset. Raises
    Error, too, if two files hold a tensor of the same name, and for a type that penstock does not move. Raises
    Unsupported for a dtype that the library of the tensors lacks; OutOfMemory, DeviceError.
    """
    paths = _paths(files)
    wanted = None if names is None else _names(names)
    shared, place = None, None
    if isinstance(group, ProcessGroup):
        group.refuse(False, relay)
        engines = [engine_for(device)]
        place = group.place(engines[0])
    elif group is not None:
        refuse_other_receivers(device, relay)
        engines = engines_of("group", group)
        shared = group_for(engines)
    else:
        engines = [engine_for(device)]
        others = relays_of(engines[0], relay)
        shared = group_for([*engines, *others]) if others else None
    torch = sys.modules.get("torch")
    if torch is None and not engines[0].is_cuda:
        numpy_for("Loading to the host without PyTorch")
    try:
        load = _core.WeightLoad(engines, shared, place, paths, wanted)
        opaque = {name: _view_type(torch, type_name, name) for name, type_name in load.opaque_types()}
        load.start()
    except Exception as error:
        if place is not None:
            place.tell(error)
        raise
    if place is None:
        _wait(load, load.wait)
    elif not _wait(load, load.fill_with_ranks):
        load.send_all()
        _wait(load, load.wait)
    loaded = load.finish()
    for tensors in loaded:
        for name, dtype in opaque.items():
            tensors[name] = tensors[name].view(dtype)
    return loaded if place is None and group is not None else loaded[0]


def _paths(files: Path | Iterable[Path]) -> list[str]:
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    try:
        paths = [os.fsdecode(file) for file in files]
    except TypeError:
        raise InvalidArgument(f"files is a path or an iterable of paths, not {files!r}.") from None
    if not paths:
        raise InvalidArgument("files holds no path. Give the path of a .safetensors file.")
    return paths


def _names(names: Iterable[str]) -> list[str]:
    listed = None if isinstance(names, str) else list(names)
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"names is an iterable of the tensors' names, not {names!r}.")
    return listed


def _view_type(torch: Any, type_name: str, name: str) -> Any:
    """PyTorch's dtype for a type of one byte that NumPy and DLPack do not have."""
    known = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    dtype = getattr(torch, known[type_name], None)
    if dtype is None:
        raise Unsupported(
            f"Tensor '{name}' is of type {type_name}: "
            + ("import torch, which has it." if torch is None else "this PyTorch does not have it.")
        )
    return dtype


def _wait(load: _core.WeightLoad, step: Callable[[], Any]) -> Any:
    """The result of a step of `load`, which runs in a thread, as only Python's own waits hear signals. If one raises,
    that thread keeps the load until its memory is written no more."""
    failures: list[BaseException] = []
    results: list[Any] = []

    def wait() -> None:
        try:
            results.append(step())
        except BaseException as error:
            failures.append(error)

    waiter = threading.Thread(target=wait, name="penstock-load")
    try:
        waiter.start()
        while waiter.is_alive():
            waiter.join(HEARS_SIGNALS_S)
    except BaseException:
        load.cancel()
        raise
    if failures:
        raise failures[0]
    return results[0]
