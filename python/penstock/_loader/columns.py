"""Turns the data of a Loader into named arrays of the host: arrays, nests of them, tables and sets of columns."""

from __future__ import annotations

import contextlib
import functools
import glob
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _core
from .._checks import has, is_number, numpy_for
from .._errors import Error, InvalidArgument
from .._move.containers import contents_of, like
from .chunks import LARGE, Chunks, column_of, side_by_side

Build = Callable[[list[Any]], Any]


class Fields(NamedTuple):
    """A dataset in the form that a Loader takes. `build` makes a batch of the dataset's structure of one array for each
    field."""

    names: list[str]
    arrays: list[Any]
    build: Build
    is_table: bool = False
    of_tables: Mapping[str, Any] = {}  # the tables of fields that are a matrix of one; None for a column, or a stream

    def named(self) -> list[tuple[str, Any]]:
        """The arrays as the C++ side takes them."""
        arrays = (array.field if isinstance(array, Chunks) else array for array in self.arrays)
        return list(zip(self.names, arrays, strict=True))


def fields_of(data: Any, features: Any = None, target: Any = None, fill: Any = None) -> Fields:
    """Names, arrays and structure of `data`. `features`, `target`: see `chosen_columns`; `fill`: `filled`. Raises
    InvalidArgument that names the field that does not fit."""
    if features is not None or target is not None:
        return _features(data, features, target, fill)
    if isinstance(data, str | os.PathLike):
        return _files(data)
    if is_pictures(data):
        if data.labels is None:
            return Fields(["image"], [data.field], lambda arrays: arrays[0])
        return Fields(["image", "label"], [data.field, _array(data.labels, "label")], tuple)
    if is_a("penstock._loader.tokens", "Tokens", data):
        return data.fields()
    if is_table(data):
        columns = columns_of(data, fill)
        check_fill(fill, columns)
        fields = _named(columns, lambda key, value: _column(filled(value, key, fill), key))
        return fields._replace(is_table=True, of_tables=dict.fromkeys(fields.names))
    if is_a("tensordict", "TensorDictBase", data):
        return _tensordict(data)
    if isinstance(data, Mapping):
        fields = _named(data, lambda key, value: _array(value, str(key)))
        return fields._replace(of_tables=_tables_of(fields.names, data.values()))
    if is_a("torch.utils.data", "TensorDataset", data):
        plain = sys.modules["torch.utils.data"].TensorDataset
        if type(data).__getitem__ is plain.__getitem__:
            data = tuple(data.tensors)
    if isinstance(data, list | tuple) and not _is_array(data):
        items = contents_of(data)
        names = list(getattr(type(data), "_fields", [f"field{i}" for i in range(len(items))]))
        if not names:
            raise InvalidArgument("A Loader needs at least one array.")
        _refuse_samples(data)
        arrays = [_array(item, name) for name, item in zip(names, items, strict=True)]
        return Fields(names, arrays, functools.partial(like, data), of_tables=_tables_of(names, data))
    return Fields(["data"], [_array(data, "data")], lambda arrays: arrays[0])


def chosen_columns(names: list[Any], features: Any, target: Any) -> dict[Any, Any]:
    """The column of each field, or the columns that become its matrix. Without `features` and `target` each column is a
    field. Without `features` these are all columns but the target."""
    if features is None and target is None:
        return {name: name for name in names}
    targets = target if isinstance(target, list) else [target]
    parts = {"features": [name for name in names if name not in targets] if features is None else features}
    if target is not None:
        parts["target"] = target
    for what, columns in parts.items():
        listed = columns if isinstance(columns, list) else [columns]
        if not listed or (what == "features" and listed is not columns) or any(name not in names for name in listed):
            raise InvalidArgument(
                f"`features` lists columns, and `target` is one or lists some, of {names}: {columns!r}."
            )
    return parts


def built_of(chosen: Mapping[Any, Any], features: Any, target: Any) -> tuple[Build, list[Any]]:
    """What makes a batch of such fields, and those that `to` alone means."""
    if features is None and target is None:
        return lambda batch: dict(zip(chosen, batch, strict=True)), list(chosen)
    build = tuple if target is not None else lambda batch: batch[0]
    return build, [name for name, columns in chosen.items() if isinstance(columns, list)]


