"""The samplers that a Loader takes in place of its own order."""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from types import SimpleNamespace
from typing import Any, NamedTuple

from .._checks import has, numpy_for, whole
from .._errors import InvalidArgument
from .indices import pieces_of
from .sampler import draw_into

_AT_ONCE = 1 << 16


class Several(NamedTuple):
    """Batches that a sampler drew at once: a 2-D array of int64, with a batch in each row. `below`: all of them are at
    least 0 and below it; 0: nobody knows."""

    rows: Any
    below: int


class Batches:
    """Gives the C++ loader the samples of each batch: a sampler's, in batches, or a batch sampler's. `reading_epoch`:
    that in which the samples of the latest draw are read; None: the loader's. C++ gets it, so that it may not run code,
    in which Ctrl-C could come."""

    reading_epoch: int | None = None

    def __init__(self, sampler: Any, batch_sampler: Any, batch_size: int, drop_last: bool, samples: Sized):
        self._sampler = sampler
        self._batch_sampler = batch_sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._samples = samples
        self._source: Iterator[Any] | None = None
        self._drawn: tuple[int, list[Any]] = (0, [])  # the latest draw's number, and what it gave
        self._error: BaseException | None = None

    @property
    def owner(self) -> Any:
        """Looks like a loader with these samplers."""
        return SimpleNamespace(sampler=self._sampler, batch_sampler=self._batch_sampler)

    def __len__(self) -> int:
        if self._batch_sampler is not None:
            return len(self._batch_sampler)
        count = len(self._sampler)
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the sampler that takes it."""
        for owner in (self._batch_sampler, getattr(self._batch_sampler, "sampler", None), self._sampler):
            if has(owner, "set_epoch"):
                owner.set_epoch(epoch)
                return

    def start(self) -> None:
        """The next batch is the first of an epoch. The sampler is asked for its iterator with that batch."""
        self._error = None
        self._source = None
        self._drawn = (0, [])

    def _begin(self) -> Iterator[Any]:
        if self._batch_sampler is not None:
            return iterate(self._batch_sampler)
        return _Batched(self._sampler, self._batch_size, self._drop_last)

    def next(self, number: int) -> Any:
        """Draw `number` of the epoch, from 0: the indices of the next batch, as a NumPy array of uint64, or of the next
        batches, one in each row. None at the end of the epoch. False if the sampler failed: `fail` raises its
        exception, once that batch is due. It is kept here, and not by C++, since it may refer to the loader, and the
        garbage collector must see that. Ctrl-C and the like are raised at once. C++ then asks for that draw again, and
        gets what was drawn meanwhile."""
        try:
            return self._draw(number)
        except Exception as error:
            self._error = error
            return False

    def fail(self) -> None:
        if self._error is not None:
            raise self._error

    def _draw(self, number: int) -> Any:
        if self._source is None:
            self._source = self._begin()
        if self._drawn[0] != number:
            self._drawn = (number, [])
        drawn = self._drawn[1]
        if not drawn:
            draw_into(drawn, self._source)
        return self._indices(drawn[0]) if drawn else None

    def _indices(self, batch: Any) -> Any:
        numpy = numpy_for("A Loader with a sampler")
        if type(batch) is Several:
            return batch.rows.view(numpy.uint64)
        indices = _as_array(batch)
        if indices.size == 0:
            return numpy.empty(0, numpy.uint64)
        if indices.dtype.kind == "i" and indices.min() < 0:
            lowest, samples = int(indices.min()), len(self._samples)
            if lowest < -samples:
                raise InvalidArgument(f"The sampler gave the index {lowest}, and there are {samples} samples.")
            indices = numpy.where(indices < 0, indices + samples, indices)
        return numpy.ascontiguousarray(indices, numpy.uint64)


def iterate(batch_sampler: Any, begin: Callable[[], Iterator[Any]] | None = None) -> Iterator[Any]:
    """One epoch of a batch sampler. PyTorch's own gives Several if its sampler's indices can be drawn as tensors.
    `begin`: gives these indices in pieces, in place of its sampler; only for PyTorch's own. It is called with the first
    batch."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and type(batch_sampler) is torch_data.BatchSampler:
        return _Batched(batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last, begin)
    return iter(batch_sampler)


def _as_array(batch: Any) -> Any:
    """The indices of a batch as an array. Raises InvalidArgument if they are none."""
    import numpy

    if not hasattr(batch, "__array__") and not isinstance(batch, (list, range)):
        batch = list(batch) if isinstance(batch, Iterable) else batch
    indices = numpy.asarray(batch)
    if indices.dtype.kind == "f" and isinstance(batch, list):  # NumPy's unsigned numbers beside Python's
        with contextlib.suppress(TypeError):
            indices = numpy.array([operator.index(index) for index in batch])
    if indices.size > 0 and (indices.ndim != 1 or indices.dtype.kind not in "iu"):
        raise InvalidArgument(f"A Loader's sampler gives whole numbers, the indices of samples, not {_shown(batch)}.")
    return indices


