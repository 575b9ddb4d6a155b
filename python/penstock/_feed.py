"""feed: another library's loader, with its batches on the device."""

from __future__ import annotations

import collections
import copy
import functools
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from . import _core, _others
from ._checks import whole
from ._engines import resolve
from ._errors import InvalidArgument, note
from ._native_feed import NativeFeed, NativeIterator, may_be_native, not_for_processes, why_not_native
from ._receivers import Receivers
from ._resume import Placed, TorchOrder, may_overtake, sampler_of, torch_order_of, unresumable
from ._shared_slots import Received
from ._stages import Watch, watch_batches, why_unknown, workers_of
from ._static import StaticBatches, check, refuse_unless_garbage
from ._statistics import FeedStatistics
from ._transfers import expander_for
from ._worker_feed import WorkerEpoch, WorkerFeed


def feed(
    loader: Iterable[Any],
    device: Any = "auto",
    prefetch_depth: int = 2,
    *,
    sharded: bool = False,
    native: bool = True,
    static: bool = False,
    resumable: bool = False,
    group: Any = None,
) -> Feed:
    """Wrap a loader so that its batches arrive on a device, `prefetch_depth` of them ahead.

    `loader` is any iterable of batches, such as a DataLoader. A batch is any nest that `to_device` takes. Each becomes
    one packed transfer on a copy stream. When a batch is handed out, PyTorch's current stream waits for it, and the
    host does not. Batches stay valid for as long as they are kept.

    Order, length, errors and state are those of the loader. If a batch raises, the exception comes in that batch's
    place, and the next `next()` goes on as the loader does. If the loader has `state_dict`, `load_state_dict` and
    `set_epoch`, the feed has them too. The state is that of the batch that was handed out, without those read ahead.

    Around a DataLoader whose sampler is `penstock.Sampler`, alone or in PyTorch's BatchSampler, a feed has a state of
    its own: the place in the epoch, which can be loaded with another number of processes, another batch size and other
    `num_workers`. `resumable=True` asks for a state, and is an InvalidArgument if none can be kept. If samples are
    gathered natively, it also keeps one for PyTorch's SequentialSampler, RandomSampler and DistributedSampler, whose
    order stays PyTorch's. The rest of such an epoch, once it is resumed, takes nothing from PyTorch's random state.

    Around a loader that Accelerate prepared, batches go to Accelerate's device. Its `end_of_dataloader` and `remainder`
    are those of the batch that was handed out. A feed of a feed is a feed of the inner one's loader.

    If a batch has its own `to(device)`, that is called; for a GPU, its `pin_memory()` is called before. See also
    `register_batch_type`.

    If several processes train together and nothing shards the loader's samples, a NotShardedWarning says what to
    write, once, when iteration begins. `sharded=True` says that they are sharded.

    If the loader is a DataLoader whose dataset is a TensorDataset, or a Subset of one, its samples are gathered
    natively, without worker processes: the same batches in the same order, and the same random state afterwards. The
    loader must be a plain DataLoader with the default collate_fn, and its workers must have no worker_init_fn of the
    user's. The tensors are read in place: they may change between epochs, but not while one is under way. A dataset
    whose samples are the rows of tensors says so with a property `__penstock_tensors__`, a tuple or dict of them, in
    the class that has `__getitem__`. `native=False` turns this off, and `describe()` says what was done and why.

    If a DataLoader has worker processes (`num_workers` above 0), they put their batches into shared memory, which a
    GPU reads where it lies; see `worker_memory_limit`. On the host, a batch keeps a part of that memory for as long as
    one of its arrays is kept. Pageable batches of other loaders that have a `num_workers` above 0 are moved in the
    background, by threads of penstock. If this process itself makes the batches for a GPU, PyTorch's threads, which
    have just made them, copy tensors of 1 MiB and more into pinned memory: other threads would take their cores. An
    iterable around a loader with workers must pass on its `num_workers`.

    `static=True` is for captured graphs, by `torch.cuda.graph` or `torch.compile(mode="reduce-overhead")`: batches
    arrive in turn at `prefetch_depth` + 1 fixed sets of addresses, as the same tensor objects, which are marked with
    `torch._dynamo.mark_static_address`. So one captured graph for each set reads its input where it arrives. Batches of
    other shapes, such as a smaller last one, have sets of their own. To keep a batch, or a view of it, is then an error
    (InvalidArgument), as soon as the next one needs its memory; nothing is overwritten that somebody keeps. One place
    is taken by the batch that the loop's variable still holds while the next one is asked for, so `prefetch_depth` - 1
    batches are ahead. If memory of the dataset is replaced in a native feed, there are new addresses. A batch must be
    plain arrays of the host, in any nest; for others it is a TypeError.

    `group`: a list of devices in place of `device`, such as ["cuda:0", "cuda:1"]. Each gets every batch: an iteration
    gives lists with one batch for each device, as `Loader(group=...)` does. Each byte crosses one link, if the devices
    reach each other's memory: see `to_device`. If one device fails or has no memory for a batch, the error comes in
    that batch's place. Or a `ProcessGroup`: each of its processes has one device and feeds an equal DataLoader, whose
    sampler gives the same batches, so seed PyTorch alike in all of them. Each process brings a part of every batch, or
    all of it if the devices do not reach each other's memory. It is then an InvalidArgument if samples cannot be
    gathered natively, and an Error if the samplers differ. A group excludes `static`.

    All your code runs on the thread that iterates. The loader is asked for `prefetch_depth` more batches before one is
    handed out. So a loader must not overwrite a batch that it has yielded (DataLoader does not), and leaving the loop
    early leaves produced batches unused. Iterate within one stream context: a batch's memory belongs to the stream that
    was current when it was sent.

    `device`: "auto", "cuda", "cuda:1", "cpu" or "host", or a torch.device. "auto" is PyTorch's current GPU, otherwise
    the first one, otherwise the host. `prefetch_depth`: 0 and up; with `static`, 1 and up. Raises InvalidArgument for
    other values, and DeviceError in a DataLoader's worker process.
    """
    options = dict(sharded=sharded, native=native, static=static, resumable=resumable, group=group)
    return Feed(loader, device, prefetch_depth, **options)


