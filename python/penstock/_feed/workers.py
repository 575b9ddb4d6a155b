"""feed's way around a DataLoader with workers: they put their batches into shared slots, which the device reads."""

from __future__ import annotations

import collections
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core, _others
from .._checks import whole
from .._destination import Destination
from .._engines import close_at_exit, engine_for, reap
from .._errors import Unsupported
from .iterator import FeedIterator
from .slots import Received, Slots
from .stages import monotonic
from .way import Way

_MOST_SLOT_BYTES = 8 << 30  # addresses of each slot; a larger batch goes as any batch does
_PAGES = 2 << 20
_limit: int | None = None
_granted = 0  # guarded by the lock
_lock = threading.Lock()
_given_back: collections.deque[int] = collections.deque()  # not yet taken from what is granted


def worker_memory_limit(limit: int | None = None) -> int:
    """The bytes of shared memory that DataLoaders' workers may fill with batches on their way, all feeds together.

    Memory is taken as batches need it, and a batch that finds no room goes as DataLoader sends it. Thread-safe.

    Args:
        limit: Sets it. 0: no batch goes through shared slots. What feeds have already is not taken back. At first it is
            a quarter of the memory that this process may use, shared between the processes that torchrun started here.

    Raises:
        InvalidArgument: It is not a number of bytes.

    Examples:
        >>> penstock.worker_memory_limit() > 0
        True
    """
    global _limit
    if limit is not None:
        _limit = whole("limit", limit, 0, what="a number of bytes")
    return _core.host_memory_bytes() // 4 // _others.processes_of_host() if _limit is None else _limit


def granted() -> int:
    """The bytes that all feeds have."""
    _grant(0, 0)
    return _granted


def _grant(count: int, limit: int) -> bool:
    """Adds `count` to what is granted, unless that passes the limit."""
    global _granted
    with _lock:
        while _given_back:
            _granted -= _given_back.popleft()
        fits = _granted + count <= limit
        _granted += count if fits else 0
    return fits


def _give_back(granted: list[int]) -> None:
    _given_back.append(sum(granted))  # without the lock, which this thread may hold: the garbage collector calls this


class _Workers:
    """What a loader has of its workers, kept in the loader, so that it goes with it: the sources of persistent workers,
    by the devices that receive. Neither copied nor pickled with the loader."""

    def __init__(self, loader: Any):
        self._loader = weakref.ref(loader)
        self.lock = threading.RLock()  # code of the user's runs meanwhile: it may begin another epoch
        self.sources: dict[str, WorkerSource] = {}
        self.off = ""  # why its batches are to come without slots

    @classmethod
    def of(cls, loader: Any) -> _Workers:
        with _registry:
            known = vars(loader).get(_NAME)
            if known is None or known._loader() is not loader:
                known = vars(loader)[_NAME] = cls(loader)
            return known

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> None:
        return None


_NAME = "_penstock_workers"
_registry = threading.Lock()  # of what loaders have, and of:
_all_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _budget() -> tuple[int, int]:
    return worker_memory_limit(), granted()


def _most_bytes() -> int:
    """The most that a slot may take. These are addresses only: memory is taken as it is written."""
    return min(_MOST_SLOT_BYTES, max(worker_memory_limit(), 1))


