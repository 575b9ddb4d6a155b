"""The storages of PyTorch that leave a GPU together, and their places on the host."""

from __future__ import annotations

import bisect
import concurrent.futures
import contextlib
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from .. import _core
from .._checks import has
from .._errors import InvalidArgument, allocator_out_of_memory, file_error
from .nests import parts_of

Where = Literal["pinned", "pageable"] | os.PathLike[str]
PINNED: Literal["pinned"] = "pinned"
PAGEABLE: Literal["pageable"] = "pageable"

# Parts are enqueued and freed one by one. One copy is at the link's rate from some MiB on.
_PART_BYTES = 256 << 20
_ALIGNMENT = 256


class Region:
    """Memory that is parked as a whole. `memory` lists its pieces: FixedMemory, or what stands in for that."""

    def __init__(self, memory: Callable[[], Iterable[Any]]) -> None:
        self.memory = memory


class FixedStorage:
    """Memory of a region. Stands in for a storage of PyTorch's."""

    def __init__(self, memory: Any) -> None:
        self.memory, self._cdata = memory, id(memory)
        self.device = sys.modules["torch"].device("cuda", memory.gpu)

    def nbytes(self) -> int:
        return self.memory.nbytes

    def data_ptr(self) -> int:
        return self.memory.address


class Found:
    """A storage, and the tensors of a nest that lie in it."""

    def __init__(self, name: str, storage: Any) -> None:
        self.name = name
        self.storage = storage
        self.tensors: list[Any] = []
        self.stamp: Any = None  # differs if its bytes do; None: they may differ in any case

    def stamp_frozen(self) -> None:
        """If all tensors are parameters that nobody trains, of which PyTorch counts the writes: their versions."""
        parameter = sys.modules["torch"].nn.Parameter
        if self.tensors and all(  # a region's memory has none
            isinstance(t, parameter) and not (t.requires_grad or t.is_inference()) for t in self.tensors
        ):
            self.stamp = tuple((id(tensor), tensor._version) for tensor in self.tensors)


class Slot:
    """A storage, and its place in a block of the host."""

    def __init__(self, found: Found, offset: int) -> None:
        self.name = found.name
        self.bytes = found.storage.nbytes()
        self.offset = offset
        self.is_down = False  # the bytes; they are not on the device
        self.is_empty = False  # the storage
        self.stamp: Any = None  # of the bytes in the block; None: they may be others than the storage's
        self.key = found.storage._cdata
        self._storage = found.storage
        if not isinstance(found.storage, FixedStorage):
            from torch.multiprocessing.reductions import StorageWeakRef

            self._storage = StorageWeakRef(found.storage)
        self._tensors: list[Any] = []  # the ids in the stamp stay theirs

    @property
    def storage(self) -> Any:
        """None if the program has dropped it."""
        if isinstance(self._storage, FixedStorage):
            return None if self._storage.memory.is_free() else self._storage
        return sys.modules["torch"].UntypedStorage._new_with_weak_ptr(self._storage.cdata)

    def note(self, found: Found) -> None:
        """The block has the bytes of the storage, as it is here."""
        self.stamp, self._tensors = found.stamp, found.tensors if isinstance(found.stamp, tuple) else []


class Ahead:
    """Memory for storages, by their slots, that their bytes are on the way into. Waits at its end for the bytes."""

    def __init__(self, memory: dict[Slot, Any], passage: _core.Passage, stream: Any) -> None:
        self.memory, self.passage, self.stream = memory, passage, stream

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # what failed has ended
            self.passage.wait()