def _features(data: Any, features: Any, target: Any, fill: Any) -> Fields:
    if not is_table(data):
        raise InvalidArgument(f"`features` and `target` name columns of a table, and this is {_a(data)}.")
    columns = columns_of(data, fill)
    check_fill(fill, columns)
    chosen = chosen_columns(list(columns), features, target)
    build, tables = built_of(chosen, features, target)
    of_tables = {name: {key: filled(columns[key], key, fill) for key in chosen[name]} for name in tables}
    arrays = [
        matrix_of(of_tables[name], name) if name in tables else _column(filled(columns[key], key, fill), key)
        for name, key in chosen.items()
    ]
    return Fields(list(chosen), arrays, build, True, of_tables)


def _tables_of(names: list[str], values: Iterable[Any]) -> dict[str, Any]:
    tables = {name: value for name, value in zip(names, values, strict=True) if is_table(value)}
    return {name: table if has(table, "__len__") else None for name, table in tables.items()}  # a stream is read once


def _refuse_samples(data: Sequence[Any]) -> None:
    """Raises InvalidArgument if `data` lists samples: a list that a Loader takes has an array for each field."""
    if any(isinstance(part, Mapping) for part in data):
        raise InvalidArgument(
            "This lists samples that are dicts, and a Loader takes a dict of arrays: "
            "{name: numpy.stack([sample[name] for sample in data]) for name in data[0]}. If their shapes differ, use "
            "penstock.feed(DataLoader(data, batch_size=..., collate_fn=...))."
        )
    if any(is_number(part) for part in data):
        raise InvalidArgument("This lists numbers, and a Loader takes arrays: numpy.asarray(data).")
    lengths = set(filter(None, map(_length, data)))
    if len(lengths) > 1:
        raise InvalidArgument(
            f"The first axis of each field counts samples, and these fields have {min(lengths)} to {max(lengths)}. If "
            "each is a sample, not a field, write numpy.stack(data). If the shapes of samples differ, pad them, or use "
            "penstock.feed(DataLoader(data, batch_size=..., collate_fn=...))."
        )


def _length(part: Any) -> int | None:
    try:
        return None if isinstance(part, str) else len(part)
    except TypeError:
        return None


def _files(path: str | os.PathLike) -> Fields:
    """The arrays of a file or a directory. They are read as `open_dataset` of the library does."""
    if "torch" not in sys.modules:
        numpy_for(f"Reading {os.fspath(path)}")
    arrays = _shards(os.fspath(path))
    if len(arrays) == 1:
        return Fields(["data"], arrays, lambda batch: batch[0])
    return _named({array.name: array for array in arrays}, lambda _, array: array)


def _shards(path: str) -> list[Any]:
    """The arrays of a file, or those of the files that a pattern matches, one behind the other by the files' names."""
    if os.path.exists(path) or not any(character in path for character in "*?["):
        return _core.open_files(path)
    files = sorted(glob.glob(path, recursive=True))
    if not files:
        raise InvalidArgument(f"No file matches {path}.")
    mapped = sum(map(os.path.getsize, filter(os.path.exists, files))) > LARGE
    shards = [_by_name(_core.open_files(file, mapped)) for file in files]
    first = shards[0]
    for file, arrays in zip(files, shards, strict=True):
        if _samples_of(arrays) != _samples_of(first):
            raise InvalidArgument(
                f"{files[0]} has {_samples_of(first)}, and {file} has {_samples_of(arrays)}: files of one pattern have "
                "the same arrays, and their samples have one type and shape."
            )
    return [_core.chunks_field(name, [arrays[name] for arrays in shards], b"") for name in first]


def _by_name(arrays: list[Any]) -> dict[str, Any]:
    """One alone is "data": a .npy file names its array after itself."""
    return {"data": arrays[0]} if len(arrays) == 1 else {array.name: array for array in arrays}


def _samples_of(arrays: dict[str, Any]) -> dict[str, str]:
    """Type and shape of the samples of each array."""
    return {name: f"{array.dtype} {array.shape[1:]}" for name, array in arrays.items()}


