"""feed around a DataLoader whose dataset is tensors: the native loader gathers the samples that its sampler chooses."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import _core
from ._engines import close_at_exit, engine_for
from ._errors import InvalidArgument, OutOfMemory, note
from ._others import outside
from ._samplers import Batches, whole_numbers

# The types of tensors that the native loader reads.
_INTEGERS = {"bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_MOST_AHEAD = 64


class NativeFeed:
    """Begins the epochs of a feed that can be gathered natively. Makes the native loader with the first of them, and
    anew if the tensors' memory is another."""

    def __init__(self, spec: str, prefetch_depth: int, wanted: bool):
        self._spec = spec
        self._prefetch_depth = prefetch_depth
        self._wanted = wanted
        self._loader: _TensorLoader | None = None
        self.counted: _TensorLoader | None = None  # the loader of the latest epoch; None if it was not a native one
        self._epoch: Callable[[], NativeIterator | None] = lambda: None

    def begin(self, feed: Any) -> NativeIterator | None:
        """An iterator of one epoch. None if the feed's loader must make the batches itself."""
        try:
            loader = self._loader_for(feed.loader)
        except _Unfit:
            return None
        epoch = NativeIterator(feed, loader)
        self._epoch = weakref.ref(epoch)
        return epoch

    def describe(self, loader: Any) -> list[str]:
        """How the batches are made, and why."""
        under_way = self._under_way()
        try:
            native = self._loader_for(loader) if under_way is None else under_way.loader
        except _Unfit as reason:
            return [f"the batches are those that the loader makes: {reason}"]
        return ["the dataset is tensors, whose samples are gathered without worker processes", *native.describe()]

    def _under_way(self) -> NativeIterator | None:
        epoch = self._epoch()
        return None if epoch is None or epoch.over else epoch

    def _loader_for(self, loader: Any) -> _TensorLoader:
        if not self._wanted:
            raise _Unfit("native=False")
        tensors = _tensors_of(loader)
        if not 1 <= self._prefetch_depth <= _MOST_AHEAD:
            raise _Unfit(f"prefetch_depth is {self._prefetch_depth}")
        if self._under_way() is not None:
            raise _Unfit("another iterator of this feed is under way")
        if self._loader is None or not self._loader.reads(loader, tensors):
            if self._loader is not None:
                self._loader.close()
                self._loader = None
            try:
                self._loader = _TensorLoader(self._spec, self._prefetch_depth, loader, tensors)
            except (InvalidArgument, OutOfMemory) as error:
                raise _Unfit(str(error)) from error
        return self._loader


class NativeIterator:
    """One epoch of a feed, gathered natively. Does not ask the sampler before the first `next()`. One thread at a
    time. Once it is over or dropped, nothing reads the tensors."""

    def __init__(self, feed: Any, loader: _TensorLoader):
        self._feed = feed
        self.loader = loader
        self._begun = False
        self.over = False

    def __iter__(self) -> NativeIterator:
        return self

    def start(self) -> None:
        self._feed._warn()
        self._feed._native.counted = self.loader
        self.loader.begin()
        self._begun = True

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        if not self._begun:
            self.start()
        try:
            batch = self.loader.next()
        except Exception as error:
            note(error, "raised while penstock.feed asked for a batch")
            self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def close(self) -> None:
        """Ends the epoch here."""
        if not self.over:
            self.over = True
            if self._begun:
                self.loader.end()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the loader is closed, or belongs to the process that was forked
            self.close()


