"""feed around a DataLoader whose dataset is tensors: the native loader gathers the samples that its sampler chooses."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import _core
from .._engines import close_at_exit, is_forked
from .._errors import Closed, InvalidArgument, OutOfMemory, note
from .._loader.indices import has_pieces
from .._loader.sampler import draw_into
from .._loader.samplers import Several, iterate
from .receivers import Receivers
from .resume import unresumable
from .static import mark, refuse_unless_garbage

# The types of tensors that the native loader reads.
_INTEGERS = {"bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_MOST_AHEAD = 64
# A worker_init_fn that only seeds random numbers. Rows of tensors draw none.
_ONLY_SEEDS = {
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
}


class NativeFeed:
    """The native loader of a feed, made with the first epoch that can be gathered natively, and anew if the tensors'
    memory is another. It serves the iterator that was begun last. Thread-safe."""

    def __init__(self, receivers: Receivers):
        self._receivers = receivers
        self._loader: _TensorLoader | None = None
        self._latest: Callable[[], NativeIterator | None] = lambda: None
        self._seeded: Any = None  # the DataLoader whose persistent workers would have had their seed
        self.lock = threading.RLock()
        self.counted: _TensorLoader | None = None  # the loader of the latest epoch; None if that was an ordinary one
        self.makes_batches = False  # as describe() said last

    def begin(self, iterator: NativeIterator, feed: Any) -> tuple[_TensorLoader, _Epoch]:
        """For one epoch. An iterator that was begun before goes on in the ordinary way. Raises _Unfit."""
        tensors = _tensors_of(feed)
        earlier = self._latest()
        if earlier is not None:
            earlier.go_on()
        loader = self._loader_for(feed, tensors)
        self._latest = weakref.ref(iterator)
        wrapped = feed.loader
        batches = _Batches(wrapped.batch_sampler, feed._order)
        self._seed_workers(wrapped, feed._is_resumed)
        if wrapped.num_workers > 0:  # which have so many batches drawn when they start
            batches.draw_ahead(wrapped.num_workers * wrapped.prefetch_factor)
        return loader, loader.begin(batches, tensors)

    def _seed_workers(self, loader: Any, is_resumed: bool) -> None:
        """Takes as much from the random state as the loader's iterator does: it draws a seed for its workers.
        Persistent workers keep the first one. If an epoch is resumed, it was drawn at its beginning."""
        persistent = loader.persistent_workers and loader.num_workers > 0
        if not is_resumed and (not persistent or (self._seeded is not loader and loader._iterator is None)):
            _draw_seed(loader.generator)
        self._seeded = loader if persistent else None

    def describe(self, feed: Any) -> list[str]:
        """How the batches are made, and why."""
        with self.lock:
            latest = self._latest()
            try:
                tensors = _tensors_of(feed)
                under_way = latest is not None and latest.is_native
                loader = self._loader
                self.makes_batches = True
                if not under_way and self._receivers.processes is None:
                    loader = self._loader_for(feed, tensors)
            except _Unfit as reason:
                self.makes_batches = False
                return [f"the batches are those that the loader makes: {reason}", *feed._workers.describe(feed.loader)]
            lines = ["the dataset is tensors, whose samples are gathered without worker processes"]
            # Processes make their loaders together: when the first epoch begins.
            return lines + (["the processes have not met yet"] if loader is None else loader.describe())

    def _loader_for(self, feed: Any, tensors: _Tensors) -> _TensorLoader:
        most = _most_in_a_batch(feed.loader, tensors.samples)
        if self._loader is None or not self._loader.serves(feed, tensors, most):
            if self._loader is not None:
                self._loader.close()
                self._loader = None
            try:
                self._loader = _TensorLoader(self._receivers, _ahead(feed), feed.static, tensors, most)
            except (InvalidArgument, OutOfMemory) as error:
                raise _Unfit(str(error)) from error
        return self._loader


def begin_native(feed: Any, ordinary: Callable[..., Any]) -> Any:
    """The iterator of the feed's next epoch, which begins. `ordinary` makes one that `start` begins in the ordinary
    way, or one that goes on, given the source of the other batches and the turn."""
    with feed._native.lock:
        iterator = NativeIterator(feed, ordinary)
        # Not while an exception is handled: errors of workers that are forked now would name it.
        return iterator if iterator.start() else ordinary().start()


class NativeIterator:
    """One epoch of a feed, gathered natively for as long as that gives the loader's own batches. Asks for no batch
    before the first `next()`. Once it is over or dropped, nothing reads the tensors."""

    def __init__(self, feed: Any, ordinary: Callable[..., Any]):
        self._feed = feed
        self._make_ordinary = ordinary
        self._ordinary: Any = None
        self._loader: _TensorLoader | None = None
        self._epoch: _Epoch | None = None
        self._batches: Any = None  # those of the epoch
        self._build: Callable[[list[Any]], Any] | None = None
        self._together = feed._receivers.together
        self._processes = feed._receivers.processes is not None
        self._newer = False  # another iterator has taken the processes' loader
        self._lock = feed._native.lock
        self._made: list[Any] = []  # the arrays of a batch that is not handed out yet; None: the end of the epoch
        self._turn = 0
        self._over = False

    def __iter__(self) -> NativeIterator:
        return self

    @property
    def is_native(self) -> bool:
        return self._epoch is not None

    def start(self) -> bool:
        """Begins the epoch; from here on this iterator's state is the feed's. False if the loader makes the batches."""
        feed = self._feed
        beginning = feed._beginning()
        try:
            self._loader, self._epoch = feed._native.begin(self, feed)
        except _Unfit as reason:
            if feed._needs_native:
                raise unresumable(str(reason)) from None
            if self._processes:
                raise not_for_processes(str(reason)) from None
            return False
        self._batches, build = self._epoch.batches, self._epoch.tensors.build
        together = self._together and build is not None
        self._build = (lambda each: [build(arrays) for arrays in each]) if together else build  # type: ignore[misc]
        self._turn = feed._begin_turn(beginning)
        feed._native.counted = self._loader
        feed._warn()
        return True

    def __next__(self) -> Any:
        made = self._made
        if (not made or made[0] is None) and not self._ask():
            return next(self._ordinary)
        arrays, batches, none_made = self._made[0], self._batches, []
        batch = arrays if self._build is None else self._build(arrays)
        done = batches.done + 1
        if not batches.keeps_place:
            batches.done, self._made = done, none_made  # the last step: see draw_into
            return batch
        first = arrays[0][0] if self._together else arrays[0]
        feed, samples = self._feed, batches.samples + len(first)
        state = batches.state(samples)
        notes = feed.__dict__ if self._turn == feed._turn else {}
        notes["_state"], batches.samples, batches.done, self._made = state, samples, done, none_made  # the last step
        return batch

    def _ask(self) -> bool:
        """Has the next batch made. False if it is made in the ordinary way."""
        if self._ordinary is not None:
            return False
        with self._lock:
            if self._over:
                raise StopIteration
            if self._newer:
                raise Closed(
                    "This iterator has ended: a newer one of this feed, whose processes go together, was begun."
                )
            if self._epoch is None:  # another iterator was begun meanwhile
                return False
            if not self._made and not self._make():
                if self._processes:
                    self._refuse_rest()
                self.go_on()
                return False
            if self._made[0] is None:
                self._feed._note(self._turn, None)
                self.close()
                raise StopIteration
            return True

    def _make(self) -> bool:
        """Has the native loader make the next batch. False if it cannot."""
        loader: Any = self._loader
        if loader.static and not loader.end_leases():  # before a batch is asked for, so that none is lost
            refuse_unless_garbage(loader.end_leases)
        try:
            return loader.next_into(self._made, self._epoch.watch)  # type: ignore[union-attr]
        except _Odd:
            return False
        except Exception as error:
            note(error, "raised while penstock.feed asked for a batch")
            self.close()
            raise

    def _refuse_rest(self) -> None:
        """Ends the epoch, and raises the sampler's error, or why the next batch cannot be gathered natively."""
        batches = self._batches
        self.close()
        batches.take()
        raise not_for_processes(
            f"batch {batches.done - 1} of this epoch is not simply rows of its tensors, or these were written meanwhile"
        )

    def go_on(self) -> None:
        """The rest of the epoch is made in the ordinary way. Of processes, it ends."""
        if self._epoch is not None and self._processes:
            self._newer = True
            self._end()
        if self._epoch is not None:
            self._feed._native.counted = None
            if self._ordinary is None:  # unless Ctrl-C came below
                self._ordinary = self._make_ordinary(_Rest(self._batches, self._feed.loader), self._turn)
            self._end()

    def _end(self) -> None:
        """Nothing is gathered any more."""
        self._loader.end()  # type: ignore[union-attr]
        self._epoch = None  # afterwards: if Ctrl-C comes before, another epoch must not begin there

    def close(self) -> None:
        """Ends the epoch here."""
        with self._feed._native.lock:
            self._over = True
            self._made = []
            if self._epoch is not None:
                self._end()
            if self._ordinary is not None:
                self._ordinary.close()

    def __del__(self) -> None:
        if is_forked():  # another thread may have held the lock
            return
        with contextlib.suppress(Exception, SystemExit):  # the loader is closed
            self.close()