class Feed:
    """The result of `feed`: an iterable with the length and the attributes of the loader that it wraps.

    Attributes whose names begin with an underscore stay the loader's own. Assigning to an attribute of the loader
    assigns to the loader. A feed can be pickled if its loader can; the copy's statistics begin at 0.
    """

    _own = frozenset(
        {"loader", "device", "devices", "prefetch_depth", "sharded", "native", "static", "resumable", "group"}
    )
    _held = 1  # batches that the loop holds while it asks for the next one

    def __new__(cls, loader: Any, *arguments: Any, **options: Any) -> Feed:
        kind = _kind_of(_unwrapped(loader), options.get("resumable", False)) if cls is Feed else cls
        return object.__new__(kind)

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = "auto",
        prefetch_depth: int = 2,
        *,
        sharded: bool = False,
        native: bool = True,
        static: bool = False,
        resumable: bool = False,
        group: Any = None,
    ):
        loader = _unwrapped(loader)
        self.prefetch_depth = whole("prefetch_depth", prefetch_depth, 0, what="a number of batches")
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"penstock.feed takes an iterable of batches, not {type(loader).__name__}.")
        self.loader = loader
        self.sharded = bool(sharded)
        self.native = bool(native)
        self.static = bool(static)
        self.resumable = bool(resumable)
        self.group = list(group) if isinstance(group, Iterable) and not isinstance(group, str) else group
        if self.group is not None and self.static:
            raise InvalidArgument("static=True delivers to fixed addresses of one device: leave group out.")
        self._set_receivers(device)
        self._order = self._find_order()
        self._state: Any = None
        self._turn = 0  # of the iterator whose state is the feed's
        engine = self._receivers.engine
        if self.static:
            check(engine, self.prefetch_depth)
        self._refuse_unless_all_may_get_it()

    def _set_receivers(self, device: Any) -> None:
        self._receivers = Receivers(device, self.group)
        self.device, self.devices = self._receivers.name, self._receivers.specs

    def _refuse_unless_all_may_get_it(self) -> None:
        why = "" if self._receivers.processes is None else why_not_native(self)
        if why:
            raise not_for_processes(why)

    def _find_order(self) -> Any:
        """What keeps this feed's place; None if its loader does, or nobody. Raises InvalidArgument if nobody can and
        `resumable` asks for it."""
        if _others.keeps_state(self.loader):
            return None
        order = sampler_of(self.loader)
        if order is None and self.resumable:
            if may_overtake(self.loader):
                raise unresumable("batches of its workers may overtake each other", "Leave in_order=False out")
            why = why_not_native(self)
            if why:
                raise unresumable(why)
            order = torch_order_of(self.loader)
        return order

    @property
    def _needs_native(self) -> bool:
        """True if the place can be kept only while samples are gathered natively."""
        return isinstance(self._order, TorchOrder)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        if self.static:
            check(self._receivers.engine, self.prefetch_depth)
        self._refuse_unless_all_may_get_it()
        ordinary = functools.partial(FeedIterator, self)
        return NativeIterator(self, ordinary) if may_be_native(self) else ordinary()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _STATE_NAMES:
            raise AttributeError(f"{type(self.loader).__name__} has no working {name}")
        if name == "dataset" and not _others.is_prepared(self.loader):
            _others.refuse_to_be_rebuilt(sys._getframe(1))
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name.startswith("_") or name in self._own or not hasattr(self.loader, name)):
            setattr(self.loader, name, value)
            return
        if name in ("loader", "native") and self.__dict__.get("_order") is not None:
            raise InvalidArgument(
                f"This feed keeps its place by its DataLoader's sampler, so that its {name} cannot be replaced: make "
                "another feed."
            )
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple:
        options = {name: getattr(self, name) for name in ("sharded", "native", "static", "resumable", "group")}
        again = functools.partial(feed, **options)
        device = "auto" if self._receivers.together else self._receivers.name
        return again, (self.loader, device, self.prefetch_depth)

    def __repr__(self) -> str:
        where = f"device={self._receivers.name!r}" if self.group is None else f"group={self.group!r}"
        return f"penstock.feed({self.loader!r}, {where}, prefetch_depth={self.prefetch_depth})"

    def stats(self) -> FeedStatistics:
        """The account of this feed so far. It goes on with the feed: each figure is the one at the time of reading. If
        some batches were gathered natively and others not, it is the account of those like the latest."""
        return FeedStatistics(self._receivers.name, lambda: self._counted.stats(), lambda: self._counted.timeline())

    def device_stats(self) -> list[_core.FeedStatistics]:
        """Of a group of devices, if samples are gathered natively: as Loader.device_stats. If not, `describe()` says
        how many bytes each link has carried, and this is an InvalidArgument."""
        if not self._receivers.together:
            raise InvalidArgument("This feed has one device, over its own link: use stats().")
        if self._native.counted is None:
            raise InvalidArgument(
                "No account of each device is kept, since the batches are those that the loader makes: stats() is the "
                "account of all, and describe() says how many bytes each link has carried."
            )
        return self._native.counted.device_stats()

    def describe(self) -> list[str]:
        """Lines that say how the batches are made, and why. They hold for the epoch that is under way, or else the next
        one. May make the native loader, as iterating does."""
        lines = self._native.describe(self)
        if self.static:
            lines.append(f"batches arrive, in turn, at {self._sets} fixed sets of addresses")
        if self._receivers.together and not self._native.makes_batches:
            lines += self._describe_links()
        return lines

    def _describe_links(self) -> list[str]:
        carried = zip(self.devices, self._receivers.group.carried(), strict=True)
        return [
            "batches of 1 MiB and more go once over the links of all devices that reach each other, smaller ones over "
            "each",
            "links: carried so far, with all else that was sent to these devices together, by "
            + ", ".join(f"{spec} {count} bytes" for spec, count in carried),
        ]

    @functools.cached_property
    def _account(self) -> _core.FeedAccount:
        return _core.FeedAccount(self._receivers.engine, self.prefetch_depth)

    @functools.cached_property
    def _native(self) -> NativeFeed:
        return NativeFeed(self._receivers)

    @functools.cached_property
    def _workers(self) -> WorkerFeed:
        return WorkerFeed(self._receivers)

    @property
    def _sets(self) -> int:
        """The number of sets of addresses, if the batches are static."""
        return self.prefetch_depth + self._held

    @functools.cached_property
    def _static(self) -> StaticBatches:
        return StaticBatches()

    @property
    def _counted(self) -> Any:
        """What has the account of the latest iteration."""
        return self._native.counted or self._account

    def _beginning(self) -> Any:
        """The state in which the next iteration begins; None: that of the loader."""

    def _follow(self) -> Callable[[Any], Any] | None:
        """Called before an iteration: what tells the state after the batch that its source has just given. None: there
        is no state."""

    def _begin_turn(self, beginning: Any) -> int:
        """From here on, the feed's state is that of the iterator with this number."""
        self._state = beginning
        self._turn += 1
        return self._turn

    def _note(self, turn: int, state: Any) -> None:
        if turn == self._turn:
            self._state = state

    def _warn(self) -> None:
        if not self.sharded and self._receivers.processes is None:  # whose processes need the same samples
            _others.warn_unless_sharded(self.loader, "penstock.feed")
        _others.warn_of_lost_accumulation(self.loader, "penstock.feed")