def _file(path: str | os.PathLike, name: str) -> Any:
    arrays = _files(path).arrays
    if len(arrays) > 1:
        raise InvalidArgument(
            f"Field '{name}' is {os.fspath(path)}, which holds {len(arrays)} arrays: pass the path alone, and batches "
            "are dicts of them."
        )
    return arrays[0]


class Samples:
    """The samples of a Loader one by one, for code that uses `loader.dataset`."""

    def __init__(self, fields: Fields):
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields.arrays[0])

    def __getitem__(self, index: Any) -> Any:
        return self._fields.build([array[index] for array in self._fields.arrays])

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {', '.join(self._fields.names)}>"


def is_a(module: str, name: str, value: Any) -> bool:
    """True if `value` is an instance of this class of a module that the program has imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def is_pictures(value: Any) -> bool:
    return is_a("penstock._loader.pictures", "Pictures", value)


def _is_array(value: Any) -> bool:
    return has(value, "__array__") or has(value, "__dlpack__")


def _named(data: Mapping[Any, Any], convert: Callable[[Any, Any], Any]) -> Fields:
    keys = list(data)
    names = [str(key) for key in keys]
    if not names:
        raise InvalidArgument("A Loader needs at least one array.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgument(f"Two fields have the same name: {', '.join(twice)}. Rename one.")
    arrays = [convert(key, data[key]) for key in keys]
    return Fields(names, arrays, lambda batch: dict(zip(keys, batch, strict=True)))


def _tensordict(data: Any) -> Fields:
    if not data.batch_size:
        raise InvalidArgument("This TensorDict has no batch size: set it, so that its first axis counts samples.")
    keys = list(data.keys(include_nested=True, leaves_only=True))
    names = [key if isinstance(key, str) else ".".join(key) for key in keys]
    arrays = [_array(data.get(key), name) for key, name in zip(keys, names, strict=True)]

    def build(batch: list[Any]) -> Any:
        # The batch axes of a batch, or of a single sample, which lacks the first axis.
        axes = len(data.batch_size) - (arrays[0].ndim - batch[0].ndim)
        new = sys.modules["tensordict"].TensorDict({}, batch_size=batch[0].shape[:axes])
        for key, array in zip(keys, batch, strict=True):
            new[key] = array
        return new

    return Fields(names, arrays, build)


def _array(value: Any, name: str) -> Any:
    """The array in the form that the C++ side reads: a tensor or a NumPy array whose samples have no gaps."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value, name, torch)
    if isinstance(value, str | os.PathLike):
        return _file(value, name)
    if is_pictures(value):
        return value.field
    if isinstance(value, Chunks):
        return value
    if is_column(value):
        return _column(value, name)
    if is_table(value):
        return matrix_of(columns_of(value), name)
    if is_a("datasets.arrow_dataset", "Column", value) and is_a("datasets", "Dataset", value.source):
        return _hugging_face(value.source.select_columns([value.column_name]))[value.column_name]
    for method, remedy in (("collect", "collect it first: .collect()"), ("to_tensordict", "pass .to_tensordict()")):
        if not _is_array(value) and has(value, method):
            raise InvalidArgument(f"Field '{name}' is {_a(value)}; {remedy}.")
    if "pyarrow" in type(value).__module__ and (has(value, "iter_batches") or has(value, "to_batches")):
        raise InvalidArgument(
            f"Field '{name}' is {_a(value)}, which pyarrow decodes part by part. Pass the path of Parquet files, and a "
            f"Loader does so, and shuffles: penstock.Loader('x.parquet'). If the table fits into memory, write "
            f"{'x.read()' if has(value, 'iter_batches') else 'x.to_table()'}."
        )
    if not _is_array(value) and not isinstance(value, list | tuple | range | memoryview | bytearray):
        raise InvalidArgument(
            f"Field '{name}' is {_a(value)}, not an array. A Loader feeds arrays in memory or in a mapped file. For a "
            "Dataset, or anything else that makes samples one by one, use "
            "penstock.feed(DataLoader(dataset, ...))."
        )
    if any(hasattr(type(value), name) for name in _OF_CHUNKS):
        raise InvalidArgument(
            f"Field '{name}' is {_a(value)}, and a Loader would read all of it into memory. If it may, write "
            "numpy.asarray(x). Otherwise use penstock.feed(DataLoader(dataset, ...))."
        )
    numpy = numpy_for(f"Field '{name}' is {_a(value)}, and reading it")
    if isinstance(value, numpy.ma.MaskedArray) and numpy.ma.is_masked(value):
        raise InvalidArgument(f"Field '{name}' is a masked array and would lose its mask: pass `.data` and `.mask`.")
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError) as error:
        reason = f"Field '{name}' is {_a(value)}, which cannot become a NumPy array: {str(error).rstrip('.')}."
        samples = _IF_TUPLES_ARE_SAMPLES if isinstance(value, tuple) else ""
        raise InvalidArgument(f"{reason} {samples}{_IF_SHAPES_DIFFER}") from error
    return _numbers(array, name)