class _Batched:
    """Batches of `size` indices: lists, or Several. Asks for no index before the batch that it belongs to is due. If
    Ctrl-C ends a draw, the next one goes on there, with the indices that were drawn already."""

    def __init__(self, sampler: Any, size: int, drop_last: bool, begin: Callable[[], Iterator[Any]] | None = None):
        self._sampler = sampler
        self._size = size
        self._drop_last = drop_last
        self._begin = begin
        self._pieces: Iterator[Any] | None = None
        self._source: Iterator[Any] | None = None  # of single indices
        self._parts: list[Any] = []  # indices, or pieces, that were drawn and not given
        self._over = False

    def __iter__(self) -> _Batched:
        return self

    def __next__(self) -> Any:
        if self._source is None and self._pieces is None:
            self._start()
        try:
            batch, rest = self._list() if self._pieces is None else self._several()
        except Exception:  # also StopIteration: from here on as a generator that has ended
            self._over = True
            raise
        self._parts = rest  # the last step: see draw_into
        return batch

    def _start(self) -> None:
        torch = sys.modules.get("torch")
        before = None if torch is None else torch.get_rng_state()
        try:
            self._pieces = pieces_of(self._sampler) if self._begin is None else self._begin()
        except BaseException:
            if torch is not None:
                torch.set_rng_state(before)
            raise
        if self._pieces is None:
            self._source = iter(self._sampler)

    def _list(self) -> tuple[list[Any], list[Any]]:
        batch = self._parts
        if not self._over:
            batch.extend(itertools.islice(self._source, self._size - len(batch)))  # type: ignore[arg-type]
        if self._over or len(batch) < (self._size if self._drop_last else 1):
            raise StopIteration
        return batch, []

    def _several(self) -> tuple[Several, list[Any]]:
        """The batches that a piece completes come together, but not many more than _AT_ONCE indices. The rest of the
        pieces comes later."""
        size, parts = self._size, self._parts
        while not self._over and sum(map(len, parts)) < size:
            before = len(parts)
            draw_into(parts, self._pieces)  # type: ignore[arg-type]
            if len(parts) == before:
                self._over = True
        rest = _joined(parts)
        count = min(max(1, _AT_ONCE // size), len(rest) // size) * size
        if count == 0:
            count = 0 if self._drop_last else len(rest)
            size = count
        if count == 0:
            raise StopIteration
        several = Several(rest[:count].reshape(-1, size), getattr(self._pieces, "below", 0))
        return several, [rest[count:]] if count < len(rest) else []


def _joined(parts: list[Any]) -> Any:
    import numpy

    arrays = [part if isinstance(part, numpy.ndarray) else part.cpu().numpy() for part in parts]
    if len(arrays) == 1:
        return numpy.ascontiguousarray(arrays[0])
    return numpy.concatenate([numpy.empty(0, numpy.int64), *arrays])


def batches_of(
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    drop_last: bool,
    samples: Sized,
    others: dict[str, Any],
) -> tuple[Batches | None, int]:
    """The batches of these samplers, if one is given, and the largest batch. `others`: the options that it decides."""
    if sampler is None and batch_sampler is None:
        return None, whole("batch_size", 1 if batch_size is None else batch_size, 1, what="a number of samples")
    name = "sampler" if batch_sampler is None else "batch_sampler"
    if batch_sampler is not None:
        others = {"sampler": sampler is not None, "drop_last": drop_last, **others}
    for option, value in others.items():
        if value:
            raise InvalidArgument(f"A Loader's {name} chooses the samples: leave out {option}.")
    source = sampler if batch_sampler is None else batch_sampler
    if not has(source, "__iter__") and not has(source, "__getitem__"):
        raise TypeError(f"A Loader's {name} is an iterable of indices, not {type(source).__name__}.")
    if isinstance(source, Iterator):
        raise InvalidArgument(
            f"A Loader's {name} is iterated once for each epoch, and an iterator such as {type(source).__name__} gives "
            "one epoch: pass an object with __iter__."
        )
    if batch_size is None:
        batch_size = getattr(batch_sampler, "batch_size", 1 if batch_sampler is None else None)
        if batch_size is None:
            raise InvalidArgument(
                "This batch_sampler does not say how large its batches are: pass batch_size, that of the largest."
            )
    batch_size = whole("batch_size", batch_size, 1, what="a number of samples")
    return Batches(sampler, batch_sampler, batch_size, drop_last, samples), batch_size


def _shown(batch: Any) -> str:
    text = repr(batch)
    return text if len(text) <= 60 else text[:60] + "..."