class _Stateful:
    """The methods of a feed whose loader keeps a state."""

    def state_dict(self: Any) -> Any:
        """The loader's state after the batch that was handed out last, without those that were read ahead."""
        return self.loader.state_dict() if self._state is None else copy.deepcopy(self._state)

    def load_state_dict(self: Any, state: Any) -> None:
        """Passes a state to the loader. The next iteration begins there; earlier iterators keep no state."""
        self.loader.load_state_dict(state)
        self._begin_turn(None)

    def _follow(self: Any) -> Callable[[Any], Any]:
        return lambda _: copy.deepcopy(self.loader.state_dict())  # copied, since the loader may go on writing into it


class _Epochs:
    """The methods of a feed whose loader, or its sampler or dataset, takes the epoch."""

    def set_epoch(self: Any, epoch: int) -> None:
        """Passes the epoch to the loader; if it does not take it, to its sampler, otherwise to its dataset."""
        _others.epoch_taker(self.loader).set_epoch(epoch)
        if self._order is not None:
            self._state = None


class _Prepared:
    """The methods of a feed whose loader Accelerate prepared: the batches are fed to that loader, under it.

    Accelerate's loader itself moves batches, and notes whether one is the last. So it must come after the feed: it is
    the one that is iterated, and meanwhile the DataLoader in it is replaced by a feed of that DataLoader.
    """

    @property
    def __class__(self) -> type:
        # Accelerate's loaders also answer with the class of the loader in them: `skip_first_batches` asks for it.
        return type(self.__dict__["loader"]) if "loader" in self.__dict__ else type(self)

    @property
    def device(self: Any) -> Any:
        """The device to which Accelerate moves the batches."""
        return _others.device_of_prepared(self.loader)

    def _set_receivers(self: Any, device: Any) -> None:
        if self.group is not None:
            raise InvalidArgument("Accelerate moves the batches of this loader to one device: leave group out.")
        wanted, given = resolve(device), self.device
        if given is not None:
            theirs = resolve(given)
            same_host = theirs.startswith("host") and wanted.startswith("host")
            if device != "auto" and theirs != wanted and not same_host:
                raise InvalidArgument(
                    f"Accelerate moves the batches of this loader to {given}, not to {device}: leave `device` out."
                )
            wanted = theirs if device == "auto" else wanted
        self._receivers = Receivers(wanted)
        self.devices = [wanted]

    def describe(self: Any) -> list[str]:
        return self._inner(_unwrapped(self.loader.base_dataloader)).describe()

    def _inner(self: Any, base: Any) -> Feed:
        inner = _Under(
            base, self._receivers.name, self.prefetch_depth, sharded=True, native=self.native, static=self.static
        )
        inner._account, inner._native, inner._workers = self._account, self._native, self._workers
        inner._static = self._static
        return inner

    def __iter__(self: Any) -> Iterator[Any]:
        loader, base = self.loader, _unwrapped(self.loader.base_dataloader)
        inner = self._inner(base)
        # Loops may nest: each gives the place back to the one that goes on.
        active = self.__dict__.setdefault("_active", [])
        active.append(inner)
        loader.base_dataloader = inner
        try:
            yield from loader
        finally:
            active.remove(inner)
            loader.base_dataloader = active[-1] if active else base