# What arrays have that are not in memory: those of h5py, Zarr and Dask; TensorStore; netCDF4.
_OF_CHUNKS = ("chunks", "chunk_layout", "chunking")


def _refuse_empty(shape: Sequence[int], name: str) -> None:
    if len(shape) > 0 and shape[0] == 0:
        raise InvalidArgument(f"Field '{name}' has no samples: its first axis counts them.")
    if 0 in shape:
        raise InvalidArgument(
            f"A sample of field '{name}' has zero bytes, since the shape is {tuple(shape)}. Leave the field out, and "
            f"make it in the loop: x.new_empty(({', '.join(['len(x)', *map(str, shape[1:])])}))."
        )


def _a(value: Any) -> str:
    kind = type(value)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _tensor(value: Any, name: str, torch: Any) -> Any:
    if value.device.type != "cpu":
        raise InvalidArgument(f"Field '{name}' is on {value.device} already; pass arrays of the host.")
    if value.layout is not torch.strided or value.is_quantized:
        raise InvalidArgument(f"Field '{name}' is sparse or quantised; a Loader takes plain tensors.")
    if type(value).__name__ == "NonTensorData":
        raise InvalidArgument(f"Field '{name}' is not a tensor; a Loader takes bool, integer and float types.")
    if value.is_complex():
        raise _no_numbers("Field", name, value.dtype, "Complex numbers become pairs: torch.view_as_real(x).")
    _refuse_empty(value.shape, name)
    plain = value.detach().as_subclass(torch.Tensor)
    if plain.is_contiguous() or _is_read_in_place(plain.shape, plain.stride(), 1):
        return plain.resolve_neg()
    with _closing_gaps(name, plain.numel() * plain.element_size()):
        return plain.contiguous().resolve_neg()


def _numbers(array: Any, name: str) -> Any:
    import numpy

    kind = array.dtype.kind
    if kind not in "biuf" and array.dtype.name != "bfloat16":  # of ml_dtypes
        texts = kind == "O" and array.size > 0 and isinstance(array.flat[0], str | bytes)
        raise _no_numbers("Field", name, array.dtype, _NUMBERS_OF.get("U" if texts else kind, ""))
    if array.ndim == 0:
        raise InvalidArgument(f"Field '{name}' is a scalar; its first axis must count samples.")
    _refuse_empty(array.shape, name)
    as_it_is = array.flags.aligned and array.dtype.isnative
    if as_it_is and (array.flags.c_contiguous or _is_read_in_place(array.shape, array.strides, array.itemsize)):
        return array
    with _closing_gaps(name, array.nbytes):
        return numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))


@contextlib.contextmanager
def _copying(size: int, refusal: str) -> Iterator[None]:
    """Raises InvalidArgument if a copy of `size` bytes does not fit into memory. Systems that promise more memory than
    they have would end the process instead. `refusal` says "{error}" where the reason comes."""
    try:
        if size > (memory := _core.host_memory_bytes()):
            raise MemoryError(f"{size} bytes, of {memory}")
        yield
    except MemoryError as error:
        raise InvalidArgument(refusal.replace("{error}", str(error))) from None


