"""What DataLoader's workers and this process know of shared slots: how a batch gets into one, and out of it again.

A worker puts the arrays of a batch into a slot. Everything else of the batch is pickled, with the arrays' places. That
goes through DataLoader's own queue.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from types import FrameType
from typing import Any, NamedTuple

from .. import _core
from .stages import FetchWatch, Stages, monotonic, watch_fetch

_ALIGNMENT = 256
# The types of the arrays that lie in slots, with DLPack's codes: kind and bits.
_TYPES = {
    "bool": (6, 8),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    "bfloat16": (4, 16),
    **{f"complex{bits}": (5, bits) for bits in (64, 128)},
}


class Received(NamedTuple):
    """A batch from a worker. `slot`: where its arrays lie; None if nowhere. `wanted`: bytes of a slot that would have
    held them all. `stages`: None if they are not known."""

    batch: Any
    slot: Any
    wanted: int
    stages: Stages | None = None


class Slots:
    """Shared slots, in the process that receives. Workers are numbered; each has `each` slots."""

    def __init__(self, workers: int, each: int, most_bytes: int, numa_node: int):
        self.each = each
        self.number_of_workers = workers
        self.asked = 0.0  # when this process asked for a batch, or the latest one came, if that was later
        self.shared = _core.SharedSlots(workers * each, most_bytes, numa_node)
        self.key = _keep(self)

    def writer(self, collate: Callable[[Any], Any], stacks: bool) -> Writer:
        """What takes the place of a DataLoader's collate_fn."""
        return Writer(self, collate, stacks)

    def stages(self, times: Any) -> Stages | None:
        """Those of a batch that has just come, from the worker's times: when it began, had fetched, had collated and
        had written."""
        since, self.asked = self.asked, monotonic()
        if times is None:
            return None
        began, fetched, collated, written = times
        spans = fetched - began, collated - fetched, written - collated
        return Stages(*(span / self.number_of_workers for span in spans), receive=self.asked - max(since, written))


class Writer:
    """A DataLoader's collate_fn, in a worker, whose batches lie in the worker's slots. Pickled only to start it.

    `stacks`: `collate` is PyTorch's own, which stacks samples straight into the slot. The arrays of another one are
    copied there. What finds no room goes as any batch does: a worker never waits.
    """

    def __init__(self, slots: Slots, collate: Callable[[Any], Any], stacks: bool):
        self._slots: Slots | None = slots  # kept for as long as workers may send
        self._key, self._shared, self._each = slots.key, slots.shared, slots.each
        self._collate, self._stacks = collate, stacks
        self._receiver = os.getpid()
        self._watch: FetchWatch | None = None

    def __getstate__(self) -> dict:
        state = {**self.__dict__, "_slots": None}
        state["_shared"] = reduction.DupFd(self._shared.file), self._shared.slots, self._shared.most_bytes
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        file, slots, most_bytes = state["_shared"]
        descriptor = file.detach()
        try:
            self._shared = _core.SharedSlots.attach(descriptor, slots, most_bytes)
        finally:
            os.close(descriptor)

    def __call__(self, samples: Any) -> Any:
        if os.getpid() == self._receiver:  # the worker is a thread: nothing is pickled on the way
            return self._collate(samples)
        began, fetched = self._began(sys._getframe(1)), monotonic()
        number, memory = self._claim()
        try:
            slot = _Slot(memory)
            batch = slot.collate(samples) if self._stacks else self._collate(samples)
            collated = monotonic()
            pickled = slot.pickle(batch)
        except BaseException:
            if number is not None:
                self._shared.give_up(number)
            raise
        if number is not None and slot.used == 0:
            self._shared.give_up(number)
            number = None
        times = None if began is None else (began, fetched, collated, monotonic())
        return _Sent(self._key, number, slot.wanted, pickled, times)

    def _began(self, caller: FrameType) -> float | None:
        """When the fetcher, which calls this, began the batch; None for its first one. Each epoch has a fetcher."""
        if self._watch is not None and self._watch.began is not None:
            return self._watch.began
        self._watch = watch_fetch(caller.f_locals.get("self"))
        return None

    def _claim(self) -> tuple[int | None, memoryview | None]:
        info = sys.modules["torch.utils.data"].get_worker_info()
        if info is not None:
            for number in range(info.id * self._each, (info.id + 1) * self._each):
                memory = self._shared.claim(number)
                if memory is not None:
                    return number, memory
        return None, None


class _Sent:
    """A batch on its way from a worker. Unpickled as what has arrived."""

    def __init__(self, *contents: Any):
        self._contents = contents

    def __reduce__(self) -> Any:
        return _receive, self._contents


