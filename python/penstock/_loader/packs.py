"""Samples of different lengths, which a Loader packs or pads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from .. import _core
from .._checks import has, numpy_for, whole
from .._errors import InvalidArgument, Unsupported
from .columns import Fields, columns_of, is_a, is_column, is_table, values_of
from .conversions import targets_of
from .tokens import documents

_MOST_VALUES = 2**31 - 1


class Ragged:
    """Samples of different lengths: parts of arrays of NumPy. `parts`: of each array its values, and the offsets at
    which its samples begin and end. `rows`: the order of the samples; None: as they lie."""

    def __init__(self, name: str, parts: list[tuple[Any, Any]], rows: Any):
        import numpy

        def joined(arrays: list[Any]) -> Any:
            array = numpy.concatenate(arrays)
            return array if rows is None else array[rows]

        self.name = name
        self.values = [values for values, _ in parts]
        self.item = self.values[0].dtype.itemsize * int(numpy.prod(self.values[0].shape[1:]))
        self.arrays = joined([numpy.full(len(offsets) - 1, i) for i, (_, offsets) in enumerate(parts)])
        self.begins = joined([offsets[:-1] for _, offsets in parts])
        self.lengths = joined([numpy.diff(offsets) for _, offsets in parts])

    @property
    def native(self) -> tuple:
        """As `_core.pack` takes it."""
        import numpy

        values = self.values[0]
        addresses = numpy.array([array.ctypes.data for array in self.values], numpy.uint64)
        places = addresses[self.arrays] + (self.begins * self.item).astype(numpy.uint64)
        sizes = (self.lengths * self.item).astype(numpy.uint64)
        return self.name, str(values.dtype), list(values.shape[1:]), places.tobytes(), sizes.tobytes(), self.values

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        begin = self.begins[index]
        return self.values[self.arrays[index]][begin : begin + self.lengths[index]]


class Packs:
    """What a Loader makes of its data for `pack` or `pad`. `samples` and `fields`: the data before and after."""

    def __init__(self, data: Any, pack: Any, pad: Any, batch_size: int | None, **options: Any):
        samples = [_ragged(name, *column) for name, column in _columns(data).items()]
        names = [ragged.name for ragged in samples]
        if pad is not None and (pad != "longest" or pack is not None):
            raise InvalidArgument(f'`pad` is "longest", and `pack` is then left out, not {pad!r}.')
        if pack is not None and batch_size not in (None, 1):
            raise InvalidArgument("A batch of packed samples is one pack: leave `batch_size` out.")
        rows = whole("batch_size", 1 if batch_size is None else batch_size, 1, what="a number of samples")
        values = 0 if pack is None else _capacity(pack, names)
        self._packing, packed = _core.pack([ragged.native for ragged in samples], values, rows, **options)
        self.samples = Fields(names, samples, lambda arrays: dict(zip(names, arrays, strict=True)))
        self.fields = Fields([field.name for field in packed], packed, self._build)
        # What the states of two loaders must agree on, beside the number of samples and their order.
        self.signature = {"pack": [values, rows, self._packing.most_samples]}
        self.describe = self._packing.describe

    def targets(self, to: Any) -> list[str | None]:
        """As `targets_of`. The lengths stay int32, which attention kernels take."""
        return [*targets_of(Fields(self.samples.names, self.fields.arrays[:-1], self._build), to), None]

    def _build(self, arrays: list[Any]) -> dict[str, Any]:
        *arrays, place = arrays
        batch = dict(zip(self.fields.names, arrays, strict=True))
        if "cu_seqlens" not in batch:
            return batch
        return Packed(batch, max_seqlen=self._packing.longest(*place))


class Packed(dict):
    """A batch of packed samples."""

    def positions(self) -> Any:
        """The place of each value within its sample, as int64, made on the batch's device."""
        ends, count = self["cu_seqlens"], next(iter(self.values())).shape[0]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(ends, torch.Tensor):
            begins = torch.repeat_interleave(ends[:-1], ends.diff(), output_size=count)
            return torch.arange(count, device=ends.device) - begins
        if isinstance(ends, _core.Array):
            raise Unsupported("The positions of packed samples are made by PyTorch on a GPU: import torch.")
        import numpy

        return numpy.arange(count) - numpy.repeat(ends[:-1], numpy.diff(ends))


def _capacity(pack: Any, names: list[str]) -> int:
    if not isinstance(pack, Mapping) or len(pack) != 1 or str(next(iter(pack))) not in names:
        raise InvalidArgument(
            f"`pack` names a field and the values of a pack, such as pack={{{names[0]!r}: 65_536}}, not {pack!r}."
        )
    return whole("pack", next(iter(pack.values())), 1, _MOST_VALUES, what="a number of values")