def _closing_gaps(name: Any, size: int) -> contextlib.AbstractContextManager[None]:
    return _copying(
        size,
        f"The samples of field '{name}' have gaps within them, and a copy without them does not fit into memory: "
        "{error}. If these are windows of a series, numpy.moveaxis(x, -1, 1) has none, and is read where it lies.",
    )


_IF_SHAPES_DIFFER = (
    "Stack arrays of one shape: numpy.stack(list(x)). If their shapes differ, pad them, or use "
    "penstock.feed(DataLoader(dataset, batch_size=..., collate_fn=...))."
)
_IF_TUPLES_ARE_SAMPLES = "If it is a sample, not a field, write [numpy.stack(field) for field in zip(*data)]. "
_DECODE = (
    "Encoded images and texts are decoded for each sample: penstock.feed(DataLoader(dataset, ...)). Names of classes "
    "become numbers: "
)
# What to write in place of an array of such a kind.
_NUMBERS_OF = {
    "O": f"Its values are objects of Python. {_IF_SHAPES_DIFFER}",
    **dict.fromkeys("SUT", _DECODE + "numpy.unique(x, return_inverse=True)[1]."),
    **dict.fromkeys("Mm", 'Times become numbers: x.astype("int64").'),
    "c": "Complex numbers become pairs: numpy.stack([x.real, x.imag], axis=-1).",
    "V": "Records become a dict of fields: {name: x[name] for name in x.dtype.names}.",
}


def _no_numbers(what: str, name: Any, dtype: Any, advice: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} '{name}' holds {dtype}; a Loader takes bool, integer and float types. {advice or 'Convert it.'} Or "
        "leave it out."
    )


def cast(array: Any, dtype: Any, name: Any) -> Any:
    """The array in another type of NumPy. Raises InvalidArgument if its values are too large, or the copy is."""
    import numpy

    refusal = (
        f"'{name}' in {dtype} does not fit into memory: {{error}}. If these are windows of a series, convert the "
        "series, and make the windows of that."
    )
    with _refusing_overflow(name, dtype), _copying(array.size * numpy.dtype(dtype).itemsize, refusal):
        return array.astype(dtype, order="C")


@contextlib.contextmanager
def _refusing_overflow(name: Any, dtype: Any) -> Iterator[None]:
    import numpy

    try:
        with numpy.errstate(over="raise"):
            yield
    except FloatingPointError:
        raise InvalidArgument(f"'{name}' holds values that are too large for {dtype}. Scale them before.") from None


def refuse_rounding(array: Any, dtype: Any, name: Any) -> None:
    """Raises InvalidArgument if `dtype` is a float type that does not hold all integers of the array."""
    import numpy

    bits = 7 if dtype == "bfloat16" else numpy.finfo(dtype).nmant if numpy.dtype(dtype).kind == "f" else None
    if bits is None or array.dtype.kind not in "iu" or array.size == 0:
        return
    low, high, most = int(array.min()), int(array.max()), 2 ** (bits + 1)
    if low < -most or high > most:
        raise InvalidArgument(
            f"'{name}' holds integers from {low} to {high}, and {dtype} rounds those beyond {most}. If it may be "
            "rounded, convert it before. If not, give it a field of its own, and name the others in `to`."
        )


def refuse_rounded_columns(table: Any, dtype: Any) -> None:
    """The same for each column of a table, of which a matrix was made."""
    for key, value in columns_of(table).items():
        refuse_rounding(column_array(value, key), dtype, key)


_ROWS_AT_ONCE = 4096  # so many stay in the processor's cache while the columns are written side by side


