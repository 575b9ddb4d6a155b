"""load_safetensors and safetensors_info."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .. import _core
from .._checks import numpy_for
from .._destination import Destination
from .._errors import InvalidArgument
from .._progress import Progress
from .weight_types import conversion_to, view_of

Path = str | os.PathLike

# Python does not hear a signal that comes between its last look and the system call of a wait until the wait ends.
HEARS_SIGNALS_S = 0.2


def load_safetensors(
    files: Path | Iterable[Path],
    device: Any = "auto",
    names: Iterable[str] | Mapping[str, slice | None] | None = None,
    *,
    dtype: Any = None,
    group: Any = None,
    relay: Any = None,
) -> Any:
    """Load the tensors of .safetensors files to a device.

    Each byte is read once. On a GPU it is read straight into pinned memory, and earlier bytes cross the link meanwhile.
    On "host" it is read into the memory of the results. The memory is used only once the work that is queued on
    PyTorch's current stream is done. The host blocks until the tensors are on the device. Ctrl-C is heard meanwhile.

    Returns a dict from name to tensor, in the order of the files: PyTorch tensors if PyTorch is imported, otherwise
    NumPy arrays on "host" and `penstock.Array` on a GPU. The tensors of one file share one block of memory, which a
    single tensor that is kept keeps whole: clone it if that matters. Without PyTorch, bfloat16 and 8-bit floats need
    `ml_dtypes`.

    Args:
        files: A path, or several: the shards of one model. An index (`model.safetensors.index.json`) stands for its
            shards, and a folder for its index, or else for all .safetensors files in it.
        device: As in `to_device`.
        names: Load only these tensors, in any order. Nothing else is read, nor gets memory. A dict gives a slice of the
            first axis of each, or None for the whole tensor: `names={"embed.weight": slice(0, 4096)}` reads 4096 rows.
        dtype: Floating tensors become this type: a dtype of PyTorch or NumPy, or its name, such as "bfloat16". PyTorch
            converts tensors on the device once they have arrived, or without PyTorch NumPy on the host. Values are
            rounded to the nearest, and halfway to the even one; too large ones become infinite, or what the library
            makes of them in an 8-bit type. If any tensor is converted, each gets memory of its own.
        group: As in `to_device`. The result is a list of dicts, one for each device of a list. The processes of a
            ProcessGroup load tensors of the same names, types and shapes together: each reads a part of the bytes.
        relay: As in `to_device`.

    Raises:
        InvalidArgument: The device is unknown, `dtype` is not a floating type, or no file holds a name: then with
            similar names.
        Error: A file is not sound or is cut short meanwhile, with the file, the tensor and the offset; two files hold a
            tensor of the same name; penstock does not know a type. If the system does not open or read a file, it is
            Python's own error, too, such as FileNotFoundError.
        Unsupported: The library of the tensors lacks a dtype or does not convert it.
        OutOfMemory, DeviceError: An end has no room, or the device fails.

    Examples:
        >>> weights = penstock.load_safetensors(model_file, device="auto")
        >>> {name: tuple(tensor.shape) for name, tensor in weights.items()}
        {'head.weight': (1, 2)}
    """
    paths = _paths(files)
    wanted, rows = (None, {}) if names is None else _names(names)
    destination = Destination(device, group, relay)
    native, on_gpu = destination.native, destination.engine.is_cuda
    if "torch" not in sys.modules and not on_gpu:
        numpy_for("Loading to the host without PyTorch")
    convert = None if dtype is None else conversion_to(dtype, on_gpu)
    try:
        load = _core.WeightLoad(native, paths, wanted, rows)
        views = {tensor.name: view_of(tensor, on_gpu, convert is not None) for tensor in load.opaque()}
        load.start()
    except Exception as error:
        native.tell(error)
        raise
    with Progress(lambda seconds: _progress_of(load, seconds)):
        if destination.processes is None:
            _wait(load, load.wait)
        elif not _wait(load, load.fill_with_ranks):
            load.send_all()
            _wait(load, load.wait)
    loaded = load.finish()
    for tensors in loaded:
        for name, view in views.items():
            tensors[name] = view(tensors[name])
        if convert is not None:
            convert(tensors)
    return loaded if destination.together else loaded[0]


def _progress_of(load: _core.WeightLoad, seconds: float) -> str:
    read = load.bytes_read / 1e9
    return f"load_safetensors: {read:.1f} of {load.nbytes / 1e9:.1f} GB, {read / seconds:.2f} GB/s"


class TensorInfo(NamedTuple):
    """A tensor of a .safetensors file, before anything of it is read. `nbytes` are its bytes in `file`.

    Examples:
        >>> penstock.safetensors_info(model_file).tensors["head.weight"].shape
        (1, 2)
    """

    dtype: str
    """As the file writes it: "F32", "BF16", "F8_E4M3"."""
    shape: tuple[int, ...]
    nbytes: int
    file: str


class SafetensorsInfo(NamedTuple):
    """What the headers of .safetensors files say: their tensors and their metadata. `nbytes` are those of all tensors.

    Examples:
        >>> penstock.safetensors_info(model_file).nbytes
        8
    """

    tensors: dict[str, TensorInfo]
    """By name, in the order of the files."""
    metadata: dict[str, str]
    """The texts of all files. If several have one of a name, it is the last one's."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def __repr__(self) -> str:
        files = {tensor.file for tensor in self.tensors.values()}
        return f"<penstock.SafetensorsInfo: {len(self.tensors)} tensors, {self.nbytes} bytes, {len(files)} files>"