@functools.cache
def _with(*mixins: type) -> type[Feed]:
    return type("Feed", (*mixins, Feed), {"__module__": Feed.__module__, "__doc__": Feed.__doc__}) if mixins else Feed


_END = object()
_STATE_NAMES = frozenset({"state_dict", "load_state_dict", "set_epoch"})


def _kind_of(loader: Any, resumable: bool = False) -> type[Feed]:
    """Feed with the methods that work for this loader. Code looks for methods, so those that would raise are absent."""
    prepared = _others.is_prepared(loader)
    mixins: list[type] = [_Prepared] if prepared else []
    if _others.keeps_state(loader):
        mixins.append(_Stateful)
    elif resumable or sampler_of(loader) is not None:
        mixins.append(Placed)
    if _others.epoch_taker(loader) is not None:
        mixins.append(_Epochs)
    return _with(*mixins)


def _unwrapped(loader: Any) -> Any:
    return loader.__dict__["loader"] if issubclass(type(loader), Feed) else loader


class FeedIterator:
    """One epoch of a feed. Does not ask the loader before the first `next()`. One thread at a time."""

    def __init__(self, feed: Feed, source: Iterator[Any] | None = None, turn: int = 0):
        """`source`: what is left of a native epoch, in this turn; None: the loader's next epoch."""
        self._feed = feed
        self._account = _core.FeedIteration(feed._account)
        self._receivers = feed._receivers
        self._expand = [expander_for(engine, feed.static) for engine in self._receivers.engines]
        self._fixed = feed._static.of(feed._sets) if feed.static else None
        # If workers make the batches, this process's threads are free to move them.
        self._pin = not getattr(feed.loader, "num_workers", 0)
        self._source = source
        self._watch: Watch | None = None
        self._state_after = None if source is None else lambda rest: rest.batches.state(rest.batches.samples)
        self._pending: collections.deque[Any] = collections.deque()
        self._turn = turn
        self._reads = True
        self._over = False

    def __iter__(self) -> FeedIterator:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            self._account.ask(len(self._pending))
            return self._next()
        finally:
            self._account.leave(self._over)

    def _next(self) -> Any:
        self._fill()
        feed = self._feed
        if not self._pending:
            self.close()
            feed._note(self._turn, None)
            raise StopIteration
        item = self._pending.popleft()
        if isinstance(item, Exception):
            self._reads = True
            try:
                if isinstance(item, StopIteration):  # from a batch's own code: it would end the loop silently
                    raise RuntimeError("a batch raised StopIteration while it was sent") from item
                raise item
            finally:
                del item
        flight, state = item
        batch = self._account.land(flight)
        feed._note(self._turn, state)
        return batch

    def start(self) -> None:
        """Begins the epoch; from here on this iterator's state is the feed's."""
        feed = self._feed
        feed._warn()
        feed._native.counted = None
        beginning = feed._beginning()
        self._state_after = feed._follow()
        self._source = self._begin_source()
        self._turn = feed._begin_turn(beginning)

    def _begin_source(self) -> Iterator[Any]:
        feed, why = self._feed, ""
        source = feed._workers.begin(feed)
        if source is None:
            source = iter(feed.loader)
            self._watch = watch_batches(source)
            if self._watch is None:
                why = why_unknown(feed.loader, feed._workers.why_ordinary())
        feed._account.no_stages(why)
        feed._account.of_workers(*workers_of(feed.loader))
        return source

    def _note_stages(self, batch: Any) -> None:
        stages = batch.stages if type(batch) is Received else self._watch and self._watch.take()
        if stages is None:
            self._account.unstaged()
        else:
            self._account.staged(*stages)

    def _fill(self) -> None:
        feed, account = self._feed, self._account
        while self._reads and len(self._pending) <= feed.prefetch_depth and self._may_read():
            try:
                if self._fixed is not None and not self._fixed.next_is_free():
                    if self._pending:
                        return
                    refuse_unless_garbage(self._fixed.next_is_free)
                account.load()
                try:
                    if self._source is None:
                        self.start()
                    batch = next(self._source, _END)  # type: ignore[arg-type]
                finally:
                    account.loaded()
                if batch is _END:
                    self._reads = False
                    return
                self._note_stages(batch)
                state = None if self._state_after is None else self._state_after(self._source)
                slot = None
                if type(batch) is Received:
                    batch, slot = self._source.pool.open(batch)  # type: ignore[union-attr]
                flight = self._send(batch, slot)
                del batch
                if slot is not None:
                    self._source.pool.sent(slot, flight)  # type: ignore[union-attr]
                    slot = None
            except Exception as error:
                number = feed._account.batches + sum(not isinstance(item, Exception) for item in self._pending)
                note(error, f"raised while penstock.feed asked for batch {number} and sent it")
                self._pending.append(error)
                self._reads = False
            else:
                self._pending.append((flight, state))

    def _may_read(self) -> bool:
        """False if there is a batch to hand out, and its user would have to wait for workers to make another one."""
        return not self._pending or not isinstance(self._source, WorkerEpoch) or self._source.is_ready()

    def _send(self, batch: Any, slot: Any) -> Any:
        before = sum(expand.pin_seconds for expand in self._expand)
        if self._receivers.together:
            flight = self._account.send_to_all(self._receivers.group, batch, self._expand, slot)
        else:
            flight = self._account.send(batch, self._expand[0], self._pin, slot, self._fixed)
        self._account.pinned(sum(expand.pin_seconds for expand in self._expand) - before)
        return flight

    def close(self) -> None:
        """Ends the epoch here: drops the loader's iterator and the batches that were read ahead."""
        self._over = True
        self._reads = False
        self._pending.clear()
        source, self._source = self._source, None
        if isinstance(source, Generator) and source is not self._feed.loader:
            source.close()


class _Under(Feed):
    """The feed under a loader of Accelerate. Its iterator begins at once, since processes wait for each other there."""

    _held = 2  # Accelerate looks a batch ahead

    def __new__(cls, loader: Any, *arguments: Any, **options: Any) -> Feed:
        return object.__new__(_under(_kind_of(loader)))

    @property
    def __class__(self) -> type:
        # Accelerate's loader gives this class as its own, and must stay a DataLoader.
        return type(self.__dict__["loader"]) if "loader" in self.__dict__ else type(self)

    def __reduce__(self) -> tuple:
        return _unwrapped, (self.loader,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "loader" in self.__dict__:
            return getattr(self.loader, name)
        return super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        iterator = super().__iter__()
        iterator.start()  # type: ignore[attr-defined]
        return iterator

    def _warn(self) -> None:
        pass


@functools.cache
def _under(kind: type[Feed]) -> type[Feed]:
    return type("Feed", (_Under, kind), {})