def matrix_of(columns: Mapping[Any, Any], name: str, out: Any = None, rounded: Any = None) -> Any:
    """The columns of a table side by side, in the type that holds all of them, or in `out`. `rounded`: the type in
    which they are delivered, if it is not that of the matrix. Raises InvalidArgument as `cast` does."""
    import numpy

    parts = {key: column_array(value, key) for key, value in columns.items()}
    if not parts:
        raise InvalidArgument(f"Field '{name}' is a table without columns.")
    dtype = numpy.result_type(*(part.dtype for part in parts.values())) if out is None else out.dtype
    for key, part in parts.items():
        if part.ndim > 2 and out is None:
            raise InvalidArgument(f"Column '{key}' of '{name}' holds arrays: pass it as a field of its own.")
        refuse_rounding(part, rounded or dtype, key)
    rows = [part.reshape(len(part), -1) for part in parts.values()]
    matrix = numpy.empty((len(rows[0]), sum(part.shape[1] for part in rows)), dtype) if out is None else out
    with _refusing_overflow(name, dtype):
        for begin in range(0, len(matrix), _ROWS_AT_ONCE):
            some = slice(begin, begin + _ROWS_AT_ONCE)
            numpy.concatenate([part[some] for part in rows], axis=1, out=matrix[some])
    return matrix


def column_array(value: Any, name: Any) -> Any:
    """The values of a column, in one array."""
    return side_by_side(_column(value, name))


def _is_read_in_place(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """True if samples have no gaps within them, but lie apart, as in a column of a matrix, or overlap, as windows of a
    series do. `item` is the size of a value, in the unit of the strides."""
    sample = item
    for extent, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if extent != 1 and stride != sample:
            return False
        sample *= extent
    return len(shape) > 0 and shape[0] > 1 and sample > 0 and strides[0] > 0 and strides[0] != sample


# Tables: pandas, polars, Arrow, Hugging Face. Each column keeps its own type.


def is_table(data: Any) -> bool:
    named = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("datasets", "Dataset"), ("datasets", "DatasetDict"))
    if any(is_a(module, name, data) for module, name in named):
        return True
    return not is_column(data) and (has(data, "__arrow_c_stream__") or has(data, "__arrow_c_array__"))


def columns_of(data: Any, fill: Any = None) -> Mapping[Any, Any]:
    """The columns of a table by name. Those of Hugging Face are arrays, filled, and made when asked for."""
    if type(data) is dict:
        return data
    if is_a("pandas", "DataFrame", data):
        if not data.columns.is_unique:
            raise InvalidArgument(f"Two columns have the same name: {list(data.columns)}. Rename one.")
        return {name: data[name] for name in data.columns}
    if is_a("polars", "DataFrame", data):
        return {series.name: series for series in data.get_columns()}
    if is_a("datasets", "Dataset", data):
        return _hugging_face(data, fill)
    if is_a("datasets", "DatasetDict", data):
        raise InvalidArgument(f"This is a dict of splits: choose one, such as dataset[{next(iter(data), 'train')!r}].")
    pyarrow = _pyarrow_for(f"Reading {_a(data)}")
    try:
        table = pyarrow.table(data)
    except Exception as error:
        raise Error(f"Reading the Arrow stream of {_a(data)} failed: {error}") from error
    if len(set(table.column_names)) < len(table.column_names):
        raise InvalidArgument(f"Two columns have the same name: {table.column_names}. Rename one.")
    return dict(zip(table.column_names, table.columns, strict=True))