class _Slot:
    """A slot that is being filled, or None's: then everything goes as any batch does."""

    def __init__(self, memory: memoryview | None):
        self.used = 0
        self.wanted = 0
        self._buffer = memory
        self._room = 0 if memory is None else len(memory)
        if memory is not None:
            self._bytes = sys.modules["torch"].frombuffer(memory, dtype=sys.modules["torch"].uint8)
            self._begin = self._bytes.data_ptr()

    def collate(self, samples: Any) -> Any:
        """PyTorch's default_collate, into the slot."""
        collate = sys.modules["torch.utils.data"]._utils.collate
        known = dict(collate.default_collate_fn_map)
        if known.get(sys.modules["torch"].Tensor) is collate.collate_tensor_fn:
            known[sys.modules["torch"].Tensor] = self._stack
        return collate.collate(samples, collate_fn_map=known)

    def _stack(self, tensors: Any, *, collate_fn_map: Any = None) -> Any:
        torch = sys.modules["torch"]
        first = tensors[0]
        at = None
        if self._room and _is_plain(first, torch):
            at = self._place(len(tensors) * first.numel() * first.element_size())
        if at is None:  # counted when it is pickled
            stack = sys.modules["torch.utils.data"]._utils.collate.collate_tensor_fn
            return stack(tensors, collate_fn_map=collate_fn_map)
        # The tensor has a storage of its own. If something that only PyTorch can pickle shared it, PyTorch would
        # move it.
        count = len(tensors) * first.numel()
        out = torch.frombuffer(self._buffer, dtype=first.dtype, count=count, offset=at)
        return torch.stack(tuple(tensors), 0, out=out.view(len(tensors), *first.shape))

    def pickle(self, batch: Any) -> bytes:
        """The batch, with its arrays in the slot."""
        stream = io.BytesIO()
        _Pickler(stream, self).dump(batch)
        return stream.getvalue()

    def put_tensor(self, tensor: Any) -> Any:
        """How to make the tensor again; None if it is pickled as any other."""
        torch = sys.modules["torch"]
        if not _is_plain(tensor, torch):
            return None
        at = tensor.data_ptr() - self._begin if self._room else -1
        if not 0 <= at < self.used:
            count = tensor.numel() * tensor.element_size()
            place = self._place(count)
            if place is None:
                self._count(count)
                return None
            at = place
            if not _has_no_gaps(tensor.shape, tensor.stride()):
                tensor = tensor.contiguous()
            here = self._bytes[at : at + count].view(tensor.dtype)
            here.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
        name = str(tensor.dtype).removeprefix("torch.")
        return _array, (True, at, name, tuple(tensor.shape), tensor.stride())

    def put_array(self, array: Any) -> Any:
        numpy = sys.modules["numpy"]
        kind = array.dtype
        if kind.kind not in "biufc" or kind.name not in _TYPES or not kind.isnative or kind.metadata or array.size == 0:
            return None
        place = self._place(array.nbytes)
        if place is None:
            self._count(array.nbytes)
            return None
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        here = numpy.ndarray(array.shape, array.dtype, self._buffer, place, order=order)
        numpy.copyto(here, array)
        strides = tuple(stride // array.itemsize for stride in here.strides)
        return _array, (False, place, array.dtype.name, array.shape, strides)

    def _place(self, count: int) -> int | None:
        """Where so many bytes have room."""
        begin = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        if count == 0 or begin + count > self._room:
            return None
        self.used = begin + count
        self._count(count)
        return begin

    def _count(self, count: int) -> None:
        self.wanted += -(-count // _ALIGNMENT) * _ALIGNMENT


class _Pickler(reduction.ForkingPickler):
    """Pickles as DataLoader's queue does, but for the arrays that a slot takes."""

    def __init__(self, stream: io.BytesIO, slot: _Slot):
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
        # Unless the program has its own way to send them.
        theirs = self.dispatch_table.get(torch.Tensor)
        self._tensor = torch.Tensor if theirs is torch.multiprocessing.reductions.reduce_tensor else None
        self._array = None if numpy is None or numpy.ndarray in self.dispatch_table else numpy.ndarray
        self._slot = slot

    def reducer_override(self, value: Any) -> Any:
        put = None
        if type(value) is self._tensor:
            if value.is_conj() or value.is_neg():  # PyTorch would send the memory without that
                plain = value.detach().resolve_conj().resolve_neg().requires_grad_(value.requires_grad)
                return self._slot.put_tensor(plain) or self.dispatch_table[self._tensor](plain)
            put = self._slot.put_tensor(value)
        elif type(value) is self._array:
            put = self._slot.put_array(value)
        return NotImplemented if put is None else put


def _is_plain(tensor: Any, torch: Any) -> bool:
    """True if a tensor is no more than its bytes, type and shape."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and str(tensor.dtype).removeprefix("torch.") in _TYPES
    )


def _has_no_gaps(shape: Any, strides: Any) -> bool:
    """True if each element has a place of its own, side by side in some order of the axes."""
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent > 1):
        if stride != expected:
            return False
        expected *= extent
    return True


_opened: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()
_arriving = threading.local()
_lock = threading.Lock()
_keys = 0


def _keep(slots: Slots) -> int:
    global _keys
    with _lock:
        _keys += 1
        _opened[_keys] = slots
        return _keys


def _receive(key: int, number: int | None, wanted: int, pickled: bytes, times: Any = None) -> Received:
    """In the process that receives. If what it gives is dropped, the slot is free again."""
    slots = _opened.get(key)
    if slots is None:
        raise RuntimeError("a batch came from a worker whose slots are gone")
    slot = None if number is None else slots.shared.take(number)
    outer = getattr(_arriving, "slot", None)
    _arriving.slot = slot
    try:
        batch = pickle.loads(pickled)
    finally:
        _arriving.slot = outer
    return Received(batch, slot, wanted, slots.stages(times))


def _array(for_torch: bool, at: int, name: str, shape: Any, strides: Any) -> Any:
    return _arriving.slot.array(for_torch, at, *_TYPES[name], shape, strides)
