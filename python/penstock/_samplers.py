"""The samplers that a Loader takes in place of its own order."""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Sized
from types import SimpleNamespace
from typing import Any, NamedTuple

from ._checks import whole
from ._errors import InvalidArgument
from ._indices import pieces_of

_AT_ONCE = 1 << 16


class Several(NamedTuple):
    """Batches that a sampler drew at once: a 2-D array of int64, with a batch in each row."""

    rows: Any


class Batches:
    """What the C++ loader asks for the samples of each batch: a sampler's, in batches, or a batch sampler's."""

    def __init__(self, sampler: Any, batch_sampler: Any, batch_size: int, drop_last: bool, samples: Sized):
        self._sampler = sampler
        self._batch_sampler = batch_sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._samples = samples
        self._source: Iterator[Any] | None = None
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
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
                return

    def start(self) -> None:
        """The next batch is the first of an epoch. The sampler is asked for its iterator with that batch."""
        self._error = None
        self._source = None

    def _begin(self) -> Iterator[Any]:
        if self._batch_sampler is not None:
            return iterate(self._batch_sampler)
        return _in_batches(self._sampler, self._batch_size, self._drop_last)

    def next(self) -> Any:
        """The indices of the next batch, as a NumPy array of uint64, or of the next batches, one in each row. None at
        the end of the epoch. False if the sampler failed: `fail` raises its exception, once that batch is due. It is
        kept here, and not by C++, since it may refer to the loader, and the garbage collector must see that. Ctrl-C and
        the like are raised at once."""
        try:
            return self._draw()
        except Exception as error:
            self._error = error
            return False

    def fail(self) -> None:
        if self._error is not None:
            raise self._error

    def _draw(self) -> Any:
        if self._source is None:
            self._source = self._begin()
        batch = next(self._source, _END)
        return None if batch is _END else self._indices(batch)

    def _indices(self, batch: Any) -> Any:
        import numpy

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


def iterate(batch_sampler: Any, pieces: Iterator[Any] | None = None) -> Iterator[Any]:
    """One epoch of a batch sampler. PyTorch's own gives Several if its sampler's indices can be drawn as tensors.
    `pieces`: these indices, in place of its sampler's; only for PyTorch's own."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and type(batch_sampler) is torch_data.BatchSampler:
        return _in_batches(batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last, pieces)
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


def _in_batches(sampler: Any, size: int, drop_last: bool, pieces: Iterator[Any] | None = None) -> Iterator[Any]:
    """Batches of `size` indices: lists, or Several. Asks for no index before the batch that it belongs to is due."""
    pieces = pieces_of(sampler) if pieces is None else pieces
    if pieces is not None:
        yield from _cut(pieces, size, drop_last)
        return
    source = iter(sampler)
    while batch := list(itertools.islice(source, size)):
        if drop_last and len(batch) < size:
            return
        yield batch


def _cut(pieces: Iterator[Any], size: int, drop_last: bool) -> Iterator[Several]:
    """The pieces as batches. Those that a piece completes come together, but not many more than _AT_ONCE indices."""
    import numpy

    most = max(1, _AT_ONCE // size) * size
    parts: list[Any] = []
    count = 0
    for piece in pieces:
        parts.append(piece if isinstance(piece, numpy.ndarray) else piece.cpu().numpy())
        count += len(piece)
        if count < size:
            continue
        rest = _joined(parts)
        while len(rest) >= size:
            rows = rest[: min(most, len(rest) // size * size)]
            rest = rest[len(rows) :]
            yield Several(rows.reshape(-1, size))
        parts, count = [rest] if len(rest) > 0 else [], len(rest)
    rest = _joined(parts)
    if len(rest) > 0 and not drop_last:
        yield Several(rest.reshape(1, -1))


def _joined(parts: list[Any]) -> Any:
    import numpy

    if len(parts) == 1:
        return numpy.ascontiguousarray(parts[0])
    return numpy.concatenate([numpy.empty(0, numpy.int64), *parts])


_END = object()


def batches_of(
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    drop_last: bool,
    samples: Sized,
    others: dict[str, Any],
) -> tuple[Batches | None, int]:
    """The batches of these samplers, if one is given, and the largest batch. `others`: what a sampler decides."""
    if sampler is None and batch_sampler is None:
        return None, whole("batch_size", 1 if batch_size is None else batch_size, 1, what="a number of samples")
    name = "sampler" if batch_sampler is None else "batch_sampler"
    if batch_sampler is not None:
        others = {"sampler": sampler is not None, "drop_last": drop_last, **others}
    for option, value in others.items():
        if value:
            raise InvalidArgument(f"A Loader's {name} chooses the samples: leave out {option}.")
    source = sampler if batch_sampler is None else batch_sampler
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
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