class _TensorLoader:
    """A native loader of tensors, for one epoch after the other. The C++ loader asks it for the batches' indices."""

    def __init__(self, receivers: Receivers, prefetch_depth: int, static: bool, tensors: _Tensors, most: int):
        self._memory = tensors.memory()
        self._most = most
        self._prefetch_depth = prefetch_depth
        self._members = len(receivers.specs)
        self._processes = receivers.processes is not None
        self.static = static
        self._number = 0
        self._draws = _Draws()
        native, where = _native_for(receivers)
        self._native = native(
            where,
            list(zip(tensors.names, tensors.arrays, strict=True)),
            [],
            batch_size=most,
            shuffle=False,
            seed=0,
            drop_last=False,
            batch_sampler=self._draws,
            rank=0,
            world_size=1,
            prefetch_depth=prefetch_depth,
            residency="none",
            # The device reads locked memory. Such memory must not be freed before it is unlocked, and PyTorch frees
            # a tensor's memory when it moves it: into shared memory, say, for a spawned process. There it stays.
            gather="automatic" if all(array.is_shared() for array in tensors.arrays) else "host",
            gather_blocks=0,
            narrow=True,
            data_may_change=True,
            device_budget_bytes=min(engine.memory_bytes for engine in receivers.engines),
            threads=0,
            when_full="fail",
            mark=mark if static else None,
        )
        # Appends the arrays of the next batch, or None at the end of the epoch. False if the tensors are not as they
        # were. Raises _Odd if the batch is not simply rows of them.
        self.next_into = self._native.next_into
        self.end_leases = self._native.end_leases if static else None
        self.describe = self._native.describe
        self.stats = self._native.stats
        self.timeline = self._native.timeline
        close_at_exit(self)

    def serves(self, feed: Any, tensors: _Tensors, most: int) -> bool:
        """True if it reads these tensors, has room for their batches, and is as far ahead as the feed wants."""
        options = self._prefetch_depth, self.static
        fits = self._most >= most and options == (_ahead(feed), feed.static)
        return fits and self._memory == tensors.memory()

    def begin(self, batches: _Batches, tensors: _Tensors) -> _Epoch:
        self._draws.epoch = epoch = _Epoch(batches, tensors, self._most)
        if self._processes:  # they go there together; other loaders have come to it
            self._native.start_epoch(self._number)
        return epoch

    def end(self) -> None:
        """Nothing reads the tensors from here on, until the next epoch."""
        self._number += 1
        self._native.end_epoch(self._number)
        self._draws.epoch = None

    def device_stats(self) -> list[_core.FeedStatistics]:
        return [self._native.member_stats(member) for member in range(self._members)]

    def close(self) -> None:
        self._native.close()