class Part:
    """Storages of one device that travel together, and their block on the host."""

    def __init__(self, engine: _core.Engine, where: str) -> None:
        self.engine = engine
        self.slots: list[Slot] = []
        self.host_bytes = 0
        self._where = where
        self._block: _core.ParkedBlock | None = None
        self._ahead: Ahead | None = None
        self._file: mmap.mmap | None = None

    def add(self, found: Found) -> None:
        """Before it has a block."""
        self.slots.append(Slot(found, self.host_bytes))
        self.host_bytes += -(-found.storage.nbytes() // _ALIGNMENT) * _ALIGNMENT

    @property
    def bytes(self) -> int:
        return sum(slot.bytes for slot in self.slots)

    @property
    def is_down(self) -> bool:
        return any(slot.is_down for slot in self.slots)

    def block(self) -> _core.ParkedBlock:
        """Takes the room at the first call. Raises OutOfMemory and FileError."""
        if self._block is None:
            if self._where in (PINNED, PAGEABLE):
                self._block = _core.ParkedBlock(self.engine, self.host_bytes, self._where == PINNED)
            else:
                self._file = _mapped_file(self._where, self.host_bytes)
                self._block = _core.ParkedBlock(self.engine, self._file)
        return self._block

    def down(self) -> _core.Passage:
        """Enqueues the copy of what the block does not have."""
        pieces = [(slot.storage.data_ptr(), slot.offset, slot.bytes) for slot in self.slots if slot.stamp is None]
        return self.block().down(pieces)

    def empty(self) -> None:
        """Frees the memory on the device. Nothing on its way may use it but what comes ahead, which is waited for."""
        self._ahead = None
        for slot in self.slots:
            storage = slot.storage
            if storage is not None and not slot.is_empty:
                slot.is_down = slot.is_empty = True  # first: an interrupt may come in between
                _give_memory_back(storage, slot.name)

    def ahead(self) -> None:
        """Begins `up` if PyTorch swaps memory. The storages stay empty: nothing can use them before their bytes are
        there. Raises OutOfMemory."""
        if not _swaps_memory():
            return
        storages = [(slot, slot.storage) for slot in self.slots if slot.is_down]
        memory = {slot: _new_memory(its.device, slot.bytes) for slot, its in storages if its is not None}
        pieces = [(its.data_ptr(), slot.offset, slot.bytes) for slot, its in memory.items()]
        self._ahead = Ahead(memory, self.block().up(pieces), _current_stream(self.engine))

    def up(self, group: _core.Group | None = None) -> _core.Passage:
        """Takes memory on the device, and enqueues the copy of what is in the block, over the links of the group if
        there is one. Raises OutOfMemory."""
        pieces, memory = [], {}
        if self._ahead is not None and self._ahead.stream != _current_stream(self.engine):
            self._ahead = None  # PyTorch reuses its memory without a wait for other streams
        if self._ahead is not None:
            self._ahead.passage.wait()
            memory = self._ahead.memory
        for slot in self.slots:
            storage = slot.storage
            if storage is not None and slot.is_down:
                slot.is_empty = False
                if slot in memory:
                    storage._swap_data_ptr_(memory[slot])
                else:
                    _take_memory(storage, slot.bytes)
                    pieces.append((storage.data_ptr(), slot.offset, slot.bytes))
        if self._file is not None:
            self._file.madvise(mmap.MADV_WILLNEED)  # the disk reads while earlier parts are copied
        passage = self.block().up(pieces, group)
        for slot in self.slots:
            slot.is_down = False
        self._ahead = None
        return passage


def _mapped_file(folder: str, count: int) -> mmap.mmap:
    """A file of so many bytes that has its room on the disk. It has no name, and goes with the last that maps it."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, count)  # or writing would end the process when the disk is full
            return mmap.mmap(file.fileno(), count)
    except OSError as error:
        why = f"{count} bytes cannot be parked in {folder}: {error.strerror}. Nothing was moved."
        raise file_error(why, error.errno or 0, folder) from None


def _give_memory_back(storage: Any, name: str) -> None:
    """Leaves the storage its size, without memory: PyTorch raises an error that names it for what would use it. If
    PyTorch cannot swap memory, the size goes, too, and kernels that do not look at it read address 0."""
    if isinstance(storage, FixedStorage):
        storage.memory.drop_pages()
        return
    torch = sys.modules["torch"]
    if not _swaps_memory():
        storage.resize_(0)
        return
    storage._swap_data_ptr_(torch._C._construct_storage_from_data_pointer(0, storage.device, storage.nbytes()))
    if has(torch._C, "_set_storage_data_ptr_access_error_msg"):  # PyTorch without CUDA has none
        torch._C._set_storage_data_ptr_access_error_msg(
            storage._cdata,
            f"{name} is parked: its bytes are on the host. Call resume() of its penstock.Parked before it is used.",
        )


def _take_memory(storage: Any, count: int) -> None:
    if isinstance(storage, FixedStorage):
        storage.memory.take_pages()
        return
    if _swaps_memory():
        storage._swap_data_ptr_(_new_memory(storage.device, count))  # and the error of use
        return
    try:
        storage.resize_(count)
    except RuntimeError as error:
        raise allocator_out_of_memory(error) from error


def _new_memory(device: Any, count: int) -> Any:
    try:
        return sys.modules["torch"].UntypedStorage(count, device=device)
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        raise allocator_out_of_memory(error) from error


def _current_stream(engine: _core.Engine) -> Any:
    return sys.modules["torch"].cuda.current_stream(engine.index) if engine.is_cuda else None


def _swaps_memory() -> bool:
    """True from PyTorch 2.12 on."""
    return has(sys.modules["torch"].UntypedStorage, "_swap_data_ptr_")


def _is_empty(storage: Any) -> bool:
    try:
        return storage.nbytes() == 0 or storage.data_ptr() == 0
    except RuntimeError:  # that of use
        return True


def make_parts(found: list[Found], engines: dict[Any, _core.Engine], where: str) -> list[Part]:
    """Parts for these storages, given the engine of each device. Gradients, which come and go, have their own. `where`:
    PINNED, PAGEABLE, or a folder for files."""
    parts: list[Part] = []
    open_parts: dict[Any, Part] = {}
    for each in found:
        kind = (each.storage.device, each.name.endswith(".grad"))
        part = open_parts.get(kind)
        if part is None or part.host_bytes + each.storage.nbytes() > _PART_BYTES:
            part = open_parts[kind] = Part(engines[each.storage.device], where)
            parts.append(part)
        part.add(each)
    return parts


def with_blocks(parts: list[Part]) -> Iterator[Part]:
    """The parts in turn, each once it has its block. Those of the next two are made meanwhile: while the driver locks
    the pages of one, the host's threads make those of the other. Raises as Part.block."""
    if all(part._block is not None for part in parts):
        yield from parts
        return
    with concurrent.futures.ThreadPoolExecutor(2) as makers:
        for part, _ in zip(parts, makers.map(Part.block, parts), strict=True):  # if left early, it cancels the others
            yield part


def find_storages(things: Any) -> list[Found]:
    """The storages of all tensors of a nest, each once. Raises InvalidArgument, with the name, for a tensor that cannot
    be parked, and TypeError for something else than modules, optimizers, tensors and nests of them."""
    if isinstance(things, Region):
        return [Found("a region", FixedStorage(memory)) for memory in things.memory()]
    found: dict[int, Found] = {}
    for name, tensor in _named(things, "", {}):
        why = _why_not(tensor)
        if why is not None:
            raise InvalidArgument(f"{name or 'the tensor'} cannot be parked: it {why}.")
        storage = tensor.untyped_storage()
        if tensor.is_meta or storage.nbytes() == 0:
            continue
        found.setdefault(storage._cdata, Found(name or "the tensor", storage)).tensors.append(tensor)
    return list(found.values())


def refuse_fixed(found: list[Found], engines: dict[Any, _core.Engine]) -> None:
    """Raises InvalidArgument, with the name, for a storage whose memory cannot be given back and taken anew."""
    found = [each for each in found if not isinstance(each.storage, FixedStorage)]
    pools = _pools_of_graphs() if found else []
    for each in found:
        storage = each.storage
        address, why, instead = storage.data_ptr(), None, "Clone it."
        pool = bisect.bisect_right(pools, (address, sys.maxsize)) - 1
        if pool >= 0 and address < pools[pool][1]:
            why = "lies in the memory of a CUDA graph, or in another pool of PyTorch than the common one"
            instead += " If it was made in a region of penstock.memory_saver, pause the region: its addresses stay."
        elif not storage.resizable() and not engines[storage.device].made(address):
            why = "lies in memory of another library or process"
        elif not storage.resizable() and not _swaps_memory():
            why = "lies in memory of penstock, which PyTorch swaps from version 2.12 on"
        if why is not None:
            raise InvalidArgument(f"{each.name} cannot be parked: it {why}. {instead}")


def _pools_of_graphs() -> list[tuple[int, int]]:
    """GPU memory of PyTorch's pools but the common one, by address: graphs replay with fixed addresses there."""
    cuda = sys.modules["torch"].cuda
    segments = cuda.memory_snapshot() if cuda.is_available() and cuda.is_initialized() else []
    return sorted(
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )


def _why_not(tensor: Any) -> str | None:
    torch = sys.modules["torch"]
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet. Call the module once with a batch"
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout}). Park its indices and values"
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        return f"is on {tensor.device}, and not on a GPU that penstock knows"
    if tensor.numel() and not tensor.is_meta and _is_empty(tensor.untyped_storage()):
        return "has no memory. It is parked already, or something else has emptied its storage, such as FSDP"
    return None


