"""feed around a DataLoader with workers: they put their batches into shared slots, which the device reads."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
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
_lock = threading.RLock()  # while a thread holds it, its garbage collector may give back


def worker_memory_limit(limit: int | None = None) -> int:
    """The bytes of shared memory that DataLoaders' workers may fill with batches on their way, all feeds together.

    `limit`: sets it; 0: no batch goes through shared slots. Without it, a quarter of the memory that this process may
    use, shared between the processes that torchrun started on this machine. Memory is taken as batches need it, and a
    batch that finds no room goes as DataLoader sends it. What feeds have already is not taken back. Raises
    InvalidArgument for what is not a number of bytes. Thread-safe.
    """
    global _limit
    if limit is not None:
        _limit = whole("limit", limit, 0, what="a number of bytes")
    return _core.host_memory_bytes() // 4 // _local_processes() if _limit is None else _limit


@functools.cache
def _local_processes() -> int:
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(count)) if count.isdigit() else 1


def _budget() -> tuple[int, int]:
    return worker_memory_limit(), _granted


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


# The workers of loaders with persistent ones, by device. They stay for as long as the loader does.
_persistent: weakref.WeakKeyDictionary[Any, dict[str, _Epoch]] = weakref.WeakKeyDictionary()


class WorkerFeed:
    """What a feed has for its loader's workers: their slots, kept from epoch to epoch. Thread-safe."""

    def __init__(self, spec: str):
        self._spec = spec
        self._pool: _Pool | None = None
        self._why = ""
        self._beginning = threading.RLock()  # code of the user's runs meanwhile: it may begin another epoch

    def begin(self, feed: Any) -> Iterator[Any] | None:
        """The loader's next epoch. None if its batches come as they do without penstock."""
        loader = feed.loader
        self._why = _why_ordinary(loader)
        if self._why:
            return None
        with self._beginning:
            known = _persistent.setdefault(loader, {}) if loader.persistent_workers else {}
            epoch = known.get(self._spec)
            if epoch is not None:
                self._pool = epoch.pool
                return epoch.again()
            if loader.persistent_workers and loader._iterator is not None:
                self._why = "its persistent workers were started without penstock.feed"
                return None
            try:
                pool = self._pool_for(loader.num_workers, loader.prefetch_factor, feed.prefetch_depth)
            except Unsupported as error:
                self._why = str(error)
                return None
            epoch = _Epoch(loader, pool)
            known[self._spec] = epoch
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
        most = min(_MOST_SLOT_BYTES, max(worker_memory_limit(), 1))
        # On the host, batches are handed out where they lie.
        super().__init__(workers, each, most, engine.numa_node, outlive_forks=not engine.is_cuda)
        self._engine = engine
        self._workers = workers
        self._epoch: Callable[[], _Epoch | None] = lambda: None  # the latest
        self.processes: list[Any] = []
        self._granted = [0] * self.shared.slots
        self._refused: tuple[int, tuple[int, int]] | None = None  # what was wanted, and the budget then
        self._why_not_locked: str | None = None
        self.off = ""
        weakref.finalize(self, _give_back, self._granted).atexit = False

    def serves(self, workers: int, each: int) -> bool:
        """True if new workers may have the slots: none of the earlier ones is left, who might still write, and nobody
        who might still ask for what these sent."""
        fits = (self._workers, self.each) == (workers, each) and not self.shared.retired
        return fits and self._epoch() is None and not any(process.is_alive() for process in self.processes)

    def start(self, loader: Any, epoch: _Epoch) -> tuple[Any, Any]:
        """A copy of the loader whose workers write into the slots, and its iterator."""
        data = sys.modules["torch.utils.data"]
        twin = object.__new__(type(loader))
        vars(twin).update(vars(loader))
        vars(twin)["_iterator"] = None
        vars(twin)["collate_fn"] = self.writer(loader.collate_fn, loader.collate_fn is data.default_collate)
        if self._engine.is_cuda:
            vars(twin)["pin_memory"] = False  # slots are locked, and `feed` pins what has its own `pin_memory()`
        self._epoch = weakref.ref(epoch)
        _core.count_forks(False)  # the workers use none of this process's batches
        try:
            iterator = iter(twin)
        finally:
            _core.count_forks(True)
        self.processes = iterator._workers
        return twin, iterator

    def open(self, received: Received) -> tuple[Any, Any]:
        """The batch and its slot, which is locked for the device if it can be."""
        if received.wanted > min(self._granted) and self._may_have(received.wanted):
            self._grow(received.wanted)
        slot = received.slot
        if slot is not None and self._engine.is_cuda:
            why = self.shared.lock(slot, self._engine, self._why_not_locked is None)
            self._why_not_locked = self._why_not_locked or why
        return received.batch, slot

    def sent(self, slot: Any, flight: Any) -> None:
        """Called when the batch is on its way and its host arrays are dropped. If some are left, an object has kept
        them, and its user may copy them behind our back, from memory that PyTorch takes for pinned."""
        if slot.locked and slot.is_seen(flight):
            _kept.append(slot)
            self.off = "objects in them keep arrays on the host"
            for number in range(self.shared.slots):
                self.shared.allow(number, 0)

    def _may_have(self, wanted: int) -> bool:
        """False if there is no use in asking for that much room."""
        refused = self._refused is not None and wanted >= self._refused[0] and self._refused[1] == _budget()
        return not refused and not self.off and wanted <= self.shared.most_bytes

    def _grow(self, wanted: int) -> None:
        most = max(self._granted)
        room = wanted * 5 // 4 if 0 < most < wanted else wanted  # not all batches are alike
        room = min(-(-room // _PAGES) * _PAGES, self.shared.most_bytes)
        self._refused = None
        # The first slot of each worker, then the second one: if not all fit the limit, all workers have some.
        for place in range(self.each):
            for number in range(place, self.shared.slots, self.each):
                more = room - self._granted[number]
                if more <= 0:
                    continue
                if not _grant(more):
                    self._refused = wanted, _budget()
                    return
                self._granted[number] = room
                self.shared.allow(number, room)

    def describe(self) -> list[str]:
        if self.off:
            return [f"but no longer: {self.off}"]
        large = sum(granted > 0 for granted in self._granted)
        lines = [f"{large} of {self.shared.slots} slots have room, {sum(self._granted) >> 20} MiB in all"]
        if self._refused:
            lines.append("worker_memory_limit allows no more")
        if self._why_not_locked is not None:
            lines.append(f"the device does not read them where they lie: {self._why_not_locked}")
        return lines


class _Epoch:
    """An epoch of workers that fill slots. Gives what they send."""

    def __init__(self, loader: Any, pool: _Pool):
        self.pool = pool
        self._twin, self._iterator = pool.start(loader, self)

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
    if any(hasattr(theirs, name) or name not in vars(loader) for name in ("collate_fn", "pin_memory", "_iterator")):
        return f"a {theirs.__name__} keeps its collate_fn in its own way"
    if theirs.__hash__ is None:
        return f"a {theirs.__name__} cannot be hashed"
    if worker_memory_limit() == 0:
        return "worker_memory_limit is 0"
    return ""
