"""Parquet files as a Loader's data: pyarrow decodes row groups, window by window, ahead of the batches."""

from __future__ import annotations

import bisect
import contextlib
import copy
import glob
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

from .. import _core
from .._errors import Error, InvalidArgument
from .columns import Fields, built_of, check_fill, chosen_columns, column_array, filled, matrix_of
from .sampler import Sampler

_WINDOWS = 3  # in memory: that of the batches, the one before, in which a batch may begin, and the one behind
_MEMORY = "1GiB"


def parquet_files(data: Any) -> list[str] | None:
    """The files of a path, a folder, a pattern, or a list of these, if they are Parquet files."""
    files: list[str] = []
    for path in data if isinstance(data, list) else [data]:
        if not isinstance(path, str | os.PathLike):
            return None
        pattern = os.path.join(glob.escape(str(path)), "*.parquet") if os.path.isdir(path) else str(path)
        files += sorted(glob.glob(pattern, recursive=True)) or [str(path)]
    return files if files and all(file.endswith(".parquet") for file in files) else None


class Parquet:
    """The rows of Parquet files, one behind the other. `fields`: parts of them, which `stream` reads."""

    def __init__(self, files: list[str], features: Any, target: Any, fill: Any):
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise InvalidArgument(f"Reading {files[0]} needs pyarrow: pip install pyarrow.") from None
        opened = [_File(path) for path in files]
        self.fill = fill
        self._groups = [(file, group) for file in opened for group, rows in enumerate(file.rows) if rows]
        self._begins = [0, *itertools.accumulate(file.rows[group] for file, group in self._groups)]
        if not self._groups:
            raise InvalidArgument(f"There are no rows in {', '.join(files)}.")
        check_fill(fill, opened[0].types)
        chosen = chosen_columns(list(opened[0].types), features, target)
        named = [[columns] if isinstance(columns, str) else columns for columns in chosen.values()]
        self._names = list(dict.fromkeys(itertools.chain(*named)))
        for file, name in itertools.product(opened, self._names):
            here, there = opened[0].types[name], file.types.get(name, "missing")
            if here != there:
                raise InvalidArgument(
                    f"Column '{name}' is {here} in {files[0]} and {there} in {file.path}: the files of a set have the "
                    "same columns."
                )
        first = self._read(0, only_first=True)
        with self._at(0):
            parts = [Part(self, name, columns, first) for name, columns in chosen.items()]
        build, tables = built_of(chosen, features, target)
        self.fields = Fields(list(chosen), parts, build, of_tables=dict.fromkeys(tables))

    def __len__(self) -> int:
        return self._begins[-1]

    def stream(self, parts: list[Part], shuffle: bool, seed: int, memory: Any, batch: int) -> list[Any]:
        """The parts as the C++ side takes them. `batch`: the samples of a batch, those of all ranks. It lies in two
        windows at most, and a window shuffles two row groups at least, even if they need more than `memory`."""
        from concurrent.futures import ThreadPoolExecutor

        self._parts = parts
        largest = max(map(self._rows_of, range(len(self._groups))))
        room = _core.parse_bytes(str(memory or _MEMORY)) // _WINDOWS // sum(part.new(1).nbytes for part in parts)
        self._window_rows = min(max(room, 2 * largest) if shuffle else largest + batch, len(self))
        self._order = Sampler(len(self._groups), shuffle=shuffle, seed=seed)
        version = self._order.state_dict()["order_version"]
        self.signature = {"parquet": [version, seed, self._window_rows, len(self._groups)] if shuffle else []}
        self._plans: dict[int, tuple[list[int], list[tuple[int, ...]]]] = {}
        self._decoded: dict[tuple[int, ...], tuple[list[Any], list[Any]]] = {}
        self._free: list[list[Any]] = []  # memory for windows
        self._ahead = ThreadPoolExecutor(2, "penstock-parquet")  # one waits for pyarrow while the other writes rows
        like = [(part.name, part.new(1)) for part in parts]
        fields = _core.windows(like, len(self), shuffle, seed, self._window)
        return list(zip(self.fields.names, fields, strict=True))

    def describe(self, _epoch: int) -> str:
        is_shuffled = self.signature["parquet"]
        order = f"shuffled within windows of {self._window_rows}" if is_shuffled else "in the order of the files"
        return f"{len(self)} rows of {len(self._groups)} row groups, decoded by pyarrow, {order}"

    def row(self, index: int) -> Any:
        """A sample, as a table of one row. Reads its row group."""
        index = range(len(self))[index]
        group = bisect.bisect_right(self._begins, index) - 1
        return self._read(group).slice(index - self._begins[group], 1)

    def _rows_of(self, group: int) -> int:
        return self._begins[group + 1] - self._begins[group]

    def _plan(self, epoch: int) -> tuple[list[int], list[tuple[int, ...]]]:
        """The windows of an epoch: the first position of each, and its row groups."""
        self._order.set_epoch(epoch)
        firsts, windows, end = [0], [[]], 0
        for group in self._order:
            if windows[-1] and end + self._rows_of(group) > firsts[-1] + self._window_rows:
                firsts.append(end)
                windows.append([])
            windows[-1].append(group)
            end += self._rows_of(group)
        return firsts, [tuple(sorted(groups)) for groups in windows]

    def _window(self, epoch: int, position: int) -> tuple[int, list[Any]]:
        """The first position of the window, and its rows. The window behind it is decoded meanwhile."""
        self._plans = {each: self._plans.get(each) or self._plan(each) for each in (epoch, epoch + 1)}
        firsts, windows = self._plans[epoch]
        i = bisect.bisect_right(firsts, position) - 1
        behind = windows[i + 1] if i + 1 < len(windows) else self._plans[epoch + 1][1][0]
        self._decoded = {windows[i]: self._decoded.pop(windows[i], None) or self._decode(windows[i])}
        arrays, written = self._decoded[windows[i]]
        for future in written:
            future.result()
        if behind != windows[i]:
            self._decoded[behind] = self._decode(behind)
        return firsts[i], [(part.name, array) for part, array in zip(self._parts, arrays, strict=True)]

    def _decode(self, groups: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
        """Memory for the rows of a window, and what writes its row groups there."""
        buffers = self._free.pop() if self._free else [part.new(self._window_rows) for part in self._parts]
        ends = list(itertools.accumulate(map(self._rows_of, groups)))
        arrays = [buffer[: ends[-1]] for buffer in buffers]
        # Once nobody reads the window, its memory serves another.
        weakref.finalize(arrays[0], self._free.append, buffers).atexit = False
        return arrays, [self._ahead.submit(self._write, *each, arrays) for each in zip(groups, ends, strict=True)]

    def _write(self, group: int, end: int, arrays: list[Any]) -> None:
        table = self._read(group)
        with self._at(group):
            for part, array in zip(self._parts, arrays, strict=True):
                part.write(table, array[end - len(table) : end])

    def _read(self, number: int, only_first: bool = False) -> Any:
        """A row group, or its first row, as a table."""
        import pyarrow.parquet

        file, group = self._groups[number]
        with self._at(number):
            file.refuse_changed()
            with pyarrow.parquet.ParquetFile(file.path, metadata=file.metadata) as opened:
                if only_first:
                    batches = opened.iter_batches(1, row_groups=[group], columns=self._names)
                    return pyarrow.Table.from_batches([next(batches)])
                table = opened.read_row_group(group, columns=self._names)
            file.refuse_changed()
        return table

    def _at(self, number: int) -> contextlib.AbstractContextManager[None]:
        file, group = self._groups[number]
        return _place(f"{file.path}, row group {group}")


class Part:
    """A column of Parquet files, or several as a matrix. It looks enough like an array for code that asks for a dtype,
    a shape, or one sample."""

    def __init__(self, owner: Parquet, name: str, columns: str | list[str], table: Any):
        self.name, self._columns, self._owner, self._rounded = name, columns, owner, None
        self._shapes: dict[str, tuple[int, ...]] = {}
        first = self._values(table)
        self.dtype, self.shape = first.dtype, (len(owner), *first.shape[1:])

    def converted(self, dtype: str, rounded: str) -> Part:
        """The part in another type. `rounded`: that in which it is delivered."""
        part = copy.copy(self)
        part.dtype, part._rounded = self.new(0).astype(dtype).dtype, rounded
        return part

    def new(self, rows: int) -> Any:
        import numpy

        return numpy.empty((rows, *self.shape[1:]), self.dtype)

    def write(self, table: Any, out: Any) -> None:
        """Writes the values of a row group."""
        matrix_of(self._arrays(table), self.name, out.reshape(len(out), -1), self._rounded)

    def _arrays(self, table: Any) -> dict[str, Any]:
        names = [self._columns] if isinstance(self._columns, str) else self._columns
        arrays = {name: column_array(filled(table.column(name), name, self._owner.fill), name) for name in names}
        for name, array in arrays.items():
            shape = self._shapes.setdefault(name, array.shape[1:])
            if shape != array.shape[1:]:
                raise InvalidArgument(
                    f"Column '{name}' holds values of shape {array.shape[1:]}, and {shape} before. If lists differ in "
                    "length, pass pyarrow.parquet.read_table(...), and `pack` or `pad`."
                )
        return arrays

    def _values(self, table: Any) -> Any:
        arrays = self._arrays(table)
        return arrays[self._columns] if isinstance(self._columns, str) else matrix_of(arrays, self.name)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Any:
        return self._values(self._owner.row(index))[0].astype(self.dtype)


class _File:
    """What is known of a file without its columns."""

    def __init__(self, path: str):
        import pyarrow.parquet

        self.path = path
        with _place(path), pyarrow.parquet.ParquetFile(path) as opened:
            self._state = self._look()
            self.metadata, schema = opened.metadata, opened.schema_arrow
            self.types = dict(zip(schema.names, schema.types, strict=True))
            if len(self.types) < len(schema.names):
                raise InvalidArgument(f"Two columns have the same name: {schema.names}. Rename one.")
        self.rows = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]

    def refuse_changed(self) -> None:
        if self._look() != self._state:
            raise Error("The file has changed since the Loader was made: make a new one.")

    def _look(self) -> tuple[int, ...]:
        found = os.stat(self.path)
        return found.st_size, found.st_mtime_ns, found.st_ino


@contextlib.contextmanager
def _place(where: str) -> Iterator[None]:
    """Names file and row group in what is raised."""
    try:
        yield
    except Exception as error:
        raise (InvalidArgument if isinstance(error, InvalidArgument) else Error)(f"{where}: {error}") from error