def safetensors_info(files: Path | Iterable[Path]) -> SafetensorsInfo:
    """The names, types and shapes of the tensors in .safetensors files, and the files' metadata. Only headers are read.

    Args:
        files: What `load_safetensors` takes.

    Raises:
        Error: As `load_safetensors`.

    Examples:
        >>> list(penstock.safetensors_info(model_file).tensors)
        ['head.weight']
    """
    headers = _core.read_weight_headers(_paths(files))
    tensors = {
        tensor.name: TensorInfo(tensor.type, tuple(tensor.shape), tensor.nbytes, str(header.path))
        for header in headers
        for tensor in header.tensors
    }
    return SafetensorsInfo(tensors, {name: text for header in headers for name, text in header.metadata.items()})


def _paths(files: Path | Iterable[Path]) -> list[str]:
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    if hasattr(files, "read"):
        raise InvalidArgument("files is a path, not an open file: pass its path, such as `file.name`.")
    if isinstance(files, bytes | bytearray | memoryview):
        raise InvalidArgument("files is a path, not bytes: if they are a file's content, write them to a file.")
    try:
        paths = [os.fsdecode(file) for file in files]
    except TypeError:
        raise InvalidArgument(f"files is a path or an iterable of paths, not {files!r}.") from None
    if not paths:
        raise InvalidArgument("files holds no path. Give the path of a .safetensors file.")
    return paths


def _names(names: Iterable[str] | Mapping[str, slice | None]) -> tuple[list[str], dict[str, _core.WeightRows]]:
    listed = None if isinstance(names, str) else list(names)
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"names is an iterable of the tensors' names, not {names!r}.")
    slices = dict(names) if isinstance(names, Mapping) else {}
    return listed, {name: _rows(name, part) for name, part in slices.items() if part is not None}


def _rows(name: str, part: Any) -> _core.WeightRows:
    ends = (part.start, part.stop) if isinstance(part, slice) else (part,)
    if len(ends) != 2 or part.step not in (None, 1) or not all(end is None or type(end) is int for end in ends):
        raise InvalidArgument(
            f"names['{name}'] is a slice of the first axis without a step, such as slice(0, 10), or None for the whole "
            f"tensor, not {part!r}."
        )
    return _core.WeightRows(*ends)


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
        try:
            waiter.start()
        except RuntimeError:  # the interpreter ends, or the system has no thread left
            wait()
        else:
            while waiter.is_alive():
                waiter.join(HEARS_SIGNALS_S)
    except BaseException:
        load.cancel()
        raise
    if failures:
        raise failures[0]
    return results[0]