def _pyarrow_for(what: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InvalidArgument(f"{what} needs pyarrow: pip install pyarrow, or pass a dict of arrays.") from None
    return pyarrow


def check_fill(fill: Any, names: Iterable[Any]) -> None:
    unknown = [name for name in fill if name not in names] if isinstance(fill, Mapping) else []
    if unknown:
        raise InvalidArgument(f"`fill_null` names the column {unknown[0]!r}, and there are {list(names)}.")


def filled(column: Any, name: Any, fill: Any) -> Any:
    """The column with its nulls filled, in pandas also NaN. `fill`: a number, or a dict of numbers by columns."""
    value = fill.get(name) if isinstance(fill, Mapping) else fill
    if value is None or not is_column(column):
        return column
    pyarrow = _pyarrow_for(f"Filling column '{name}'")
    arrow = pyarrow.array(column, from_pandas=True) if is_a("pandas", "Series", column) else column
    arrow = arrow.to_arrow() if is_a("polars", "Series", arrow) else arrow
    if not arrow.null_count:
        return column
    kind, types = arrow.type, pyarrow.types
    try:
        scalar = pyarrow.scalar(bool(value) if types.is_boolean(kind) else value, kind)
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        scalar = None
    # Of floating point, the nearest number stands for others; but not infinity.
    rounds = types.is_floating(kind) and scalar is not None and (value != value or math.isfinite(scalar.as_py()))
    if scalar is None or not (rounds or scalar.as_py() == value):
        raise InvalidArgument(f"Column '{name}' holds {kind}, and fill_null={value!r} is no such value.")
    return arrow.fill_null(scalar)


def _hugging_face(data: Any, fill: Any = None) -> Mapping[Any, Any]:
    """The columns of the dataset's format, in the order of samples that `shuffle` or `select` gave it."""
    if data.format["type"] == "custom":
        raise InvalidArgument(
            "This dataset has a transform, which a Loader would not run. Apply it with .map(...), or use "
            "penstock.feed(DataLoader(dataset, ...))."
        )
    if "dtype" in data.format["format_kwargs"]:
        raise InvalidArgument("This dataset's format asks for another dtype: reset_format(), and pass `to=` instead.")
    rows = None if data._indices is None else data._indices.column(0).to_numpy()
    names = data.format["columns"] or data.column_names
    return _Columns(names, lambda name: _in_order(filled(data.data.column(name), name, fill), name, rows))


class _Columns(Mapping):
    """Columns that are made when they are asked for: others may hold what is no number."""

    def __init__(self, names: Sequence[Any], make: Callable[[Any], Any]):
        self._names, self._make = names, make

    def __getitem__(self, name: Any) -> Any:
        return self._make(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _in_order(column: Any, name: Any, rows: Any) -> Any:
    """Copies the rows if others, which `filter` left out, are nulls or lists of other lengths."""
    import pyarrow

    types, kind = pyarrow.types, column.type
    try:
        return _arrow(column, name, rows)
    except InvalidArgument:
        if rows is None or not (types.is_primitive(kind) or types.is_list(kind) or types.is_large_list(kind)):
            raise
    return _arrow(column.take(rows), name)


def is_column(value: Any) -> bool:
    return (
        is_a("pandas", "Series", value)
        or is_a("polars", "Series", value)
        or is_a("pyarrow", "Array", value)
        or is_a("pyarrow", "ChunkedArray", value)
    )


def _column(value: Any, name: Any) -> Any:
    numpy_for(f"Column '{name}'")
    if is_a("pandas", "Series", value):
        if is_a("pandas", "ArrowDtype", value.dtype) and value.dtype.pyarrow_dtype.num_fields:
            return _arrow(value.array.__arrow_array__(), name)
        return _numbers(_pandas(value, name), name)
    if is_a("polars", "Series", value):
        if value.null_count():
            raise _nulls(name, value.null_count())
        if value.dtype.is_nested():
            return _arrow(value.to_arrow(), name)
        return _numbers(_polars(value, name), name)
    if is_column(value):
        return _arrow(value, name)
    return _array(value, str(name))


def _nulls(name: Any, count: int) -> InvalidArgument:
    return InvalidArgument(
        f"Column '{name}' has {count} nulls, which an array of numbers cannot hold. Fill them in the column, or drop "
        f"their rows. Of a whole table or Parquet files, a Loader fills columns of numbers: fill_null={{{name!r}: 0}}."
    )


def _pandas(series: Any, name: Any) -> Any:
    import numpy

    if isinstance(series.dtype, numpy.dtype):
        return series.to_numpy()
    sparse = is_a("pandas", "SparseDtype", series.dtype)
    dtype = series.dtype.subtype if sparse else getattr(series.dtype, "numpy_dtype", series.dtype)
    kind = getattr(dtype, "kind", "O")
    if kind not in "biuf":
        codes = ".cat.codes" if hasattr(series, "cat") else '.astype("category").cat.codes'
        raise _no_numbers("Column", name, series.dtype, _NUMBERS_OF["M"] if kind == "M" else f"{_DECODE}x{codes}.")
    if series.isna().any():
        raise _nulls(name, int(series.isna().sum()))
    return series.to_numpy(dtype=dtype)


def _polars(series: Any, name: Any) -> Any:
    kind = series.dtype
    is_wide = kind.is_decimal() or str(kind).endswith("Int128")
    if (kind.is_numeric() and not is_wide) or kind == sys.modules["polars"].Boolean:
        return series.to_numpy()
    if kind.is_temporal():
        advice = "Times become numbers: x.to_physical()."
    elif kind.is_decimal():
        advice = "Write x.cast(polars.Float64)."
    elif kind.is_integer():
        advice = "Write x.cast(polars.Int64)."
    else:
        advice = _DECODE + "x.cast(polars.Categorical).to_physical()."
    raise _no_numbers("Column", name, kind, advice)


def _arrow(column: Any, name: Any, rows: Any = None) -> Any:
    """The column's values, in the order `rows` if there is one."""
    import pyarrow

    if isinstance(column, pyarrow.ChunkedArray):
        chunks = [chunk for chunk in column.chunks if len(chunk)] or [column.combine_chunks()]
    else:
        chunks = [column]
    arrays = [_numbers(values_of(chunk, name, column), name) for chunk in chunks]
    lengths = {array.shape[1:] for array in arrays}
    if len(lengths) > 1:
        axes = zip(min(lengths), max(lengths), strict=True)
        raise _lengths_differ(name, *next(axis for axis in axes if axis[0] != axis[1]))
    return column_of(arrays, rows)


def values_of(array: Any, name: Any, column: Any) -> Any:
    """Those of one chunk of `column`."""
    import pyarrow

    if array.null_count:
        raise _nulls(name, column.null_count or array.null_count)
    if isinstance(array, pyarrow.ExtensionArray):
        return _extension(array, name)
    kind, types = array.type, pyarrow.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False)
    if types.is_fixed_size_list(kind):
        return _rows(array, kind.list_size, name)
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = array.value_lengths().unique().to_pylist()
        if len(lengths) > 1:
            raise _lengths_differ(name, min(lengths), max(lengths))
        return _rows(array, lengths[0] if lengths else 0, name)
    raise _no_numbers("Column", name, kind, _numbers_of_arrow(kind, "x" if column is array else "x.combine_chunks()"))


def _lengths_differ(name: Any, least: int, most: int) -> InvalidArgument:
    return InvalidArgument(
        f"Column '{name}' holds lists of {least} to {most} values. Write pack={{'{name}': N}} to put them side by "
        'side, N values in a batch, or pad="longest" to fill them up with zeros.'
    )


def _numbers_of_arrow(kind: Any, column: str) -> str:
    """What to write in place of a column of this type."""
    types = sys.modules["pyarrow"].types
    if types.is_dictionary(kind):
        values = kind.value_type
        is_number = types.is_integer(values) or types.is_floating(values)
        return f"Write x.cast('{values}')." if is_number else f"Its numbers are {column}.indices."
    if types.is_temporal(kind):
        return f"Times become numbers: x.cast('{'int32' if kind.bit_width == 32 else 'int64'}')."
    if types.is_decimal(kind):
        return "Write x.cast('float64')."
    if types.is_struct(kind):
        return (
            "Encoded images, which datasets stores so, are a field by themselves: penstock.Pictures(x). Other structs "
            "become columns: table.flatten()."
        )
    if types.is_nested(kind) or types.is_run_end_encoded(kind):
        return ""
    return f"{_DECODE}{column}.dictionary_encode().indices."


def _extension(array: Any, name: Any) -> Any:
    """Reads Arrow's tensors and one-byte bools, and Hugging Face's arrays, which are stored as lists."""
    import pyarrow

    values = values_of(array.storage, name, array)
    if isinstance(array.type, getattr(pyarrow, "FixedShapeTensorType", ())):
        return array.to_numpy_ndarray()
    if isinstance(array.type, getattr(pyarrow, "Bool8Type", ())):
        return values != 0
    if type(array.type).__module__.partition(".")[0] != "datasets":
        raise InvalidArgument(f"Column '{name}' holds {array.type}; convert it, or leave it out.")
    return values


def _rows(array: Any, length: int, name: Any) -> Any:
    values = values_of(array.flatten(), name, array)
    return values.reshape(len(array), length, *values.shape[1:])
