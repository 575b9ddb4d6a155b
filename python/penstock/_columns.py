"""Turns the data of a Loader into named arrays of the host: arrays, nests of them, tables and sets of columns."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ._checks import has, numpy_for
from ._containers import contents_of, like
from ._errors import InvalidArgument

Build = Callable[[list[Any]], Any]


class Fields(NamedTuple):
    """A dataset in the form that a Loader takes. `build` makes a batch of the dataset's structure of one array for each
    field."""

    names: list[str]
    arrays: list[Any]
    build: Build
    is_table: bool = False


def fields_of(data: Any) -> Fields:
    """Names, arrays and structure of `data`. Raises InvalidArgument that names the field that does not fit."""
    columns = _columns_of(data)
    if columns is not None:
        return _named(columns, lambda key, value: _column(value, key))._replace(is_table=True)
    if _is_a("tensordict", "TensorDictBase", data):
        return _tensordict(data)
    if isinstance(data, Mapping):
        return _named(data, lambda key, value: _array(value, str(key)))
    if _is_a("torch.utils.data", "TensorDataset", data):
        plain = sys.modules["torch.utils.data"].TensorDataset
        if type(data).__getitem__ is plain.__getitem__:
            data = tuple(data.tensors)
    if isinstance(data, list | tuple) and not _is_array(data):
        items = contents_of(data)
        names = list(getattr(type(data), "_fields", [f"field{i}" for i in range(len(items))]))
        if not names:
            raise InvalidArgument("A Loader needs at least one array.")
        arrays = [_array(item, name) for name, item in zip(names, items, strict=True)]
        return Fields(names, arrays, functools.partial(like, data))
    return Fields(["data"], [_array(data, "data")], lambda arrays: arrays[0])


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


def _is_a(module: str, name: str, value: Any) -> bool:
    """True if `value` is an instance of this class of a module that the program has imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


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
    if _is_column(value):
        return _column(value, name)
    for method, remedy in (("collect", "collect it first: .collect()"), ("to_tensordict", "pass .to_tensordict()")):
        if not _is_array(value) and has(value, method):
            raise InvalidArgument(f"Field '{name}' is {_a(value)}; {remedy}.")
    if not _is_array(value) and not isinstance(value, list | tuple | range | memoryview | bytearray):
        raise InvalidArgument(
            f"Field '{name}' is {_a(value)}, not an array. A Loader feeds arrays in memory or in a mapped file. For a "
            "Dataset, or anything else that makes samples one by one, use "
            "penstock.feed(DataLoader(dataset, ...))."
        )
    numpy = numpy_for(f"Field '{name}' is {_a(value)}, and reading it")
    if isinstance(value, numpy.ma.MaskedArray) and numpy.ma.is_masked(value):
        raise InvalidArgument(f"Field '{name}' is a masked array and would lose its mask: pass `.data` and `.mask`.")
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"Field '{name}' is {_a(value)}, which cannot become a NumPy array: {error}") from error
    return _numbers(array, name)


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
    plain = value.detach().as_subclass(torch.Tensor)
    whole = plain if _lies_apart(plain.shape, plain.stride(), 1) else plain.contiguous()
    return whole.resolve_conj().resolve_neg()