def _columns(data: Any) -> dict[str, tuple[Any, Any]]:
    """The columns of the data by their names, each with the order of its rows, or None."""
    if is_a("datasets", "Dataset", data):
        rows = None if data._indices is None else data._indices.column(0).to_numpy()
        return {name: (data.data.column(name), rows) for name in data.format["columns"] or data.column_names}
    if is_table(data):
        data = columns_of(data)
    if not isinstance(data, Mapping) or not data:
        raise InvalidArgument(
            "`pack` and `pad` are for a table of lists, or a dict of them, such as {'input_ids': (values, offsets)}."
        )
    return {str(name): (value, None) for name, value in data.items()}


def _ragged(name: str, value: Any, rows: Any) -> Ragged:
    numpy = numpy_for(f"Field '{name}'")
    if is_a("datasets.arrow_dataset", "Column", value) and is_a("datasets", "Dataset", value.source):
        return _ragged(name, *_columns(value.source)[value.column_name])
    if isinstance(value, str | os.PathLike):
        value = documents(value)
    if is_a("polars", "Series", value):
        value = value.to_arrow()
    if is_column(value):
        return Ragged(name, _parts(name, value), rows)
    if has(value, "offsets") and has(value, "values"):  # a nested tensor of PyTorch
        value = value.values(), value.offsets()
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidArgument(
            f"Field '{name}' is neither a column of lists nor a pair (values, offsets). If it is a list of samples, "
            "write pyarrow.array(samples)."
        )
    values, offsets = (numpy.asarray(part) for part in value)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise InvalidArgument(
            f"The offsets of field '{name}' are whole numbers: where each sample begins, and the end."
        )
    if values.ndim == 0 or values.dtype.kind not in "biuf" or not values.flags.c_contiguous:
        raise InvalidArgument(
            f"The values of field '{name}' are {values.dtype} of shape {values.shape}, and a Loader packs numbers "
            "that lie side by side."
        )
    return Ragged(name, [(values, _checked(name, offsets, len(values), 0))], rows)


def _parts(name: str, column: Any) -> list[tuple[Any, Any]]:
    """Values and offsets of each chunk of an Arrow column of lists."""
    import numpy
    import pyarrow

    column = column if is_a("pyarrow", "Array", column) or has(column, "chunk") else pyarrow.array(column)
    parts, before = [], 0
    for chunk in getattr(column, "chunks", [column]):
        types, kind = pyarrow.types, chunk.type
        if types.is_fixed_size_list(kind):
            chunk = chunk.cast(pyarrow.list_(kind.value_type))
        elif not (types.is_list(kind) or types.is_large_list(kind)):
            raise InvalidArgument(
                f"Column '{name}' holds {kind}, and `pack` and `pad` are for lists: leave the column out, such as by "
                "select_columns([...])."
            )
        if chunk.null_count:
            first = before + int(chunk.is_null().to_numpy(zero_copy_only=False).argmax())
            raise InvalidArgument(f"Sample {first} of field '{name}' is null: fill it, or drop its row.")
        offsets = _checked(name, chunk.offsets.to_numpy(), len(chunk.values), before)
        inner = chunk.values.slice(offsets[0], offsets[-1] - offsets[0])
        if inner.null_count:
            null = offsets[0] + int(inner.is_null().to_numpy(zero_copy_only=False).argmax())
            first = before + int(numpy.searchsorted(offsets, null, "right")) - 1
            raise InvalidArgument(f"Sample {first} of field '{name}' holds a null: fill it, or drop its row.")
        if len(chunk):
            parts.append((numpy.ascontiguousarray(values_of(inner, name, inner)), offsets - offsets[0]))
        before += len(chunk)
    if not parts:
        raise InvalidArgument(f"Field '{name}' has no samples.")
    return parts


def _checked(name: str, offsets: Any, count: int, before: int) -> Any:
    """The offsets as int64, if they ascend within the `count` values. `before`: samples of earlier chunks."""
    import numpy

    offsets = offsets.astype(numpy.int64)
    begins, ends = offsets[:-1], offsets[1:]
    wrong = (begins < 0) | (ends < begins) | (ends > count)
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgument(
            f"Sample {before + i} of field '{name}' goes from value {begins[i]} to {ends[i]}, and offsets ascend "
            f"from 0 to {count}, the number of values."
        )
    return offsets