class WorkersWay(Way):
    """Has the slots that a DataLoader's workers fill, and keeps them from epoch to epoch. Thread-safe."""

    def __init__(self, destination: Destination):
        self._destination = destination
        self._own: _Pool | None = None  # for workers that do not stay
        self.pool: _Pool | None = None  # of the latest epoch

    def why_not(self, feed: Any) -> str | None:
        """Empty if the loader has no workers."""
        return _why_not(feed.loader)

    def begin(self, feed: Any) -> FeedIterator | None:
        self.why = _why_not(feed.loader)
        if self.why is not None:
            return None
        workers = _Workers.of(feed.loader)
        with workers.lock:
            pool = self._pool_for(feed, workers)
            if isinstance(pool, str):
                self.why = pool
                return None
            return FeedIterator(feed).start(lambda loader: self._source(loader, workers, pool))

    def describe(self, feed: Any, why: str | None) -> list[str]:
        why = self.why if why is None else why
        if why:
            return [f"worker processes send their batches as they do without penstock: {why}"]
        if why is not None:
            return []
        return ["worker processes put their batches into shared memory", *(self.pool.describe() if self.pool else ())]

    def _pool_for(self, feed: Any, workers: _Workers) -> _Pool | str:
        """The slots for the next epoch, or why there are none."""
        loader = feed.loader
        if _keeps_iterator(loader):
            if loader._initial_iter_for_state_dict:
                return "its state was asked for, which started its workers"
            loader._iterator = None  # ends the workers of an epoch that was left
        if loader.persistent_workers:
            source = workers.sources.get(self._destination.name)
            if source is not None and all(process.is_alive() for process in source.pool.processes):
                return source.pool
            if loader._iterator is not None:
                return "its persistent workers were started without penstock.feed"
        # A worker has some batches under way. The device has those that were sent, and the consumer has one.
        each = loader.prefetch_factor - (-(feed.prefetch_depth + 3) // loader.num_workers)
        if not loader.persistent_workers and self._own is not None and self._own.serves(loader.num_workers, each):
            return self._own
        try:
            pool = _Pool(self._destination.specs[0], loader.num_workers, each)
        except Unsupported as reason:
            return str(reason)
        if not loader.persistent_workers:
            self._own = pool
        return pool

    def _source(self, loader: Any, workers: _Workers, pool: _Pool) -> WorkerSource:
        kept = workers.sources.get(self._destination.name) if loader.persistent_workers else None
        if kept is not None and kept.pool is pool:
            source = kept.again(loader)
        else:
            source = WorkerSource(loader, pool)
            if loader.persistent_workers:
                workers.sources[self._destination.name] = source
        self.pool = pool
        return source


class _Pool(Slots):
    """The slots of one set of workers at a time. They grow as batches need it, within the limit of all feeds. They are
    locked for one device; the others of a group read them, too."""

    def __init__(self, spec: str, workers: int, each: int):
        self._engine = engine_for(spec)
        super().__init__(workers, each, _most_bytes(), self._engine.numa_node)
        self._workers = workers
        self._source: Callable[[], WorkerSource | None] = lambda: None  # the latest
        self.processes: list[Any] = []
        self.workers: Callable[[], _Workers | None] = lambda: None
        self._granted = [0] * self.shared.slots
        self._refused: tuple[int, tuple[int, int]] | None = None  # what was wanted, and the budget then
        self._too_large = 0  # bytes
        self.off = ""
        weakref.finalize(self, _give_back, self._granted).atexit = False
        close_at_exit(self)

    def close(self) -> None:
        """Ends the thread that locks slots. Those that are not locked stay so."""
        self.shared.end_locks()

    def serves(self, workers: int, each: int) -> bool:
        """True if new workers may have the slots: none of the earlier ones is left, who might still write, and nobody
        who might still ask for what these sent."""
        fits = (self._workers, self.each, self.shared.most_bytes) == (workers, each, _most_bytes())
        if not fits or self.shared.retired or self._source() is not None:
            return False
        self.prune()
        return not self.processes

    def prune(self) -> None:
        """Forgets processes that have ended, each of which has open files here."""
        self.processes = [process for process in self.processes if process.is_alive()]

    def start(self, loader: Any, source: WorkerSource) -> tuple[Any, Any]:
        """A copy of the loader whose workers write into the slots, and its iterator."""
        data = sys.modules["torch.utils.data"]
        self._source = weakref.ref(source)
        self.shared.reclaim()
        self._return_lent()
        twin = object.__new__(type(loader))
        writer = self.writer(loader.collate_fn, loader.collate_fn is data.default_collate)
        own = {_NAME: None, "_iterator": None, "collate_fn": writer}
        if self._engine.is_cuda:
            own["pin_memory"] = False  # slots are locked, and `feed` pins what has its own `pin_memory()`
        vars(twin).update(vars(loader) | own)
        before = _core.forks_are_workers(True)
        try:
            iterator = iter(twin)
        finally:
            _core.forks_are_workers(before)
        self.processes = list(getattr(iterator, "_workers", ()))
        with _registry:
            _all_processes.update(self.processes)
        if _keeps_iterator(loader):
            # The loader's state is that of its iterator. A state that was loaded is used up.
            loader._iterator, loader.next_iter_state = iterator, twin.next_iter_state
        return twin, iterator

    def again(self, twin: Any, loader: Any) -> Any:
        """The iterator of the next epoch of persistent workers."""
        self._return_lent()
        kept = {name: vars(twin)[name] for name in (_NAME, "_iterator", "collate_fn", "pin_memory")}
        vars(twin).update(vars(loader) | kept)
        return iter(twin)

    def _return_lent(self) -> None:
        """Frees slots that devices have read by now, and slots whose batches workers may have inherited, unless such
        workers are left. Its own persistent ones are older than all its batches."""
        reap()
        with _registry:
            others = list(_all_processes.difference(self.processes))
        if not any(process.is_alive() for process in others):
            self.shared.return_lent()

    def open(self, received: Received) -> None:
        """Has the slot of a batch locked for the device if it can be, off the way: until then, its batches travel as
        others do."""
        if received.wanted > min(self._granted) and self._may_have(received.wanted):
            self._grow(received.wanted)
        slot = received.slot
        if slot is not None and self._engine.is_cuda:
            self.shared.lock_soon(slot, self._engine)

    def sent(self, slot: Any, flight: Any) -> None:
        """Called when the batch is on its way and its host arrays are dropped. If some are left, an object has kept
        them, and its user may copy them behind our back, from memory that PyTorch takes for pinned."""
        if slot.locked and slot.is_seen(flight):
            place = self._granted.index(max(self._granted))
            _kept.append((slot, self._granted[place]))
            self._granted[place] = 0  # it stays granted
            self.turn_off("objects in them keep arrays on the host")
            for number in range(self.shared.slots):
                self.shared.allow(number, 0)

    def turn_off(self, why: str) -> None:
        """From here on the loader's batches come without slots."""
        self.off = why
        workers = self.workers()
        if workers is not None:
            workers.off = why
            workers.sources.clear()  # their workers, which persist, end with the epoch

    def _may_have(self, wanted: int) -> bool:
        """False if there is no use in asking for that much room."""
        if wanted > self.shared.most_bytes:
            self._too_large = max(wanted, self._too_large)
            return False
        refused = self._refused is not None and wanted >= self._refused[0] and self._refused[1] == _budget()
        return not refused and not self.off

    def _grow(self, wanted: int) -> None:
        most = max(self._granted)
        self._refused = None
        if 0 < most < wanted and self._give_room(wanted * 5 // 4):  # not all batches are alike
            return
        if not self._give_room(wanted):
            self._refused = wanted, _budget()

    def _give_room(self, wanted: int) -> bool:
        """Gives all slots that room; false if the limit forbids it to some."""
        room = min(-(-wanted // _PAGES) * _PAGES, self.shared.most_bytes)
        limit = worker_memory_limit()
        # The first slot of each worker, then the second one: if not all fit the limit, all workers have some.
        for place in range(self.each):
            for number in range(place, self.shared.slots, self.each):
                before = self._granted[number]
                if before >= room:
                    continue
                self._granted[number] = room  # first, so that Ctrl-C loses nothing
                if not _grant(room - before, limit):
                    self._granted[number] = before
                    return False
                self.shared.allow(number, room)
        return True

    def describe(self) -> list[str]:
        if self.off:
            return [f"but no longer: {self.off}"]
        large, retired = sum(granted > 0 for granted in self._granted), self.shared.retired
        lines = [f"{large} of {self.shared.slots} slots have room, {sum(self._granted) >> 20} MiB in all"]
        if retired:
            lines.append(f"{retired} of them are used no more: processes that were forked may read them")
        if self._refused:
            lines.append("worker_memory_limit allows no more")
        if self._too_large:
            lines.append(f"a batch of {self._too_large} bytes is larger than a slot may be: {self.shared.most_bytes}")
        if self.shared.why_not_locked:
            lines.append(f"the device does not read them where they lie: {self.shared.why_not_locked}")
        return lines


class WorkerSource:
    """An epoch of workers that fill slots. Gives what they send."""

    why_no_stages = ""  # of batches; empty: they are timed

    def __init__(self, loader: Any, pool: _Pool):
        self.pool = pool
        pool.workers = weakref.ref(_Workers.of(loader))
        self._twin, self.iterator = pool.start(loader, self)

    def again(self, loader: Any) -> WorkerSource:
        """The next epoch of persistent workers."""
        self.iterator = self.pool.again(self._twin, loader)
        return self

    def __iter__(self) -> WorkerSource:
        return self

    def __next__(self) -> Received:
        self.pool.asked = monotonic()
        try:
            received = next(self.iterator)
        except StopIteration:
            self.pool.prune()
            raise
        if type(received) is not Received:
            self.pool.turn_off("its workers are threads, which share this process's memory")
            return Received(received, None, 0)
        self.pool.open(received)
        return received

    def sent(self, slot: Any, flight: Any) -> None:
        """Called when a batch is on its way and its host arrays are dropped."""
        if slot is not None:
            self.pool.sent(slot, flight)

    def is_ready(self) -> bool:
        """True if a batch has come from the workers and was not asked for, or if PyTorch's iterator does not tell."""
        iterator = self.iterator
        try:
            return len(iterator._task_info.get(iterator._rcvd_idx, ())) == 2 or not iterator._data_queue.empty()
        except AttributeError:
            return True


def _stateful() -> Any:
    """torchdata's StatefulDataLoader; None if the program does not use it."""
    module = sys.modules.get("torchdata.stateful_dataloader")
    return getattr(module, "StatefulDataLoader", None)


def _keeps_iterator(loader: Any) -> bool:
    """True for a StatefulDataLoader: it keeps its iterator, which has its state."""
    stateful = _stateful()
    return stateful is not None and isinstance(loader, stateful)


_kept: list[tuple[Any, int]] = []  # slots that are never free again, and their bytes


def _why_not(loader: Any) -> str | None:
    """Why a loader's workers cannot fill slots; empty if it has none. None if they can."""
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None or not isinstance(loader, module.DataLoader) or not loader.num_workers:
        return ""
    theirs, known = type(loader), _stateful() if _keeps_iterator(loader) else module.DataLoader
    if theirs.__iter__ is not known.__iter__ or theirs._get_iterator is not known._get_iterator:
        return f"a {theirs.__name__} iterates in its own way"
    if _keeps_iterator(loader) and loader.persistent_workers:
        return f"the workers of a {theirs.__name__} are persistent"
    if any(hasattr(theirs, name) or name not in vars(loader) for name in ("collate_fn", "pin_memory", "_iterator")):
        return f"a {theirs.__name__} keeps its collate_fn in its own way"
    if hasattr(theirs, "__del__") or any(vars(base).get("__slots__") for base in theirs.__mro__):
        return f"a {theirs.__name__} cannot be copied"
    if vars(loader).get(_NAME) is not None and _Workers.of(loader).off:
        return _Workers.of(loader).off
    if worker_memory_limit() == 0:
        return "worker_memory_limit is 0"
    return None
