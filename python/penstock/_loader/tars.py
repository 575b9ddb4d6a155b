"""The pictures in tar files as WebDataset writes them."""

from __future__ import annotations

import array
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from .. import _core
from .._errors import Error, file_error

_BLOCK = 512
_PICTURES = {"jpg", "jpeg", "png", "webp"}
_OTHERS = {"avif", "bmp", "gif", "heic", "jp2", "jxl", "ppm", "tif", "tiff"}  # pictures if a sample has none of those
_MOST_TEXT = 1 << 20  # of a name, or a label


def pictures_in_tars(files: Sequence[Any]) -> _core.EncodedPictures:
    """Members whose names are equal up to the first dot are one sample, and "cls" is its label. Reads the heads of all
    members, once."""
    names, places, labels = [], array.array("Q"), array.array("q")
    for number, path in enumerate(map(os.fspath, files)):
        with _opened(path) as file:
            for key, members in itertools.groupby(_members(path, file.fileno()), lambda member: member[0]):
                sample = {suffix: place for _, suffix, *place in members}
                kinds = _PICTURES if _PICTURES & sample.keys() else _OTHERS
                pictures = [suffix for suffix in sample if suffix in kinds]
                if len(pictures) > 1:
                    raise Error(f"{path}: sample {key} has several pictures; a sample has one.")
                if not pictures:
                    continue
                names.append(f"{key}.{pictures[0]} in {path}")
                places.extend([number, *sample[pictures[0]]])
                if "cls" in sample:
                    labels.append(_label(path, key, file.fileno(), *sample["cls"]))
    if labels and len(labels) != len(names):
        raise Error(
            f"{len(labels)} of {len(names)} pictures in tar files have a label, a member 'cls': give one to all of "
            "them, or to none."
        )
    paths = [*map(os.fspath, files)] if names else []
    return _core.EncodedPictures.files(paths, names, places, labels)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise file_error(f"{path} cannot be opened: {error.strerror}.", error.errno or 0, path) from None


def _label(path: str, key: str, file: int, begin: int, size: int) -> int:
    text = os.pread(file, min(size, _MOST_TEXT), begin)
    try:
        label = int(text)
        if not -(2**63) <= label < 2**63:
            raise ValueError
        return label
    except ValueError:
        raise Error(
            f"{path}, byte {begin}: the label {key}.cls is {text[:40]!r}, not a whole number of 64 bits."
        ) from None


def _members(path: str, file: int) -> Iterator[tuple[str, str, int, int]]:
    """Of each regular file: its name up to the first dot, what follows in lower case, where its bytes begin, and their
    number. Reads the formats ustar, GNU and pax."""
    end, at = os.fstat(file).st_size, 0
    name: bytes | None = None  # of the next file, if a member before it says so
    size: int | None = None
    while (head := os.pread(file, _BLOCK, at)).strip(b"\0"):
        try:
            own_name, length = _read_head(head)
            kind, begin = head[156:157], at + _BLOCK
            if size is not None and kind not in b"xgL":
                length = size
            if begin + -(-length // _BLOCK) * _BLOCK > end:
                raise ValueError("a member that ends behind the file")
            at = begin + -(-length // _BLOCK) * _BLOCK
            if kind == b"L":
                name = os.pread(file, min(length, _MOST_TEXT), begin).split(b"\0")[0]
            elif kind == b"x":
                records = _records(os.pread(file, min(length, _MOST_TEXT), begin))
                name, size = records.get(b"path", name), int(records[b"size"]) if b"size" in records else size
            elif kind != b"g":
                folder, slash, last = (name or own_name).decode("utf-8", "surrogateescape").rpartition("/")
                key, _, suffix = last.partition(".")
                if kind in b"0\0" and key:
                    yield folder + slash + key, suffix.lower(), begin, length
                name = size = None
        except ValueError as error:
            raise Error(f"{path}, byte {at}: expected a member of a tar file, found {error}.") from None


def _read_head(head: bytes) -> tuple[bytes, int]:
    """Name and size. Raises ValueError if it is not the head of a member."""
    if head[257:262] != b"ustar" or len(head) != _BLOCK:
        raise ValueError("a block that is not a member's head")
    name = head[:100].split(b"\0")[0]
    if head[345] and head[262] == 0:  # not of GNU's format, which has times there
        name = head[345:500].split(b"\0")[0] + b"/" + name
    if head[124] & 0x80:  # GNU's form of large numbers
        return name, int.from_bytes(head[125:136], "big")
    return name, int(head[124:136].strip(b" \0") or b"0", 8)


def _records(text: bytes) -> dict[bytes, bytes]:
    """Those of pax: "LENGTH KEY=VALUE" and a new line, where the length counts all of it."""
    found = {}
    while text:
        length = int(text.partition(b" ")[0])
        if not 0 < length <= len(text):
            raise ValueError("a record of a wrong length")
        key, _, value = text[: length - 1].partition(b" ")[2].partition(b"=")
        found[key], text = value, text[length:]
    return found
