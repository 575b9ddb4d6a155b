"""Files of tokens: windows of them, and the documents of Megatron's."""

from __future__ import annotations

import glob
import math
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from .. import _core
from .._checks import is_number, numpy_for, whole
from .._errors import InvalidArgument, Unsupported
from .chunks import LARGE
from .columns import Fields

_HEADER = struct.Struct("<9sQBQQ")  # of an index: magic, version, type, sequences, documents
_MAGIC = b"MMIDIDX\x00\x00"
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class Tokens(NamedTuple):
    """Windows of files of tokens: see `tokens`."""

    files: tuple[tuple[str, ...], ...]  # of each source
    dtype: str | None
    length: int
    stride: int
    weights: tuple[float, ...] = ()  # of the sources, if windows are at random positions

    def windows(self) -> list[list[Any]]:
        """All windows, of one token more than `length`, of each file of each source, where they lie."""
        import numpy

        width, sources = self.length + 1, []
        mapped = sum(os.path.getsize(file) for files in self.files for file in files) > LARGE
        for files in self.files:
            fields = []
            for file in files:
                dtype = self.dtype or documents(file)[0].dtype.name
                count = _count(file, numpy.dtype(dtype))
                if count < width:
                    raise InvalidArgument(f"{file} has {count} tokens, and a window takes {width}: leave it out.")
                fields.append(_core.windows_field(file, dtype, width, min(self.stride, count), mapped))
            sources.append(fields)
        types = {field.dtype for fields in sources for field in fields}
        if len(types) > 1:
            raise InvalidArgument(f"Files of tokens of one set have one type, not {sorted(types)}.")
        return sources

    def fields(self) -> Fields:
        if self.weights:
            raise InvalidArgument(
                "Windows at random positions differ from epoch to epoch: give the tokens to a Loader."
            )
        return Fields(["tokens"], [_joined(*self.windows())], self.build)

    @staticmethod
    def build(arrays: list[Any]) -> tuple[Any, Any]:
        (window,) = arrays
        if not hasattr(window, "__getitem__"):
            raise Unsupported("Inputs and targets are views of one batch, which on a GPU PyTorch makes: import torch.")
        return window[..., :-1], window[..., 1:]


class Draws:
    """What a Loader makes of Tokens at random positions."""

    def __init__(self, tokens: Tokens, seed: int):
        import numpy

        sources = tokens.windows()
        self._files = tokens.files
        self._side_by_side = [sum((len(field) - 1) // tokens.length + 1 for field in fields) for fields in sources]
        total = sum(self._side_by_side)
        exact = numpy.array(tokens.weights) / sum(tokens.weights) * total
        shares = exact.astype(int)
        shares[numpy.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
        self._shares = shares.tolist()
        self.signature = {"tokens": self._shares}
        draws = _core.draws_field("tokens", [_joined(fields) for fields in sources], self._shares, seed)
        self.fields = Fields(["tokens"], [draws], tokens.build)

    def describe(self, _epoch: int) -> str:
        parts = (
            f"{share} of {', '.join(files)} ({share / whole:.2f} of it)"
            for share, files, whole in zip(self._shares, self._files, self._side_by_side, strict=True)
        )
        return f"{sum(self._shares)} windows an epoch, at random positions: {', '.join(parts)}"


def tokens(
    files: Any, dtype: Any = None, *, length: int, stride: int | None = None, at: Literal["random"] | None = None
) -> Tokens:
    """Windows of files of tokens, for a `Loader`. Its batches are pairs `(x, y)` of `length` tokens each; `y` is `x`
    one token later. Both are views of one delivered window, which is read where it lies.

    Args:
        files: A path, a pattern, or a list of paths. A file holds tokens and nothing else. Or a mixture: a dict of such
            paths or patterns and their weights. Its windows are at random positions.
        dtype: The type of the tokens. If it is None, it comes from the index of Megatron that lies beside the file:
            `corpus.idx` beside `corpus.bin`.
        length: Tokens of `x`.
        stride: Tokens from one window to the next in a file, `length` unless it is given. With a stride of 1 and
            `shuffle=True` windows begin anywhere.
        at: "random": an epoch has as many windows as lie side by side in the files, and each begins anywhere. Where,
            and the order, follow from the Loader's `seed` and the epoch; `shuffle` adds nothing. Each window is a read
            of its own: of files that are larger than memory, `stride=1` and `shuffle=True` read more at once.

    Raises:
        InvalidArgument: A file does not fit; also from the Loader, which reads it.
        OSError: A file cannot be read, likewise.

    Examples:
        >>> windows = penstock.tokens(token_file, "uint16", length=128, at="random")
        >>> x, y = next(iter(penstock.Loader(windows, batch_size=8, device="host")))
        >>> assert (x[:, 1:] == y[:, :-1]).all()
    """
    numpy = numpy_for("Reading files of tokens")
    if isinstance(files, Mapping):
        at, weights, given = "random", tuple(files.values()), [[path] for path in files]
        if not all(is_number(weight) and weight > 0 for weight in weights) or not sum(weights) < math.inf:
            raise InvalidArgument(f"The weights of files of tokens are finite numbers above 0, not {list(weights)}.")
    else:
        one = isinstance(files, str | os.PathLike)
        weights, given = (1.0,), [[files] if one else files if isinstance(files, Iterable) else []]
    paths = tuple(
        tuple(found for path in map(os.fspath, some) for found in sorted(glob.glob(path)) or [path]) for some in given
    )
    if not paths or not all(paths):
        raise InvalidArgument(f"`files` is a path, a list of paths, or a dict of their weights, not {files!r}.")
    if at not in (None, "random") or (at is not None and stride is not None):
        raise InvalidArgument(f'`at` is "random", and `stride` is then left out, not {at!r}.')
    length = whole("length", length, 1, what="a number of tokens")
    stride = whole("stride", length if stride is None else stride, 1, what="a number of tokens")
    name = None if dtype is None else numpy.dtype(dtype).name
    return Tokens(paths, name, length, stride) if at is None else Tokens(paths, name, length, 1, weights)


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
    dtype = numpy.dtype(_TYPES[kind])
    values = numpy.memmap(file, dtype.newbyteorder("<"), "r", shape=_count(file, dtype))
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)])
    wrong = (lengths < 0) | (places != offsets[:-1] * values.itemsize) | (offsets[1:] > len(values))
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgument(
            f"Sequence {i} of {index} has {lengths[i]} tokens at byte {places[i]} of {file}, which has {len(values)} "
            "tokens: sequences follow each other from byte 0. Write the index again."
        )
    return values, offsets


def _joined(fields: list[Any]) -> Any:
    return fields[0] if len(fields) == 1 else _core.chunks_field("tokens", fields, b"")


def _count(file: str, dtype: Any) -> int:
    size, item = os.path.getsize(file), dtype.itemsize
    if size == 0 or size % item:
        raise InvalidArgument(f"{file} has {size} bytes, which are no whole number of tokens of {item} ({dtype}).")
    return size // item