def _numbers(array: Any, name: str) -> Any:
    import numpy

    if array.dtype.kind not in "biuf":
        raise InvalidArgument(
            f"Field '{name}' holds {array.dtype}; a Loader takes bool, integer and float types. Convert it, or leave "
            "it out."
        )
    if array.ndim == 0:
        raise InvalidArgument(f"Field '{name}' is a scalar; its first axis must count samples.")
    as_it_is = array.flags.aligned and array.dtype.isnative
    if as_it_is and _lies_apart(array.shape, array.strides, array.itemsize):
        return array
    return numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _lies_apart(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """True if there are gaps between samples and none within them, as in a column of a matrix: it is read where it
    lies. `item` is the size of a value, in the unit of the strides."""
    sample = item
    for extent, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if extent != 1 and stride != sample:
            return False
        sample *= extent
    return len(shape) > 0 and shape[0] > 1 and strides[0] > sample > 0


# Tables: pandas, polars, Arrow, Hugging Face. Each column keeps its own type.


def _columns_of(data: Any) -> Mapping[Any, Any] | None:
    """The columns of a table by name; None if `data` is not a table."""
    if _is_a("pandas", "DataFrame", data):
        if not data.columns.is_unique:
            raise InvalidArgument(f"Two columns have the same name: {list(data.columns)}. Rename one.")
        return {name: data[name] for name in data.columns}
    if _is_a("polars", "DataFrame", data):
        return {series.name: series for series in data.get_columns()}
    if _is_a("datasets", "Dataset", data):
        return _hugging_face(data)
    if _is_a("datasets", "DatasetDict", data):
        raise InvalidArgument(f"This is a dict of splits: choose one, such as dataset[{next(iter(data), 'train')!r}].")
    if _is_column(data) or not (has(data, "__arrow_c_stream__") or has(data, "__arrow_c_array__")):
        return None
    try:
        import pyarrow
    except ImportError:
        raise InvalidArgument(
            f"Reading {_a(data)} needs pyarrow: pip install pyarrow, or pass a dict of arrays."
        ) from None
    table = pyarrow.table(data)
    if len(set(table.column_names)) < len(table.column_names):
        raise InvalidArgument(f"Two columns have the same name: {table.column_names}. Rename one.")
    return dict(zip(table.column_names, table.columns, strict=True))


def _hugging_face(data: Any) -> Mapping[Any, Any]:
    """The columns of the dataset's format, in the order of samples that `shuffle` or `select` gave it."""
    if data.format["type"] == "custom":
        raise InvalidArgument(
            "This dataset has a transform, which a Loader would not run. Apply it with .map(...), or use "
            "penstock.feed(DataLoader(dataset, ...))."
        )
    if "dtype" in data.format["format_kwargs"]:
        raise InvalidArgument("This dataset's format asks for another dtype: reset_format(), and pass `to=` instead.")
    table = data.data
    indices = None if data._indices is None else data._indices.column(0).to_numpy()
    names = data.format["columns"] or data.column_names
    columns = {name: _column(table.column(name), name) for name in names}
    return columns if indices is None else {name: column[indices] for name, column in columns.items()}


def _is_column(value: Any) -> bool:
    return (
        _is_a("pandas", "Series", value)
        or _is_a("polars", "Series", value)
        or _is_a("pyarrow", "Array", value)
        or _is_a("pyarrow", "ChunkedArray", value)
    )


def _column(value: Any, name: Any) -> Any:
    if _is_a("pandas", "Series", value):
        return _numbers(_pandas(value, name), name)
    if _is_a("polars", "Series", value):
        if value.null_count():
            raise _nulls(name, value.null_count(), f"{name}.fill_null(...)")
        if value.dtype.is_nested():
            return _numbers(_arrow(value.to_arrow(), name), name)
        try:
            return _numbers(value.to_numpy(), name)
        except InvalidArgument:
            raise
        except Exception as error:
            raise InvalidArgument(f"Column '{name}' holds {value.dtype}, which NumPy lacks: convert it.") from error
    if _is_column(value):
        return _numbers(_arrow(value, name), name)
    return _array(value, str(name))


def _nulls(name: Any, count: int, advice: str) -> InvalidArgument:
    return InvalidArgument(
        f"Column '{name}' has {count} nulls, which an array of numbers cannot hold. Fill them ({advice}) or drop "
        "their rows."
    )


def _pandas(series: Any, name: Any) -> Any:
    import numpy

    if isinstance(series.dtype, numpy.dtype):
        return series.to_numpy()
    dtype = getattr(series.dtype, "numpy_dtype", getattr(series.dtype, "subtype", series.dtype))
    if getattr(dtype, "kind", "O") not in "biuf":
        raise InvalidArgument(
            f"Column '{name}' holds {series.dtype}; a Loader takes bool, integer and float types. Convert it (for "
            f"categories: .cat.codes), or leave it out."
        )
    if series.isna().any():
        raise _nulls(name, int(series.isna().sum()), f"frame['{name}'].fillna(...)")
    return series.to_numpy(dtype=dtype)


def _arrow(column: Any, name: Any) -> Any:
    import pyarrow

    array = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if array.null_count:
        raise _nulls(name, array.null_count, "pyarrow.compute.fill_null(column, ...)")
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
            raise InvalidArgument(
                f"Column '{name}' holds lists of {min(lengths)} to {max(lengths)} values; a Loader takes rows of one "
                "length. Pad them."
            )
        return _rows(array, lengths[0] if lengths else 0, name)
    raise InvalidArgument(
        f"Column '{name}' holds {kind}; a Loader takes bool, integer and float types, and lists of them that have "
        "one length. Convert it, or leave it out."
    )


def _extension(array: Any, name: Any) -> Any:
    """Reads Arrow's tensors and one-byte bools, and Hugging Face's arrays, which are stored as lists."""
    import pyarrow

    values = _arrow(array.storage, name)
    if isinstance(array.type, getattr(pyarrow, "FixedShapeTensorType", ())):
        return array.to_numpy_ndarray()
    if isinstance(array.type, getattr(pyarrow, "Bool8Type", ())):
        return values != 0
    if type(array.type).__module__.partition(".")[0] != "datasets":
        raise InvalidArgument(f"Column '{name}' holds {array.type}; convert it, or leave it out.")
    return values


def _rows(array: Any, length: int, name: Any) -> Any:
    values = _arrow(array.flatten(), name)
    return values.reshape(len(array), length, *values.shape[1:])