class _TensorLoader:
    """A native loader of a DataLoader's tensors, in the batches of its sampler."""

    def __init__(self, spec: str, prefetch_depth: int, loader: Any, tensors: _Tensors):
        self._tensors = tensors
        self._memory = tensors.memory()
        self._batches = _ChosenBatches(loader, tensors)
        self._epoch = 0
        self._versions: int | None = None
        engine = engine_for(spec)
        self._native = _core.NativeLoader(
            engine,
            list(zip(tensors.names, tensors.arrays, strict=True)),
            [],
            batch_size=self._batches.most,
            shuffle=False,
            seed=0,
            drop_last=False,
            batch_sampler=self._batches,
            rank=0,
            world_size=1,
            prefetch_depth=prefetch_depth,
            residency="none",
            gather="automatic",
            gather_blocks=0,
            narrow=True,
            data_may_change=True,
            device_budget_bytes=engine.memory_bytes,
            threads=0,
            when_full="wait",
        )
        self.describe = self._native.describe
        self.stats = self._native.stats
        self.timeline = self._native.timeline
        close_at_exit(self)

    def reads(self, loader: Any, tensors: _Tensors) -> bool:
        """True if these are the tensors that it reads. It takes the samples that they pick from now on."""
        if self._memory != tensors.memory() or self._batches.most < _most_in_a_batch(loader):
            return False
        self._tensors = tensors
        self._batches.take(tensors)
        return True

    def begin(self) -> None:
        self._versions = self._tensors.versions()

    def next(self) -> Any:
        arrays = self._native.next()
        if self._versions is not None and self._versions != self._tensors.versions():
            self._versions = None
            warnings.warn(
                "The tensors of this feed's dataset were written to while an epoch was under way. Batches are gathered "
                "ahead, in the background, so some may hold old values and some new ones. Write to them between "
                "epochs, or pass penstock.feed(..., native=False).",
                stacklevel=outside(),
            )
        return None if arrays is None else self._tensors.build(arrays)

    def end(self) -> None:
        """Nothing reads the tensors from here on, until a batch of the next epoch is asked for."""
        self._epoch += 1
        self._native.start_epoch(self._epoch)
        self._native.synchronize()

    def close(self) -> None:
        self._native.close()


class _Tensors(NamedTuple):
    """The tensors of a dataset. `build` makes a batch of one array for each of them. `picked`: the index in the tensors
    of each sample; None: sample i is row i."""

    names: list[str]
    arrays: list[Any]
    build: Callable[[list[Any]], Any]
    picked: Any

    def __len__(self) -> int:  # samples
        return len(self.arrays[0]) if self.picked is None else len(self.picked)

    def memory(self) -> tuple:
        """Equal if the native loader may go on reading where it reads."""
        return *self.names, *((id(array), array.data_ptr(), array.dtype, array.shape) for array in self.arrays)

    def versions(self) -> int:
        """Changes when PyTorch writes to the tensors."""
        return sum(array._version for array in self.arrays)


class _ChosenBatches(Batches):
    """The batches of a DataLoader's sampler. Leaves PyTorch's random state as the DataLoader does."""

    def __init__(self, loader: Any, tensors: _Tensors):
        self.most = _most_in_a_batch(loader)
        super().__init__(None, loader.batch_sampler, self.most, False, tensors)
        self._loader = loader
        self._seeded = False

    def take(self, tensors: _Tensors) -> None:
        self._samples = tensors

    def _begin(self) -> Any:
        batches = super()._begin()
        loader = self._loader
        # DataLoader draws a seed for its workers with each iterator; persistent workers keep the first one's.
        if not (self._seeded and loader.persistent_workers and loader.num_workers > 0):
            _draw_seed(loader.generator)
            self._seeded = True
        return batches

    def _indices(self, batch: Any) -> Any:
        import numpy

        indices = whole_numbers(batch)
        if indices.size == 0:
            return numpy.empty(0, numpy.uint64)
        if self._samples.picked is not None:
            indices = _rows(self._samples.picked[_rows(indices, len(self._samples))], len(self._samples.arrays[0]))
        else:
            indices = _rows(indices, len(self._samples))
        return numpy.ascontiguousarray(indices, numpy.uint64)


def _rows(indices: Any, count: int) -> Any:
    """Without negative ones, which count from the end. Raises IndexError as a tensor does."""
    import numpy

    lowest, highest = int(indices.min()), int(indices.max())
    if lowest < -count or highest >= count:
        bad = highest if highest >= count else lowest
        raise IndexError(f"index {bad} is out of bounds for dimension 0 with size {count}")
    return numpy.where(indices < 0, indices + count, indices) if lowest < 0 else indices


