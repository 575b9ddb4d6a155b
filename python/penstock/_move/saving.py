"""save_safetensors."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from .. import _core
from .._checks import has
from .._engines import engine_for, engine_of_gpu, host_engines
from .._errors import Closed, InvalidArgument, Unsupported
from .nests import host_array
from .weight_types import file_shape, file_type
from .weights import HEARS_SIGNALS_S

_saving = threading.Lock()  # held while tensors are copied
_last: PendingSave | None = None
_kept: _core.WeightSave | None = None  # memory for the next file; only while no save has it


class PendingSave:
    """A file that `save_safetensors(wait=False)` is writing. Its methods raise what the write met. Thread-safe.

    Examples:
        >>> pending = penstock.save_safetensors({"images": images}, checkpoint, wait=False)
        >>> pending.wait()
        >>> pending.done()
        True
    """

    def __init__(self, save: _core.WeightSave, path: str, report: bool) -> None:
        self._save: _core.WeightSave | None = save
        self._report = report
        self._failure: BaseException | None = None
        self._process = os.getpid()
        self._claimed = threading.Lock()  # by the writer; or by who gives up before it has begun
        self._handover = threading.Lock()  # the next save may have the memory once `_save` is None
        self._ended = threading.Event()
        self.path = path
        """Where the file will be."""

    def wait(self) -> None:
        """Block until the file is on the disk. Raises what the write met, each time; see `save_safetensors`."""
        self._refuse_fork()
        self._end()
        if self._failure is not None:
            raise self._failure

    def done(self) -> bool:
        """True if the file is on the disk. Raises what the write met. Does not block."""
        self._refuse_fork()
        if not self._ended.is_set():
            return False
        self.wait()
        return True

    def __repr__(self) -> str:
        if self._process != os.getpid():
            state = "of another process"
        elif not self._ended.is_set():
            state = "being written"
        else:
            state = "on the disk" if self._failure is None else "failed"
        return f"<penstock.PendingSave {self.path!r}: {state}>"

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise Closed(f"{self.path} is written by another process, from which this one was forked: ask there.")

    def _begin(self) -> None:
        # Not a daemon: a program that ends waits for its checkpoint.
        writer = threading.Thread(target=self._write, name="penstock-save")
        try:
            writer.start()
        except RuntimeError:  # the interpreter ends, or the system has no thread left
            self._write()

    def _write(self) -> None:
        global _kept
        if not self._claimed.acquire(blocking=False):
            return
        save = self._save
        assert save is not None
        try:
            save.write(self.path)
        except BaseException as error:
            self._failure = error
            if self._report:
                logging.getLogger("penstock").error("A save failed: %s", error)
        finally:
            with self._handover:
                self._save = None
            _kept = save
            self._ended.set()

    def _end(self, cancel: bool = False) -> None:
        """Waits until nothing is written any more."""
        if self._process != os.getpid():
            return
        if cancel and self._claimed.acquire(blocking=False):  # an interrupt came before the writer
            self._save, self._failure = None, Closed(f"writing {self.path} was stopped")
            self._ended.set()
        elif cancel:
            with self._handover:
                if self._save is not None:
                    self._save.cancel()
        while not self._ended.wait(HEARS_SIGNALS_S):
            pass


def save_safetensors(
    tensors: Mapping[str, Any],
    file: str | os.PathLike,
    wait: bool = True,
    metadata: Mapping[str, str] | None = {"format": "pt"},
) -> PendingSave | None:
    """Save tensors to a .safetensors file.

    The bytes first go to memory of the host: of GPUs at the speed of the link, after the work that is queued on
    PyTorch's current stream. Then the file is written beside its place and to the disk, and takes its name at once. A
    crash, a full disk or Ctrl-C leaves the old file whole. The memory, as large as the file, is kept for the next save;
    it is locked if a tensor is on a GPU. A save first waits for an earlier one, and a program that ends waits for its
    file. Thread-safe.

    Args:
        tensors: A flat dict from name to tensor, such as a module's `state_dict()`. Tensors of PyTorch, NumPy, penstock
            and other libraries, on the host or on GPUs. Those whose elements lie apart are made contiguous on their
            device. Tensors that share memory are written once each.
        file: The path. If it is a link, the file that it leads to is written.
        wait: If False, the call returns a PendingSave once the bytes are in memory of the host, and the tensors may be
            changed. What the write meets, the logger `penstock` tells too.
        metadata: Texts by name, which the file holds besides. Programs that load for PyTorch want {"format": "pt"}.

    Raises:
        InvalidArgument: A nested dict, a name or a text that cannot be written, or a value that is not an array.
        Unsupported: The format or penstock does not have a dtype.
        Error: The file cannot be written. It is also Python's own for the reason, such as FileNotFoundError.
        OutOfMemory, DeviceError: There is no memory for the file, or the device fails.

    Examples:
        >>> penstock.save_safetensors(model.state_dict(), checkpoint)
        >>> sorted(penstock.load_safetensors(checkpoint, "host"))
        ['bias', 'weight']
    """
    global _kept, _last
    path = _path(file)
    names, arrays, opaque = _plain_arrays(tensors)
    texts = _texts(metadata)
    pending = None
    try:
        with _saving:
            if _last is not None:
                _last._end()
            hosts = [engine_for("host"), *host_engines()]
            save = _core.copy_weights(names, arrays, opaque, texts, hosts, engine_of_gpu, _kept)
            _kept = None
            pending = _last = PendingSave(save, path, report=not wait)
            pending._begin()
        if wait:
            pending.wait()
    except BaseException:
        if pending is not None:
            pending._end(cancel=True)
        raise
    return None if wait else pending


_of_parents: list[Any] = []  # never freed: their locks and threads are the parent's


def _forget_after_fork() -> None:
    global _saving, _last, _kept
    _of_parents.append((_last, _kept))
    _saving, _last, _kept = threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget_after_fork)


def _path(file: str | os.PathLike) -> str:
    try:
        path = os.fsdecode(file)
    except TypeError:
        raise InvalidArgument(f"file is the path of a file to write, not {file!r}.") from None
    if not path or path.endswith("/"):
        raise InvalidArgument(f"file is the path of a file to write, not {path!r}.")
    return os.path.abspath(path)


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    texts = {} if metadata is None else metadata
    if not isinstance(texts, Mapping) or not all(isinstance(part, str) for pair in texts.items() for part in pair):
        raise InvalidArgument(f"metadata is a dict from text to text, not {metadata!r}. Write numbers as text.")
    return {_utf8(name, "metadata"): _utf8(text, "metadata") for name, text in texts.items()}


def _utf8(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text!r} cannot be written as UTF-8.") from None
    return text


Opaque = tuple[str, list[int]]


def _plain_arrays(tensors: Mapping[str, Any]) -> tuple[list[str], list[Any], dict[str, Opaque]]:
    """The names, the arrays without gaps, and type and shape in the file of those that are bytes of another type."""
    if not isinstance(tensors, Mapping):
        raise InvalidArgument(
            f"tensors is a dict from name to tensor, such as a module's state_dict(), not a {type(tensors).__name__}."
        )
    names, arrays, all_opaque = [], [], {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"a tensor's name is a text, not {name!r}.")
        names.append(_utf8(name, "the name"))
        array, opaque = _plain(name, value)
        arrays.append(array)
        if opaque is not None:
            all_opaque[name] = opaque
    return names, arrays, all_opaque


def _plain(name: str, value: Any) -> tuple[Any, Opaque | None]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _plain_tensor(name, value, torch)
    if isinstance(value, _core.Array):
        return value, None
    if isinstance(value, (Mapping, list, tuple)):
        raise InvalidArgument(
            f"tensor '{name}' is a {type(value).__name__}, and the names in a .safetensors file are flat: "
            f"write its tensors under names such as '{name}.weight'."
        )
    np = sys.modules.get("numpy")
    if np is None or not isinstance(value, np.ndarray):
        if not has(value, "__dlpack__") or not has(value, "__dlpack_device__"):
            raise InvalidArgument(f"tensor '{name}' is a {type(value).__name__}, not an array.")
        import numpy as np

        value = host_array(value)
        if isinstance(value, str):
            raise Unsupported(f"tensor '{name}': {value}")
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgument(f"tensor '{name}' is a masked array: pass its `.data`, or `.filled()`.")
    array = np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C")
    type_name = "BF16" if array.dtype.name == "bfloat16" else file_type(array.dtype)
    if type_name is not None:
        return array.reshape(-1).view(np.uint8), (type_name, list(array.shape))
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise Unsupported(f"tensor '{name}': a .safetensors file has no {array.dtype}. Convert it first.")
    return array, None


def _plain_tensor(name: str, tensor: Any, torch: Any) -> tuple[Any, Opaque | None]:
    if tensor.device.type == "meta":
        raise InvalidArgument(f"tensor '{name}' is on the device 'meta', and has no bytes.")
    why = _why_not_plain(tensor, torch)
    if why is not None:
        raise Unsupported(f"tensor '{name}' {why}.")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    plain.data_ptr()  # raises if it is parked
    type_name = file_type(plain.dtype)
    if type_name is None:
        return plain, None
    return plain.reshape(-1).view(torch.uint8), (type_name, file_shape(type_name, tuple(plain.shape)))


def _why_not_plain(tensor: Any, torch: Any) -> str | None:
    if tensor.is_nested:
        return "is a nested tensor: save its `values()` and `offsets()`, or a padded one"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}): save its `to_dense()`, or its indices and values"
    if tensor.is_quantized:
        return "is quantised: save its `int_repr()` and its scale, or its `dequantize()`"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return (
            f"is of a type of its own ({type(tensor).__name__}): save plain tensors, such as the `full_tensor()` of a "
            "distributed one"
        )
    if tensor.is_complex() and tensor.dtype != torch.complex64:
        return f"is {str(tensor.dtype).removeprefix('torch.')}, and a .safetensors file has only complex64: convert it"
    return None