def _named(value: Any, name: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """The plain tensors of a nest, with gradients, by their places. Nothing is met twice."""
    torch = sys.modules["torch"]
    if id(value) in seen:
        return
    is_whole = not seen
    seen[id(value)] = value  # or its id could become another's
    dot = f"{name}." if name else ""
    children: Iterator[tuple[str, Any]]
    if isinstance(value, torch.Tensor):
        inner = value.__tensor_flatten__()[0] if has(value, "__tensor_flatten__") else None
        if inner is None:
            yield name, value
        else:  # DTensor and other tensors around tensors
            yield from _named([getattr(value, part) for part in inner], name, seen)
        children = iter([(f"{name or 'tensor'}.grad", value.grad)] if value.is_leaf else [])
    elif isinstance(value, torch.nn.Module):
        children = ((dot + key, tensor) for key, tensor in (*value.named_parameters(), *value.named_buffers()))
    elif isinstance(value, torch.optim.Optimizer):
        groups = [(f"{dot}param_groups[{place}]", group) for place, group in enumerate(value.param_groups)]
        children = iter(groups + [(f"{dot}state[{place}]", each) for place, each in enumerate(value.state.values())])
    elif isinstance(value, dict):
        children = ((f"{name}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        children = ((f"{name}[{place}]", each) for place, each in enumerate(value))
    else:
        parts = parts_of(value)
        if parts is None and is_whole:
            raise TypeError(f"park takes modules, optimizers, tensors and nests of them, not {value!r}.")
        children = iter([] if parts is None else [(name, parts[0])])
    for place, child in children:
        yield from _named(child, place, seen)
