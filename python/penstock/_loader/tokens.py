"""Files of tokens: windows of them, and the documents of Megatron's."""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._checks import numpy_for, whole
from .._errors import InvalidArgument, Unsupported
from .chunks import Chunks

_HEADER = struct.Struct("<9sQBQQ")  # of an index: magic, version, type, sequences, documents
_MAGIC = b"MMIDIDX\x00\x00"
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class Tokens(NamedTuple):
    """Windows of files of tokens: see `tokens`."""

    files: tuple[str, ...]
    dtype: str | None
    length: int
    stride: int

    def windows(self) -> Any:
        """All windows, of one token more than `length`, where they lie."""
        import numpy

        width, arrays = self.length + 1, []
        for file in self.files:
            values = _values(file, self.dtype)
            if len(values) < width:
                raise InvalidArgument(f"{file} has {len(values)} tokens, and a window takes {width}: leave it out.")
            arrays.append(numpy.lib.stride_tricks.sliding_window_view(values, width)[:: self.stride])
        if len({array.dtype for array in arrays}) > 1:
            raise InvalidArgument(f"Files of tokens of one set have one type, not {[str(a.dtype) for a in arrays]}.")
        return arrays[0] if len(arrays) == 1 else Chunks(arrays)

    @staticmethod
    def build(arrays: list[Any]) -> tuple[Any, Any]:
        (window,) = arrays
        if not hasattr(window, "__getitem__"):
            raise Unsupported("Inputs and targets are views of one batch, which on a GPU PyTorch makes: import torch.")
        return window[..., :-1], window[..., 1:]


def tokens(files: Any, dtype: Any = None, *, length: int, stride: int | None = None) -> Tokens:
    """Windows of files of tokens, for a `Loader`. Its batches are pairs `(x, y)` of `length` tokens each; `y` is `x`
    one token later. Both are views of one delivered window, which is read where it lies.

    Args:
        files: A path, a pattern, or a list of paths. A file holds tokens and nothing else.
        dtype: The type of the tokens. If it is None, it comes from the index of Megatron that lies beside the file:
            `corpus.idx` beside `corpus.bin`.
        length: Tokens of `x`.
        stride: Tokens from one window to the next in a file, `length` unless it is given. With a stride of 1 and
            `shuffle=True` windows begin anywhere.

    Raises:
        InvalidArgument: A file does not fit; also from the Loader, which reads it.
        OSError: A file cannot be read, likewise.

    Examples:
        >>> windows = penstock.tokens(token_file, "uint16", length=128, stride=1)
        >>> x, y = next(iter(penstock.Loader(windows, batch_size=8, shuffle=True, device="host")))
        >>> assert (x[:, 1:] == y[:, :-1]).all()
    """
    numpy = numpy_for("Reading files of tokens")
    given = [files] if isinstance(files, str | os.PathLike) else files if isinstance(files, Iterable) else []
    paths = [found for path in map(os.fspath, given) for found in sorted(glob.glob(path)) or [path]]
    if not paths:
        raise InvalidArgument(f"`files` is a path or a list of paths, not {files!r}.")
    length = whole("length", length, 1, what="a number of tokens")
    stride = whole("stride", length if stride is None else stride, 1, what="a number of tokens")
    return Tokens(tuple(paths), None if dtype is None else numpy.dtype(dtype).name, length, stride)


def documents(path: str | os.PathLike) -> tuple[Any, Any]:
    """The tokens and the offsets of the sequences of a file of Megatron. `path`: that of the tokens, or the index."""
    import numpy

    index, file = (os.path.splitext(path)[0] + end for end in (".idx", ".bin"))
    try:
        data = numpy.fromfile(index, numpy.uint8)
    except FileNotFoundError:
        raise InvalidArgument(f"{index} does not exist: pass the type of the tokens in {file} as `dtype`.") from None
    magic, version, kind, count, parts = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0, 0, 0)
    if magic != _MAGIC or version != 1 or kind not in _TYPES or len(data) < _HEADER.size + 12 * count + 8 * parts:
        raise InvalidArgument(f"{index} is no index of Megatron's, of integers, or it is cut short.")
    lengths = numpy.frombuffer(data, "<i4", count, _HEADER.size).astype(numpy.int64)
    places = numpy.frombuffer(data, "<i8", count, _HEADER.size + 4 * count)
    values = _values(file, _TYPES[kind])
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)])
    wrong = (lengths < 0) | (places != offsets[:-1] * values.itemsize) | (offsets[1:] > len(values))
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgument(
            f"Sequence {i} of {index} has {lengths[i]} tokens at byte {places[i]} of {file}, which has {len(values)} "
            "tokens: sequences follow each other from byte 0. Write the index again."
        )
    return values, offsets


def _values(file: str, dtype: str | None) -> Any:
    """The tokens of a file, mapped."""
    import numpy

    if dtype is None:
        return documents(file)[0]
    size, item = os.path.getsize(file), numpy.dtype(dtype).itemsize
    if size == 0 or size % item:
        raise InvalidArgument(f"{file} has {size} bytes, which are no whole number of tokens of {item} ({dtype}).")
    return numpy.memmap(file, numpy.dtype(dtype).newbyteorder("<"), mode="r")