def _native_for(receivers: Receivers) -> tuple[Any, Any]:
    """The kind of C++ loader, and the devices that it feeds."""
    if receivers.together:
        return _core.NativeGroupLoader, receivers.group
    if receivers.processes is not None:
        return _core.NativeRankLoader, receivers.processes.place(receivers.engine)
    return _core.NativeLoader, receivers.engine


class _Draws:
    """Gives the C++ loader the samples of each batch, as `Batches` of _samplers.py."""

    def __init__(self) -> None:
        self.epoch: _Epoch | None = None
        self._error: BaseException | None = None  # Ctrl-C and the like: set by C++

    def start(self) -> None:
        pass

    def next(self, number: int) -> Any:
        return self.epoch.draw(number)  # type: ignore[union-attr]

    def fail(self) -> None:
        error, self._error = self._error, None
        raise _Odd if error is None else error


class _Batches:
    """The batches that the sampler gives in one epoch, in draws: a draw is a batch, Several, or the sampler's error.
    Those that were not handed out are kept. `done`: the batches that were. `samples`: those of these batches, if the
    feed keeps its place, in the order that `order` begins with the first draw."""

    def __init__(self, batch_sampler: Any, order: Any):
        self.keeps_place = order is not None
        self.done = self.samples = 0
        self._order = order
        self._draw: Any = None
        self._source = iterate(batch_sampler, self._begin if self.keeps_place else None)
        # The number of the first draw that is kept, the number of its first batch, and the draws.
        self._kept: tuple[int, int, list[Any]] = 0, 0, []

    def _begin(self) -> Iterator[Any]:
        if self._draw is None:  # unless Ctrl-C came below
            self._draw = self._order._begin()
        return self._draw.pieces()

    def draw_ahead(self, count: int) -> None:
        """Draws so many batches, at least. Raises the sampler's error."""
        draws = self._kept[2]
        while count > 0:
            drawn = len(draws)
            self._ask_for(draws)
            if len(draws) == drawn:
                return
            if isinstance(draws[-1], Exception):
                raise draws.pop()
            count -= len(draws[-1].rows) if type(draws[-1]) is Several else 1

    def ask(self, number: int) -> Any:
        """Draw `number` of the epoch, from 0. _END at its end. After Ctrl-C, the same number is asked for again."""
        first, _, draws = self._needed()
        if number - first == len(draws):
            self._ask_for(draws)
        return draws[number - first] if number - first < len(draws) else _END

    def take(self) -> Any:
        """The next batch, for the ordinary way: it counts as handed out. _END at the end of the epoch. Raises the
        sampler's error."""
        _, begin, draws = self._needed()
        if not draws:
            self._ask_for(draws)
        if not draws:
            return _END
        batch = draws[0].rows[self.done - begin] if type(draws[0]) is Several else draws[0]
        self.done += 1
        if isinstance(batch, Exception):
            raise batch
        if self.keeps_place:
            self.samples += len(batch)
        return batch

    def state(self, samples: int) -> Any:
        """The feed's state after so many samples; None if the feed keeps none."""
        return self._draw.after(samples) if self.keeps_place else None

    def _needed(self) -> tuple[int, int, list[Any]]:
        """Forgets the draws whose batches were all handed out."""
        if self.done == 0 and self._draw is not None:
            self._order._settle(self._draw)
        first, begin, draws = self._kept
        while draws:
            end = begin + (len(draws[0].rows) if type(draws[0]) is Several else 1)
            if end > self.done:
                break
            first, begin, draws = first + 1, end, draws[1:]
        self._kept = first, begin, draws
        return self._kept

    def _ask_for(self, draws: list[Any]) -> None:
        try:
            draw_into(draws, self._source)
        except Exception as error:
            draws.append(error)