class _Unfit(Exception):
    """Why a feed's batches are those that its loader makes."""


def _tensors_of(loader: Any) -> _Tensors:
    """The tensors of the loader's dataset. Raises _Unfit if its batches are not simply their rows."""
    data = sys.modules.get("torch.utils.data")
    if data is None or type(loader) is not data.DataLoader:
        raise _Unfit(f"it is a {type(loader).__name__}, and not a DataLoader itself")
    if loader.batch_sampler is None:
        raise _Unfit("it does not batch")
    if loader.collate_fn is not data.default_collate or not _stacks_tensors(data):
        raise _Unfit("it has a collate_fn of its own")
    if loader.worker_init_fn is not None:
        raise _Unfit("it has a worker_init_fn")
    if _most_in_a_batch(loader) < 1:
        raise _Unfit("its batch sampler does not say how large its batches are")
    dataset, picked = loader.dataset, None
    while type(dataset) is data.Subset:
        own = _as_indices(dataset.indices)
        picked = own if picked is None else own[_checked_rows(picked, len(own))]
        dataset = dataset.dataset
    rows = dataset.tensors if type(dataset) is data.TensorDataset else getattr(dataset, "__penstock_tensors__", None)
    if rows is None:
        raise _Unfit(f"its dataset is a {type(dataset).__name__}, which makes the samples itself")
    if isinstance(rows, Mapping):
        names, arrays = [str(name) for name in rows], list(rows.values())
        keys = list(rows)
        build: Callable[[list[Any]], Any] = lambda batch: dict(zip(keys, batch, strict=True))  # noqa: E731
    else:
        arrays = list(rows)
        names, build = [f"field{i}" for i in range(len(arrays))], list
    if not arrays or len(set(names)) != len(names):
        raise _Unfit("its dataset has no tensors, or two of one name")
    for name, array in zip(names, arrays, strict=True):
        why = _why_not_read(array, len(arrays[0]))
        if why:
            raise _Unfit(f"{name} of its dataset {why}")
    if picked is not None:
        _checked_rows(picked, len(arrays[0]))
    if not _seeds_as_known():
        raise _Unfit("this version of PyTorch draws its workers' seeds in another way")
    return _Tensors(names, arrays, build, picked)


def _stacks_tensors(data: Any) -> bool:
    """True if nobody has registered another way to collate tensors, or lists and dicts of them."""
    collate = data._utils.collate
    known = collate.default_collate_fn_map
    tensor = sys.modules["torch"].Tensor
    return known.get(tensor) is collate.collate_tensor_fn and tuple not in known and dict not in known


def _why_not_read(array: Any, count: int) -> str:
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
    return "" if len(array) == count else f"has {len(array)} samples, and another one {count}"


def _as_indices(indices: Any) -> Any:
    import numpy

    try:
        array = numpy.asarray(indices)
    except Exception as error:
        raise _Unfit("the indices of its Subset are not whole numbers") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _Unfit("the indices of its Subset are not whole numbers")
    return array


def _checked_rows(indices: Any, count: int) -> Any:
    try:
        return _rows(indices, count) if indices.size > 0 else indices
    except IndexError as error:
        raise _Unfit("its Subset picks samples that the dataset does not have") from error


def _most_in_a_batch(loader: Any) -> int:
    """The most samples that a batch may have; 0 if the batch sampler does not say."""
    batches = loader.batch_sampler
    size = getattr(batches, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        return 0
    if type(batches) is sys.modules["torch.utils.data"].BatchSampler:
        with contextlib.suppress(TypeError, NotImplementedError):  # a sampler without a length
            size = max(1, min(size, len(batches.sampler)))
    return size


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
    iter(DataLoader(range(1), generator=theirs))  # type: ignore[arg-type]
    _draw_seed(ours)
    left_alone = torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    return left_alone and torch.equal(theirs.get_state(), ours.get_state())
