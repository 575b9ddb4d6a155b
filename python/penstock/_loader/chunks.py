"""Columns whose rows lie in several arrays, or have an order of their own."""

from __future__ import annotations

import functools
from typing import Any

from .. import _core

LARGE = 64 << 20  # as of files that are read batch by batch


class Chunks:
    """The rows of several arrays of NumPy, one behind the other, in the order `rows` if there is one. A Loader reads
    them where they lie."""

    def __init__(self, arrays: list[Any], rows: Any = None):
        self.arrays, self.rows = arrays, rows
        self.dtype = arrays[0].dtype
        self.shape = (sum(map(len, arrays)) if rows is None else len(rows), *arrays[0].shape[1:])

    @functools.cached_property
    def field(self) -> _core.FileField:
        return _core.chunks_field(
            "data", self.arrays, b"" if self.rows is None else self.rows.astype("uint64").tobytes()
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.field[index]

    def __reduce__(self) -> tuple:
        return Chunks, (self.arrays, self.rows)


def side_by_side(array: Any) -> Any:
    """A copy of Chunks, in one array; anything else as it is."""
    if not isinstance(array, Chunks):
        return array
    import numpy

    joined = numpy.concatenate(array.arrays) if len(array.arrays) > 1 else array.arrays[0]
    return joined if array.rows is None else joined[array.rows]


def column_of(arrays: list[Any], rows: Any) -> Any:
    """The rows as an array, copied if need be, or as Chunks if the copy would be large."""
    column = Chunks(arrays, rows)
    is_array = rows is None and len(arrays) == 1
    return side_by_side(column) if is_array or len(column) * arrays[0][:1].nbytes <= LARGE else column