class _Epoch:
    """One epoch that is gathered natively."""

    def __init__(self, batches: _Batches, tensors: _Tensors, most: int):
        self.batches = batches
        self.tensors = tensors
        self._most = most
        # Sees whether PyTorch writes to a tensor from now on, or gives it other memory.
        self.watch = _core.TensorWatch(tensors.arrays)

    def draw(self, number: int) -> Any:
        """The rows of the next batch, as an array of 64-bit numbers, or of the next batches, one in each row. None at
        the end. False if one is not simply rows of the tensors: then the ordinary way goes on from there."""
        batch = self.batches.ask(number)
        if batch is _END:
            return None
        rows = None if isinstance(batch, Exception) else self.tensors.rows(batch)
        return rows if rows is not None and 0 < rows.shape[-1] <= self._most else False


class _Rest:
    """The rest of an epoch, made as the DataLoader makes it."""

    def __init__(self, batches: _Batches, loader: Any):
        fetch = sys.modules["torch.utils.data"]._utils.fetch._MapDatasetFetcher
        self._fetch = fetch(loader.dataset, True, loader.collate_fn, loader.drop_last).fetch
        self.batches = batches

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        batch = self.batches.take()
        if batch is _END:
            raise StopIteration
        return self._fetch(batch)


class _Odd(Exception):
    """The next batch cannot be gathered natively."""


