"""feed around a DataLoader with workers: they put their batches into shared slots, which the device reads."""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from . import _core
from ._checks import whole
from ._engines import engine_for
from ._errors import Unsupported
from ._shared_slots import Received, Slots

_MOST_SLOT_BYTES = 8 << 30  # addresses of each slot; a larger batch goes as any batch does
_PAGES = 2 << 20
_limit: int | None = None
_granted = 0
_lock = threading.Lock()


def worker_memory_limit(limit: int | None = None) -> int:
    """The bytes of shared memory that DataLoaders' workers may fill with batches on their way, all feeds together.

    `limit`: sets it; 0: no batch goes through shared slots. Without it, a quarter of the memory that this process may
    use. Memory is taken as batches need it, and a batch that finds no room goes as DataLoader sends it. What feeds have
    already is not taken back. Raises InvalidArgument for what is not a number of bytes. Thread-safe.
    """
    global _limit
    if limit is not None:
        _limit = whole("limit", limit, 0, what="a number of bytes")
    return _core.host_memory_bytes() // 4 if _limit is None else _limit


def _grant(count: int) -> bool:
    global _granted
    limit = worker_memory_limit()
    with _lock:
        fits = _granted + count <= limit
        _granted += count if fits else 0
    return fits


def _give_back(granted: list[int]) -> None:
    global _granted
    with _lock:
        _granted -= sum(granted)


class WorkerFeed:
    """What a feed has for its loader's workers: their slots, kept from epoch to epoch. One thread at a time."""

    def __init__(self, spec: str):
        self._spec = spec
        self._pool: _Pool | None = None
        self._persistent: _Epoch | None = None  # of workers that stay
        self._why = ""

    def begin(self, feed: Any) -> Iterator[Any] | None:
        """The loader's next epoch. None if its batches come as they do without penstock."""
        loader = feed.loader
        why = _why_ordinary(loader)
        if not why and loader.persistent_workers:
            if self._persistent is not None and self._persistent.of is loader:
                return self._persistent.again()
            if loader._iterator is not None:
                why = "its persistent workers were started without penstock.feed"
        if not why:
            try:
                pool = self._pool_for(loader.num_workers, loader.prefetch_factor, feed.prefetch_depth)
            except Unsupported as error:
                why = str(error)
        self._why = why
        if why:
            return None
        epoch = _Epoch(loader, pool)
        self._persistent = epoch if loader.persistent_workers else None
        return epoch

    def _pool_for(self, workers: int, ahead: int, depth: int) -> _Pool:
        # A worker has `ahead` batches under way. The device has those that were sent, and the consumer has one.
        each = ahead + -(-(depth + 3) // workers)
        if self._pool is None or not self._pool.serves(workers, each):
            self._pool = None
            self._pool = _Pool(self._spec, workers, each)
        self._pool.shared.reclaim()
        return self._pool

    def describe(self, loader: Any) -> list[str]:
        why = self._why or _why_ordinary(loader)
        if why:
            return [f"worker processes send their batches as they do without penstock: {why}"] if why != _NONE else []
        return ["worker processes put their batches into shared memory", *(self._pool.describe() if self._pool else ())]


class _Pool(Slots):
    """The slots of one set of workers at a time. They grow as batches need it, within the limit of all feeds."""

    def __init__(self, spec: str, workers: int, each: int):
        engine = engine_for(spec)
        super().__init__(workers, each, min(_MOST_SLOT_BYTES, max(worker_memory_limit(), 1)), engine.numa_node)
        self._engine = engine
        self._workers = workers
        self._processes: list[Any] = []
        self._room = 0
        self._granted = [0] * self.shared.slots
        self._why_not_locked: str | None = None
        self.off = ""
        weakref.finalize(self, _give_back, self._granted).atexit = False

    def serves(self, workers: int, each: int) -> bool:
        """True if new workers may have the slots: none of the earlier ones is left, who might still write."""
        fits = (self._workers, self.each) == (workers, each)
        return fits and not any(process.is_alive() for process in self._processes)

    def start(self, loader: Any) -> tuple[Any, Any]:
        """A copy of the loader whose workers write into the slots, and its iterator."""
        data = sys.modules["torch.utils.data"]
        twin = copy.copy(loader)
        twin._iterator = None
        twin.collate_fn = self.writer(loader.collate_fn, loader.collate_fn is data.default_collate)
        if self._engine.is_cuda:
            twin.pin_memory = False  # the slots are, and `feed` pins what has a `pin_memory()` of its own
        iterator = iter(twin)
        self._processes = iterator._workers
        return twin, iterator

    def open(self, received: Received) -> tuple[Any, Any]:
        """The batch and its slot, which is locked for the device if it can be."""
        if received.wanted > self._room and not self.off:
            self._grow(received.wanted)
        slot = received.slot
        if slot is not None and self._engine.is_cuda and self._why_not_locked is None:
            self._why_not_locked = self.shared.lock(slot, self._engine)
        return received.batch, slot

    def sent(self, slot: Any, flight: Any) -> None:
        """Called when the batch is on its way and its host arrays are dropped. If some are left, an object has kept
        them, and its user may copy them behind our back, from memory that PyTorch takes for pinned."""
        if slot.locked and slot.is_seen(flight):
            _kept.append(slot)
            self.off = "objects in them keep arrays on the host"
            for number in range(self.shared.slots):
                self.shared.allow(number, 0)

    def _grow(self, wanted: int) -> None:
        # A quarter more than what did not fit, unless all batches are alike.
        room = min(-(-(wanted * 5 // 4 if self._room else wanted) // _PAGES) * _PAGES, self.shared.most_bytes)
        self._room = wanted if room < wanted else room
        if room < wanted:
            return
        # The first slot of each worker, then the second one: if not all fit the limit, all workers have some.
        for place in range(self.each):
            for number in range(place, self.shared.slots, self.each):
                more = room - self._granted[number]
                if more > 0 and _grant(more):
                    self._granted[number] = room
                    self.shared.allow(number, room)

    def describe(self) -> list[str]:
        if self.off:
            return [f"but no longer: {self.off}"]
        large = sum(granted > 0 for granted in self._granted)
        lines = [f"{large} of {self.shared.slots} slots have room, {sum(self._granted) >> 20} MiB in all"]
        if self._why_not_locked is not None:
            lines.append(f"the device does not read them where they lie: {self._why_not_locked}")
        return lines


class _Epoch:
    """An epoch of workers that fill slots. Gives what they send."""

    def __init__(self, loader: Any, pool: _Pool):
        self.of = loader
        self.pool = pool
        self._twin, self._iterator = pool.start(loader)

    def again(self) -> _Epoch:
        """The next epoch of persistent workers."""
        self._iterator = iter(self._twin)
        return self

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


_kept: list[Any] = []
_NONE = "it has none"


def _why_ordinary(loader: Any) -> str:
    """Why a loader's workers cannot fill slots; empty if they can."""
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None or not isinstance(loader, module.DataLoader) or not loader.num_workers:
        return _NONE
    theirs, own = type(loader), module.DataLoader
    if theirs.__iter__ is not own.__iter__ or theirs._get_iterator is not own._get_iterator:
        return f"a {theirs.__name__} iterates in its own way"
    if worker_memory_limit() == 0:
        return "worker_memory_limit is 0"
    return ""