class _Unfit(Exception):
    """Why a feed's batches are those that its loader makes."""


_END = object()
_ORDINARY = object()


class _Tensors(NamedTuple):
    """The tensors of a dataset. `build` makes a batch of a list with one array for each of them; None: it is that list.
    `picked`: the row in the tensors of each sample; None: sample i is row i."""

    names: list[str]
    arrays: list[Any]
    build: Callable[[list[Any]], Any] | None
    picked: Any

    @property
    def samples(self) -> int:
        return len(self.arrays[0]) if self.picked is None else len(self.picked)

    def memory(self) -> tuple:
        """Equal if the native loader may go on reading where it reads."""
        return tuple(
            (name, id(array), array.untyped_storage()._cdata, array.data_ptr(), array.dtype, array.shape)
            for name, array in zip(self.names, self.arrays, strict=True)
        )

    def rows(self, batch: Any) -> Any:
        """The rows of a batch's samples, or of Several, as 64-bit numbers. None if an index is of another kind than a
        whole number, or out of bounds."""
        import numpy

        if type(batch) is Several:
            if self.picked is None and 0 < batch.below <= self.samples:
                return batch.rows
            rows = self.rows(batch.rows.reshape(-1))
            return None if rows is None else rows.reshape(batch.rows.shape)
        if self.picked is None and _core.are_rows(batch, self.samples):
            return batch
        indices = _whole_numbers(batch)
        if indices is not None:
            indices = _within(indices, self.samples)
        if indices is not None and self.picked is not None:
            indices = self.picked[indices]
        return None if indices is None else numpy.ascontiguousarray(indices).view(numpy.uint64)


def _whole_numbers(batch: Any) -> Any:
    """An array of int64. None if it is not certain that PyTorch takes each of these for the number of one row."""
    import numpy

    torch = sys.modules["torch"]
    if type(batch) is torch.Tensor:
        batch = batch.numpy() if batch.device.type == "cpu" and batch.dtype in (torch.int64, torch.int32) else None
    elif isinstance(batch, range):
        batch = numpy.arange(batch.start, batch.stop, batch.step)
    elif type(batch) in (list, tuple):
        whole = set(map(type, batch)) <= {int, numpy.int64}
        try:
            batch = numpy.array(batch, numpy.int64) if whole else None
        except OverflowError:
            return None
    if not isinstance(batch, numpy.ndarray) or batch.ndim != 1 or batch.dtype not in (numpy.int64, numpy.int32):
        return None
    return batch.astype(numpy.int64, copy=False)


def _within(indices: Any, count: int) -> Any:
    """The indices without negative ones, which count from the end. None if one is out of bounds."""
    import numpy

    if len(indices) == 0:
        return indices
    if int(indices.view(numpy.uint64).max()) < count:  # in which negative numbers are large
        return indices
    lowest = int(indices.min())
    if lowest < -count or int(indices.max()) >= count:
        return None
    return numpy.where(indices < 0, indices + count, indices) if lowest < 0 else indices


def _ahead(feed: Any) -> int:
    """The depth of the native loader, whose ring has a slot more."""
    return feed._sets - 1 if feed.static else feed.prefetch_depth


def may_be_native(feed: Any) -> bool:
    """False if the feed's loader certainly makes the batches itself."""
    module = sys.modules.get("torch.utils.data.dataloader")
    return feed.native and module is not None and type(feed.loader) is module.DataLoader


def not_for_processes(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"A feed of a ProcessGroup gathers the samples natively, and cannot: {why}. Feed a plain DataLoader of a "
        "TensorDataset, or use Loader(data, group=...). Otherwise let each process feed its own share, and gather "
        "them with torch.distributed."
    )


def why_not_native(feed: Any) -> str:
    """Why the feed's loader makes the batches itself. Empty if they are gathered natively."""
    try:
        _tensors_of(feed)
    except _Unfit as reason:
        return str(reason)
    return ""


def _tensors_of(feed: Any) -> _Tensors:
    """The tensors of the loader's dataset. Raises _Unfit if its batches are not simply their rows."""
    loader = feed.loader
    if not feed.native:
        raise _Unfit("native=False")
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise _Unfit("NumPy, which the native way needs, is not installed") from None
    if not may_be_native(feed):
        raise _Unfit(f"it is a {type(loader).__name__}, and not a DataLoader itself")
    if not 1 <= feed.prefetch_depth <= _MOST_AHEAD:
        raise _Unfit(f"prefetch_depth is {feed.prefetch_depth}")
    if loader.batch_sampler is None:
        raise _Unfit("it does not batch")
    data = sys.modules["torch.utils.data"]
    if loader.collate_fn is not data.default_collate or not _stacks_tensors(data):
        raise _Unfit("it has a collate_fn of its own")
    if loader.num_workers > 0 and not _only_seeds(loader.worker_init_fn):
        raise _Unfit("it has a worker_init_fn")
    if _batch_size(loader.batch_sampler) < 1:
        raise _Unfit(f"its batch sampler is a {type(loader.batch_sampler).__name__}, which may do anything")
    dataset, picked = loader.dataset, None
    while type(dataset) is data.Subset:
        own = _whole_numbers(dataset.indices)
        if own is None:
            raise _Unfit("the indices of its Subset are not whole numbers")
        picked = own if picked is None else own[_checked(picked, len(own))]
        dataset = dataset.dataset
    rows = _rows_of(dataset, data)
    if isinstance(rows, Mapping):
        names, arrays = [str(name) for name in rows], list(rows.values())
        keys = list(rows)
        build: Callable[[list[Any]], Any] | None = lambda batch: dict(zip(keys, batch, strict=True))  # noqa: E731
    elif isinstance(rows, tuple | list):
        arrays = list(rows)
        names, build = [f"field{i}" for i in range(len(arrays))], None
    else:
        raise _Unfit(f"its dataset is a {type(dataset).__name__}, which makes the samples itself")
    if not arrays or len(set(names)) != len(names):
        raise _Unfit("its dataset has no tensors, or two of one name")
    for name, array in zip(names, arrays, strict=True):
        why = _why_not_read(array, arrays[0])
        if why:
            raise _Unfit(f"{name} of its dataset {why}")
    if picked is not None:
        picked = _checked(picked, len(arrays[0]))
    if not _seeds_as_known():
        raise _Unfit("this version of PyTorch draws its workers' seeds in another way")
    return _Tensors(names, arrays, build, picked)


def _only_seeds(start: Any) -> bool:
    """True if a worker_init_fn cannot change samples that are rows of tensors."""
    start = start.func if isinstance(start, functools.partial) else start
    return start is None or (getattr(start, "__module__", ""), getattr(start, "__name__", "")) in _ONLY_SEEDS


def _rows_of(dataset: Any, data: Any) -> Any:
    """The tensors whose rows are the samples. None if the dataset makes its samples itself."""
    if "__getitems__" in getattr(dataset, "__dict__", ()):
        return None
    if type(dataset) is data.TensorDataset:
        return dataset.tensors
    # The class that makes the samples must be the one that declares them: one that inherits from it, or passes on
    # attributes, may change them.
    for kind in type(dataset).__mro__:
        if "__penstock_tensors__" in vars(kind):
            return dataset.__penstock_tensors__
        if {"__getitem__", "__getitems__"} & vars(kind).keys():
            return None
    return None


def _batch_size(batches: Any) -> int:
    """The most samples that a batch of these has; 0 for a batch sampler of an unknown kind."""
    if type(batches).__name__ == "BatchSamplerShard" and type(batches).__module__ == "accelerate.data_loader":
        batches = batches.batch_sampler
    if type(batches) is not sys.modules["torch.utils.data"].BatchSampler:
        return 0
    return batches.batch_size if isinstance(batches.batch_size, int) else 0


def _most_in_a_batch(loader: Any, samples: int) -> int:
    """For how many samples a batch has room. Larger ones are made in the ordinary way."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return max(1, min(_batch_size(loader.batch_sampler), len(sampler) if has_pieces(sampler) else samples))


def _checked(indices: Any, count: int) -> Any:
    indices = _within(indices, count)
    if indices is None:
        raise _Unfit("its Subset picks samples that the dataset does not have")
    return indices


def _stacks_tensors(data: Any) -> bool:
    """True if nobody has registered another way to collate tensors, or lists and dicts of them."""
    collate = data._utils.collate
    known = collate.default_collate_fn_map
    tensors_stack = known.get(sys.modules["torch"].Tensor) is collate.collate_tensor_fn
    return tensors_stack and not any(isinstance(sample, kind) for sample in ((), {}) for kind in known)


def _why_not_read(array: Any, first: Any) -> str:
    """Why a batch of this tensor's rows is not simply a copy of their bytes. Empty if it is."""
    torch = sys.modules["torch"]
    if type(array) is not torch.Tensor:
        return f"is a {type(array).__name__}, not a plain tensor"
    if array.device.type != "cpu" or array.layout is not torch.strided:
        return f"is not a dense tensor of the host, but {array.layout} on {array.device}"
    if array.requires_grad or array.is_inference() or array.is_neg():
        return "requires gradients, or is a tensor of inference mode, or a negative view"
    if str(array.dtype).removeprefix("torch.") not in _INTEGERS | _FLOATS:
        return f"has the type {array.dtype}"
    if array.ndim == 0 or array.numel() == 0 or not array.is_contiguous():
        return "is empty, or its values do not lie side by side in order"
    return "" if len(array) == len(first) else f"has {len(array)} samples, and another one {len(first)}"


def _draw_seed(generator: Any) -> None:
    torch = sys.modules["torch"]
    torch.empty((), dtype=torch.int64).random_(generator=generator)


@functools.cache
def _seeds_as_known() -> bool:
    """True if a DataLoader's iterator takes as much from the random state as _draw_seed does."""
    import torch
    from torch.utils.data import DataLoader

    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    try:
        iter(DataLoader(range(1), generator=theirs))  # type: ignore[arg-type]
        _draw_seed(ours)
        left_alone = torch.equal(before, torch.get_rng_state())
    except Exception:  # such as a default device with other generators
        return False
    finally:
        torch.set_rng_state(before)
    return left_alone and torch.equal(theirs.get_state(), ours.get_state())
